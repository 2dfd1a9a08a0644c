"""LoRA adapters as they lie on disk: what they hold, and whether it fits a model. Nothing here imports MLX."""
