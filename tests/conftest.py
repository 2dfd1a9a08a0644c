"""Settings that all tests share."""

import signal

from hypothesis import settings

# In the background of a shell SIGINT is ignored, and so it would be by every process that a test interrupts.
signal.signal(signal.SIGINT, signal.default_int_handler)

# A slow machine is no failure: examples have no time limit of their own (each test has one).
settings.register_profile("pomona", deadline=None, print_blob=True)
settings.load_profile("pomona")
