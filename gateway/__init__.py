"""The process that clients call: it decides, supervises and relays, and never imports MLX."""
