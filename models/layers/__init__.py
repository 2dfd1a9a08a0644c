"""Parts that several architectures share; nothing here touches MLX at import beyond importing it."""
