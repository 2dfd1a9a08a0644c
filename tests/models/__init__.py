"""Checkpoints and graphs."""
