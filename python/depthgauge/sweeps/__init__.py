"""Sweeps: a function over a grid of parameters and seeds, kept in a store."""

from depthgauge.sweeps.reading import read_store
from depthgauge.sweeps.runs import sweep

__all__ = ["read_store", "sweep"]

# As all public functions, these are at home in depthgauge, which loads them when they are first asked for.
for _function in (read_store, sweep):
    _function.__module__ = "depthgauge"
del _function
