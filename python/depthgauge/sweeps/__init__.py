"""Sweeps: a function over a grid of parameters and seeds, kept in a store."""

from depthgauge.sweeps.runs import read_store, sweep

__all__ = ["read_store", "sweep"]
