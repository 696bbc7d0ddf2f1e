"""How to draw the weights of a stack."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from depthgauge._common import arguments
from depthgauge._common.arrays import Array, supported_dtype
from depthgauge.equation import BRANCH_MATRICES, Block
from depthgauge.stacks.weights import Weights

INITIALIZERS = ("lecun", "he", "xavier", "orthogonal", "depth_scaled", "zero", "fixup")


def initialize(
    block: Block,
    depth: int,
    width: int,
    hidden: int | None = None,
    *,
    init: str = "lecun",
    rng: Any,
    dtype: npt.DTypeLike = np.float64,
) -> Weights:
    """Draw the matrices of a stack; gains are 1 and shifts and biases 0 by being absent.

    Layer by layer, up, then gate, then down are drawn, those that the branch has, with ``rng.standard_normal`` in
    float64; each is scaled, then cast to `dtype`.

    Parameters
    ----------
    block : Block
        Its branch says which matrices there are.
    depth, width : int
        Numbers of blocks, L, and of features, d.
    hidden : int, optional
        Number of hidden units, m; None means `width`.  A linear branch has m = d.
    init : str
        The standard deviation of an entry of a matrix with n_in rows and n_out columns:

        - lecun: sqrt(1 / n_in) (LeCun et al. 1998);
        - he: sqrt(2 / n_in) for the matrix that feeds the activation (the gate, if there is one), lecun for the
          others (He et al. 2015);
        - xavier: sqrt(2 / (n_in + n_out)) (Glorot & Bengio 2010);
        - orthogonal: uniform over matrices with orthonormal rows or columns, whichever are fewer, as the Q factor of
          a Gaussian matrix with the signs of R's diagonal moved into Q (Mezzadri 2007);
        - depth_scaled: lecun, the last matrix of each block times L^(-1/2) (Radford et al. 2019);
        - zero: lecun, the last matrix of each block 0;
        - fixup: he, with all but the last matrix times L^(-1/(2M - 2)) for M matrices a block, and the last 0
          (Zhang, Dauphin & Ma 2019).

        Matrices that end as 0 are drawn all the same, so the others do not depend on `init`.
    rng : numpy.random.Generator, int or SeedSequence, or a sequence of them
        A sequence gives a leading replicate axis, each replicate equal, bit for bit, to its own single call.
    dtype : dtype
        float32 or float64.

    Returns
    -------
    Weights
        up (..., L, d, m), and gate and down where the branch has them.

    Raises
    ------
    TypeError
        If an argument is of the wrong kind.
    ValueError
        If `init` is unknown, a size is negative or beyond any array, or a linear branch is given m other than d.
    """
    branch, depth, width, hidden, target = checked_sizes(block, depth, width, hidden, init, dtype)
    replicated = isinstance(rng, list | tuple | range) or (isinstance(rng, np.ndarray) and rng.ndim == 1)
    generators = [_generator(item) for item in rng] if replicated else [_generator(rng)]
    check_field_size(len(generators), depth, width, hidden, target)
    shapes = matrix_shapes(branch, width, hidden)
    drawn = {name: np.empty((len(generators), depth, *shape), target) for name, shape in shapes.items()}
    for replicate, generator in enumerate(generators):
        for layer in range(depth):
            for name, array in drawn.items():
                array[replicate, layer] = _draw(generator, init, name, shapes, depth)
    return Weights(**(drawn if replicated else {name: array[0].copy() for name, array in drawn.items()}))


def _generator(rng: object) -> np.random.Generator:
    if isinstance(rng, np.random.Generator):
        return rng
    if isinstance(rng, np.random.SeedSequence):
        return np.random.default_rng(rng)
    try:
        return np.random.default_rng(arguments.integer("rng", rng, minimum=0))
    except TypeError:
        raise TypeError(
            f"rng must be a numpy.random.Generator, an integer seed or a SeedSequence, or a sequence of them; "
            f"got {type(rng).__name__}"
        ) from None


def _draw(
    generator: np.random.Generator, init: str, name: str, shapes: Mapping[str, tuple[int, int]], depth: int
) -> Array:
    """Draw one matrix in float64 and scale it."""
    normal = generator.standard_normal(shapes[name])
    if init == "orthogonal":
        return _orthogonal(normal)
    deviation = standard_deviation(init, name, shapes, depth)
    return normal * deviation if deviation else np.zeros_like(normal)  # without zeros below 0


def _orthogonal(normal: Array) -> Array:
    if not normal.size:
        return normal
    tall = normal.shape[0] >= normal.shape[1]
    q, r = np.linalg.qr(normal if tall else normal.T)
    # LAPACK leaves the signs of R's diagonal free; without this factor Q would not be uniformly distributed.
    q = q * np.where(np.diagonal(r) < 0, -1.0, 1.0)
    return np.asarray(q if tall else q.T)


def checked_sizes(
    block: object, depth: object, width: object, hidden: object, init: object, dtype: npt.DTypeLike
) -> tuple[str, int, int, int, np.dtype[Any]]:
    """Check what `initialize` and `GeneratedWeights` share; return the branch, depth, width, hidden size and dtype."""
    if not isinstance(block, Block):
        raise TypeError(f"block must be a Block; got {type(block).__name__}")
    depth = arguments.integer("depth", depth, minimum=0)
    width = arguments.integer("width", width, minimum=0)
    hidden = width if hidden is None else arguments.integer("hidden", hidden, minimum=0)
    if block.branch == "linear" and hidden != width:
        raise ValueError(f"hidden={hidden} must equal width={width} for branch='linear'; leave it out")
    arguments.choice("init", init, INITIALIZERS, {"kaiming": "he", "glorot": "xavier", "rezero": "zero"})
    return block.branch, depth, width, hidden, supported_dtype("dtype", dtype)


def check_field_size(replicates: int, depth: int, width: int, hidden: int, dtype: np.dtype[Any]) -> None:
    """Refuse matrices beyond NumPy's limit, which counts an empty axis as 1; its own message names no argument."""
    size = dtype.itemsize * math.prod(max(n, 1) for n in (replicates, depth, width, hidden))
    if size > np.iinfo(np.intp).max:
        raise ValueError(
            f"depth={depth}, width={width}, hidden={hidden} ask for {size} bytes a field of the weights, "
            f"more than the {np.iinfo(np.intp).max} that an array may have"
        )


