"""Bytes of audio to samples, in a stream."""
