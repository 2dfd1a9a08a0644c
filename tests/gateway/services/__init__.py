"""Tests of the services that the gateway answers itself."""
