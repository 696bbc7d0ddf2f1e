"""Timing in turns: every contender meets the same state of the machine."""

from __future__ import annotations

import gc
import random
import statistics
import time
from collections.abc import Callable, Mapping
from typing import TypeVar

Key = TypeVar("Key")

# How long to look before each call, and at most, whether threads of this process still run: the workers of most pools
# spin after a call, those of some builds of OpenBLAS for a tenth of a second, and would take the CPUs from the next.
LOOK_SECONDS = 0.004
MOST_SECONDS = 1.0


def time_in_turns(
    steps: Mapping[Key, Callable[[], object]],
    *,
    repeats: int,
    seconds: float,
    warmups: int = 2,
) -> dict[Key, list[float]]:
    """Time `steps` in turns, one call each a round, in an order drawn anew for each round.

    A call begins when no thread of this process is busy with the one before.

    Parameters
    ----------
    steps : mapping of callable
        What to time. A step returns once its work is done.
    repeats : int
        Rounds at least.
    seconds : float
        Go on with rounds until this much time has passed.
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
                _wait_for_idle_threads()
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


def _wait_for_idle_threads() -> None:
    end = time.perf_counter() + MOST_SECONDS
    while time.perf_counter() < end:
        before = time.process_time()
        time.sleep(LOOK_SECONDS)
        if time.process_time() - before < LOOK_SECONDS / 4:
            return
