"""Silero VAD: how likely it is that somebody speaks, for every 32 ms of audio."""
