"""Tests of Pomona: the folders mirror the source folders."""
