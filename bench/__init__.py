"""Measurements: one script a figure, each beside its peer, run as `python -m bench.NAME` from the checkout.

Each prints what it found and writes `bench/results/NAME.json` with the machine and the date.
"""
