"""Checkpoints of the hub: which there are in its cache on this machine, and how more come into it."""
