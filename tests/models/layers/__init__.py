"""Layers and the cache."""
