"""Numbers compared with those of other implementations."""
