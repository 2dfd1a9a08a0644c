"""Whisper: speech to text. Source: Radford et al. 2022, arXiv:2212.04356."""
