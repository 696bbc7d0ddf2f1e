"""Weights that are never stored: any layer is made when it is needed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from depthgauge._common import arguments
from depthgauge._common.arrays import Array
from depthgauge.backends import get_backend
from depthgauge.backends.reference.philox import LAYOUT
from depthgauge.equation import Block
from depthgauge.random.normals import seed_of
from depthgauge.stacks.initialization import check_field_size, checked_sizes, matrix_shapes, standard_deviation
from depthgauge.stacks.weights import Weights

# Words of Philox's counter: number of the layer, and of the matrix.
_MOST_LAYERS = 2**32
_MATRIX_NUMBERS = {"up": 1, "gate": 2, "down": 3}


@dataclass(frozen=True, init=False, repr=False)
class GeneratedWeights:
    """The weights of a stack of L blocks, drawn anew, the same, each time that a layer is needed.

    They go wherever `Weights` go, and results are those of `materialize`, bit for bit; memory does not grow with depth.
    The numbers are those of `normal`'s generator, counted by seed, layer, matrix and position: a layer does not depend
    on how many there are (but with depth_scaled and fixup its scale does), and every instruction set, thread count and
    backend makes the same bits; the notes of `normal` give the layout of the counters.  An entry is a standard normal,
    rounded to `dtype`, times the standard deviation, rounded to `dtype`, rounded.  Gains are 1 and shifts and biases 0
    by being absent.

    Parameters
    ----------
    block : Block
        Its branch says which matrices there are.
    depth, width : int
        Numbers of blocks, L, at most 2^32, and of features, d.
    hidden : int, optional
        Number of hidden units, m; None means `width`.  A linear branch has m = d.
    init : str
        As for `initialize`, except orthogonal.
    seed : int or sequence of int
        From 0 to 2^64 - 1.  A sequence gives a leading replicate axis, each replicate equal, bit for bit, to its own
        single call.
    dtype : dtype
        float32 or float64, whose numbers are not each other's rounded.

    Raises
    ------
    TypeError
        If an argument is of the wrong kind.
    ValueError
        As for `initialize`, but that one block must fit an array; if `init` is orthogonal, a seed is out of range, or
        there are too many layers.
    """

    branch: str
    depth: int
    width: int
    hidden: int
    init: str
    seed: int | tuple[int, ...]
    dtype: np.dtype[Any]

    def __init__(
        self,
        block: Block,
        depth: int,
        width: int,
        hidden: int | None = None,
        *,
        init: str = "lecun",
        seed: int | Sequence[int],
        dtype: npt.DTypeLike = np.float64,
    ) -> None:
        branch, depth, width, hidden, kind = checked_sizes(block, depth, width, hidden, init, dtype)
        if init == "orthogonal":
            raise ValueError(
                "init='orthogonal' needs each whole matrix at once, and so cannot be generated entry by entry; "
                "use initialize(..., init='orthogonal'), which stores the weights"
            )
        if depth > _MOST_LAYERS:
            raise ValueError(f"depth={depth} must be at most 2**32, the layers that a counter tells apart")
        seeds = _seeds(seed)
        check_field_size(len(seeds) if isinstance(seeds, tuple) else 1, 1, width, hidden, kind)
        fields = {
            "branch": branch,
            "depth": depth,
            "width": width,
            "hidden": hidden,
            "init": init,
            "seed": seeds,
            "dtype": kind,
        }
        for name, value in fields.items():
            object.__setattr__(self, name, value)

    @property
    def replicates(self) -> tuple[int, ...]:
        """The leading axes: (S,) for a sequence of S seeds, () for a single one."""
        return (len(self.seed),) if isinstance(self.seed, tuple) else ()

    @property
    def matrices(self) -> dict[str, tuple[int, int]]:
        """The shapes of the matrices of one block, by name."""
        return matrix_shapes(self.branch, self.width, self.hidden)

    def materialize(self, *, backend: str | None = None, threads: int | None = None) -> Weights:
        """Return the weights of all layers, stored.

        Parameters
        ----------
        backend : {"native", "reference"}, optional
            Which makes them; both make the same bits.
        threads : int, optional
            As for `forward`.

        Returns
        -------
        Weights
            up (..., L, d, m), and gate and down where the branch has them.

        Raises
        ------
        ValueError
            If a field would be larger than any array may be.
        """
        sets = math.prod(self.replicates)
        check_field_size(sets, self.depth, self.width, self.hidden, self.dtype)
        fields = {name: np.zeros((sets, self.depth, *shape), self.dtype) for name, shape in self.matrices.items()}
        self.fill(fields, 0, backend, arguments.thread_count(threads))
        return Weights(**(fields if self.replicates else {name: array[0].copy() for name, array in fields.items()}))

    def fill(self, fields: Mapping[str, Array], first: int, backend: str | None, threads: int) -> None:
        """Write the matrices of layers from `first` on into arrays (S, layers, ...), C-order; those of zeros stay."""
        seeds = np.array(self.seed, np.uint64, ndmin=1)
        shapes = self.matrices
        for name, array in fields.items():
            deviation = standard_deviation(self.init, name, shapes, max(self.depth, 1))
            if deviation:
                get_backend(backend).fill_normals(
                    array.reshape(*array.shape[:2], math.prod(shapes[name])),
                    seeds,
                    first_layer=first,
                    matrix=_MATRIX_NUMBERS[name],
                    deviation=deviation,
                    threads=threads,
                )

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as plain data, and the version of the counters' layout, which fixes the numbers."""
        seed = list(self.seed) if isinstance(self.seed, tuple) else self.seed
        return {
            "branch": self.branch,
            "depth": self.depth,
            "width": self.width,
            "hidden": self.hidden,
            "init": self.init,
            "seed": seed,
            "dtype": self.dtype.name,
            "layout": LAYOUT,
        }

    def __repr__(self) -> str:
        sizes = f"branch={self.branch!r}, depth={self.depth}, width={self.width}, hidden={self.hidden}"
        seed = self.seed
        if isinstance(seed, tuple) and len(seed) > 4:
            seed_text = f"({seed[0]}, ..., {seed[-1]}), replicates={self.replicates}"
        else:
            seed_text = str(seed)
        return f"GeneratedWeights({sizes}, init={self.init!r}, dtype={self.dtype}, seed={seed_text})"


def _seeds(value: object) -> int | tuple[int, ...]:
    if isinstance(value, list | tuple | range) or (isinstance(value, np.ndarray) and value.ndim == 1):
        return tuple(seed_of(f"seed[{index}]", item) for index, item in enumerate(value))
    if np.ndim(value) and not isinstance(value, str | bytes):  # type: ignore[arg-type]
        raise TypeError(f"seed must be an integer or a sequence of them, of one axis; got {value!r}")
    return seed_of("seed", value)
