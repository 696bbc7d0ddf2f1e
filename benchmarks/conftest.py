"""What the benchmark files share."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import depthgauge as dg


@pytest.fixture(params=["float32", "float64"])
def dtype(request: pytest.FixtureRequest) -> np.dtype[Any]:
    found: np.dtype[Any] = np.dtype(request.param)
    return found


@pytest.fixture(params=dg.available_backends())
def backend(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name
