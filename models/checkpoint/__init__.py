"""Reading checkpoints: files, formats, names, quantization, tokenizer and chat template; no MLX except in `weights`."""
