"""Tests of the command line against scripted servers."""
