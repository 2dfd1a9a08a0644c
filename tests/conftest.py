"""Settings that all tests share."""

from hypothesis import settings

# A slow machine is no failure: examples have no time limit of their own (each test has one).
settings.register_profile("pomona", deadline=None, print_blob=True)
settings.load_profile("pomona")
