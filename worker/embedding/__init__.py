"""Requests for vectors and for rankings, from their messages to the engine."""
