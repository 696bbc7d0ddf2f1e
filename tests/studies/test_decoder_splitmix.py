"""The generator of the decoder study."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from decoders import WORD, splitmix_words
from hypothesis import given
from hypothesis import strategies as st

from depthgauge.studies.decoder import (
    SplitMix64,
)


def test_splitmix_known_outputs() -> None:
    """The outputs for seed 1234567 that implementations are commonly checked with."""
    assert SplitMix64(1234567).integers(5).tolist() == [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
        4593380528125082431,
        16408922859458223821,
    ]


@given(st.integers(0, WORD - 1), st.integers(0, 40), st.integers(0, 40))
def test_splitmix_goes_on(seed: int, first: int, second: int) -> None:
    rng = SplitMix64(seed)
    together = [*rng.integers(first).tolist(), *rng.integers(second).tolist()]
    assert together == splitmix_words(seed, first + second)
    again = SplitMix64(rng.state)
    assert again.integers(3).tolist() == rng.integers(3).tolist()


@pytest.mark.parametrize("count", [0, 1, (1 << 14) - 1, 1 << 14, (1 << 14) + 1, 40_000])
def test_splitmix_in_chunks(count: int) -> None:
    rng = SplitMix64(WORD - 3)
    words = splitmix_words(WORD - 3, count)
    as_numpy: Any = np.int64(count)
    assert rng.copy().integers(count).tolist() == rng.copy().integers(as_numpy).tolist() == words
    assert rng.random((count,)).tolist() == [(word >> 11) * 2.0**-53 for word in words]
    other = SplitMix64(WORD - 3)
    other.skip(count)
    assert rng.state == other.state == (WORD - 3 + count * 0x9E3779B97F4A7C15) % WORD


@pytest.mark.parametrize(("seed", "error"), [(-1, ValueError), (WORD, ValueError), (1.0, TypeError), (True, TypeError)])
def test_splitmix_refuses_seeds(seed: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match="seed"):
        SplitMix64(seed)
