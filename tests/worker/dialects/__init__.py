"""Tests of `worker.dialects`."""
