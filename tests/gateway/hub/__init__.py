"""Tests of `gateway.hub`."""
