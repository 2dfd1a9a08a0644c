"""Whole processes over real sockets."""
