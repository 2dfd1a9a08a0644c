"""The client in Python."""
