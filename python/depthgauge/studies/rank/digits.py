"""A small real task: handwritten digits of 8 x 8 pixels, which ship with scikit-learn."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from depthgauge._common.arrays import Array
from depthgauge.studies.rank.networks import DTYPE

PIXELS, CLASSES = 64, 10
# Of 1797 images; the others test.
TRAINING, VALIDATION = 900, 300


class Examples(NamedTuple):
    """Images, shape (B, 64), and what they show, 0 to 9, shape (B,)."""

    images: Array
    labels: npt.NDArray[np.int64]


class Task(NamedTuple):
    """The digits, split by one seed."""

    training: Examples
    validation: Examples
    test: Examples


def split_digits(seed: int) -> Task:
    """Return the digits in random parts, pixels centered and set to unit RMS by what the training part says.

    Raises
    ------
    ImportError
        If scikit-learn is missing (extra ``studies``).
    """
    pixels, labels = _digits()
    order = np.random.default_rng([seed, 0]).permutation(len(labels))
    first = pixels[order[:TRAINING]]
    images = (pixels - first.mean(axis=0)) / np.std(first - first.mean(axis=0))
    parts = np.split(order, [TRAINING, TRAINING + VALIDATION])
    return Task(*(Examples(images[part].astype(DTYPE), labels[part]) for part in parts))


@functools.cache
def _digits() -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]]:
    from sklearn.datasets import load_digits

    found: Any = load_digits()
    return found.data, found.target.astype(np.int64)
