"""Timing in turns: every contender meets the same weather."""

from __future__ import annotations

import gc
import random
import statistics
import time
from collections.abc import Callable, Mapping
from typing import TypeVar

Key = TypeVar("Key")

# For `pause` where contenders have threads. OpenBLAS's workers spin longest: 2^26 clock cycles by default.
SPIN_SECONDS = 0.04


def time_in_turns(
    steps: Mapping[Key, Callable[[], object]],
    *,
    repeats: int,
    seconds: float,
    pause: float = 0.0,
    warmups: int = 2,
) -> dict[Key, list[float]]:
    """Time `steps` in turns, one call each a round, in an order drawn anew for each round.

    Parameters
    ----------
    steps : mapping of callable
        What to time. A step returns once its work is done.
    repeats : int
        Rounds at least.
    seconds : float
        Go on with rounds until this much time has passed.
    pause : float
        Seconds to wait before each call. The workers of most thread pools spin for a while
        after a call, and would take the CPUs from the next contender.
    warmups : int
        Calls of each step before the first round.

    Returns
    -------
    dict of list of float
        Seconds of each call, by the keys of `steps`.
    """
    for step in steps.values():
        for _ in range(warmups):
            step()
    order = list(steps)
    times: dict[Key, list[float]] = {key: [] for key in order}
    shuffle = random.Random(0).shuffle
    collecting = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        end = time.perf_counter() + seconds
        rounds = 0
        while order and (rounds < repeats or time.perf_counter() < end):
            shuffle(order)
            for key in order:
                time.sleep(pause)
                start = time.perf_counter()
                result = steps[key]()
                times[key].append(time.perf_counter() - start)
                # Freeing a large result belongs to no one's time.
                del result
            rounds += 1
    finally:
        if collecting:
            gc.enable()
    return times


def fastest(candidates: Mapping[Key, Callable[[], object]]) -> Key:
    """Return the key of the candidate with the smallest median over a few calls in turns."""
    times = time_in_turns(candidates, repeats=5, seconds=0.0, warmups=1)
    return min(times, key=lambda key: statistics.median(times[key]))
