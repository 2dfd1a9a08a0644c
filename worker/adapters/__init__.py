"""LoRA adapters of the model: found by name, mounted while requests run, and kept for those that use them."""