def matrix_shapes(branch: str, width: int, hidden: int) -> dict[str, tuple[int, int]]:
    """Return the shapes of the matrices of one block, in the order in which they are drawn."""
    return {name: (hidden, width) if name == "down" else (width, hidden) for name in BRANCH_MATRICES[branch]}


def standard_deviation(init: str, name: str, shapes: Mapping[str, tuple[int, int]], depth: int) -> float:
    """Return that of the entries of the matrix called `name`, of those of a block in order, in a stack of `depth`."""
    names = tuple(shapes)
    last, feeds_phi = name == names[-1], name == ("gate" if "gate" in shapes else "up")
    if last and init in ("zero", "fixup"):
        return 0.0
    fan_in, fan_out = shapes[name]
    variance = 1.0 / max(fan_in, 1)
    if init == "xavier":
        variance = 2.0 / max(fan_in + fan_out, 1)
    if init in ("he", "fixup") and feeds_phi:
        variance = 2.0 / max(fan_in, 1)
    deviation = math.sqrt(variance)
    # Powers by square roots alone, which are rounded the same way everywhere; those of libm depend on the processor.
    if init == "depth_scaled" and last:
        deviation /= math.sqrt(depth)
    if init == "fixup":
        root = math.sqrt(depth)
        deviation /= root if len(names) == 2 else math.sqrt(root)  # the (2M - 2)-th of L, M being 2 or 3
    return deviation
