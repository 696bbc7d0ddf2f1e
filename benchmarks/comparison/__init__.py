"""Ratios against peers: what `compare.py` runs."""
