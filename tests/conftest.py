"""Fixtures that all areas of the test suite share, and which tests run where."""

from __future__ import annotations

import os
import signal
from typing import Any, cast

import hypothesis
import numpy as np
import pytest

import depthgauge as dg

hypothesis.settings.register_profile(
    "depthgauge", derandomize=True, deadline=None, database=None, print_blob=False, max_examples=40
)
hypothesis.settings.load_profile("depthgauge")

# What a shell starts in the background ignores Ctrl-C, and so would the processes that tests send one to.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out, where an instruction set is asked for, the reference alone, which has none, and what is slow."""
    if not os.environ.get("DEPTHGAUGE_TARGET"):
        return

    def is_left_out(item: pytest.Item) -> bool:
        callspec = getattr(item, "callspec", None)
        return item.get_closest_marker("slow") is not None or (
            callspec is not None
            and any(isinstance(value, str) and value == "reference" for value in callspec.params.values())
        )

    config.hook.pytest_deselected(items=[item for item in items if is_left_out(item)])
    items[:] = [item for item in items if not is_left_out(item)]


@pytest.fixture(params=dg.available_backends())
def backend(request: pytest.FixtureRequest) -> str:
    """Each backend that can be used here."""
    return cast(str, request.param)


@pytest.fixture(params=[np.float32, np.float64], ids=["float32", "float64"])
def dtype(request: pytest.FixtureRequest) -> np.dtype[Any]:
    """Each precision."""
    return cast("np.dtype[Any]", np.dtype(request.param))


@pytest.fixture
def rng() -> np.random.Generator:
    """A generator seeded anew for every test."""
    return np.random.default_rng(20240229)
