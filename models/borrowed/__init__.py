"""Models of architectures that are not written here: mlx-lm's classes behind this build's interfaces, where allowed."""
