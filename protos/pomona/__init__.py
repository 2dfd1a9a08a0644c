"""The contract of Pomona: one package for each major version."""
