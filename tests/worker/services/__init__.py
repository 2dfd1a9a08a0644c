"""Tests of `worker.services`."""
