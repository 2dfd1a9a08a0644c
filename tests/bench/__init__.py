"""Tests of what `bench` measures with."""
