"""How the spread of a Jacobian's singular values grows with depth, of one block and of many on the same weights."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from depthgauge._common import arguments
from depthgauge._common.arrays import Array, Indices
from depthgauge._common.results import shaped
from depthgauge.backends.protocol import SingularArrays
from depthgauge.equation import Block
from depthgauge.jacobians.propagation import Propagation, depth_list
from depthgauge.spectra.spreads import Spread, spread_of_logs, spread_of_values
from depthgauge.stacks.binding import AnyWeights, check_kinds, layer_scale

# A product resolves its singular values to this many d * eps of the largest; "auto" trusts none below.
_RESOLVED = 4.0
# What `rank_grid` holds at once is chosen to fit in so many bytes of Jacobians.
_MEMORY = 256 << 20


@dataclass(frozen=True, eq=False, repr=False)
class RankProfile(Spread):
    """The spread of the Jacobians of a stack after numbers of its blocks, from `rank_profile`.

    A `Spread` of shape (R, D, B): R stands for the replicate axes (none for a single stack), D for depths, B for
    examples.  `singular_values` and `log_singular_values` have shape (R, D, B, d).

    Attributes
    ----------
    depths : ndarray of int64, shape (D,)
        How many blocks have been passed; 0 is the input, whose Jacobian is the identity.
    method : ndarray of str, shape (R, D, B)
        "direct" or "graded", how each entry was computed.
    """

    depths: Indices
    method: npt.NDArray[np.str_]


@dataclass(frozen=True, eq=False, repr=False)
class RankGrid(Spread):
    """The spread of the Jacobians of K blocks on the same weights, from `rank_grid`.

    A `Spread` of shape (K, R, D, B), index k for ``blocks[k]``; the other letters are those of `RankProfile`.

    Attributes
    ----------
    blocks : tuple of Block, of K
    depths : ndarray of int64, shape (D,)
        How many blocks of each stack have been passed.
    """

    blocks: tuple[Block, ...]
    depths: Indices

    def to_dict(self) -> dict[str, Any]:
        """Return the blocks (as plain data) and measures by name; arrays are not copied."""
        return super().to_dict() | {"blocks": [block.to_dict() for block in self.blocks]}


def rank_profile(
    block: Block,
    weights: AnyWeights,
    x: npt.ArrayLike,
    *,
    depths: Sequence[int] | None = None,
    method: Literal["auto", "direct", "graded"] = "auto",
    backend: str | None = None,
    threads: int | None = None,
) -> RankProfile:
    """Measure how the effective rank of a stack's Jacobian, and the rest of its spread, changes with depth.

    Parameters
    ----------
    block, weights, x
        As for `jacobian`.
    depths : sequence of int, optional
        After how many blocks, each from 0 (the identity) to L, in any order.  None means all, 0 to L.
    method : {"auto", "direct", "graded"}
        "direct" multiplies the Jacobian out and takes its singular values, each right to a few d eps of the largest,
        with d features and eps that of the dtype: what is smaller than that is not seen.  "graded" keeps the product
        of block Jacobians factored, as `log_singular_values` does, and finds all values, however far apart; -inf for
        those that are lost exactly.  It takes several times as long.  "auto" is direct for each example until its
        smallest value is below 4 d eps of the largest at one of `depths`, and graded from there on.
    backend, threads
        As for `jacobian`.

    Returns
    -------
    RankProfile
        Of shape (R, D, B).

    Raises
    ------
    TypeError
        If a dtype is not float32 or float64, dtypes differ, or an argument is of the wrong kind.
    ValueError
        If shapes disagree, the weights lack what the branch needs, or an option or depth is unknown.
    """
    chosen = _method(method)
    run = Propagation(block, weights, x, backend, threads)
    wanted = depth_list(depths, weights.depth)
    visited = sorted(set(wanted))
    order = np.searchsorted(visited, wanted)

    shape = (run.count, len(visited), run.batch)
    found = _Found.nothing(shape, run.width, weights.dtype)
    graded = np.full(shape, chosen == "graded")
    if chosen != "graded":
        _fill_direct(found, graded if chosen == "auto" else None, run, visited)
    spread = found.spread(shape)
    if np.any(graded):
        _fill_graded(spread, graded, run, visited)
    names = np.where(graded, "graded", "direct")
    fields = {
        name: shaped(array[:, order], (*run.replicates, len(wanted), *array.shape[2:]))
        for name, array in (spread.to_dict() | {"method": names}).items()
    }
    return RankProfile(**fields, depths=np.array(wanted, np.int64))


def rank_grid(
    blocks: Iterable[Block],
    weights: AnyWeights,
    x: npt.ArrayLike,
    *,
    depths: Sequence[int] | None = None,
    backend: str | None = None,
    threads: int | None = None,
) -> RankGrid:
    """Measure the spread of the Jacobians of many blocks on one set of weights, so that only the blocks differ.

    Each layer's weights are made and read once for many blocks.  The results are those of
    ``rank_profile(..., method="direct")`` of each block.

    Parameters
    ----------
    blocks : iterable of Block
        K blocks of the same kind of branch; they may differ in everything else.
    weights, x, depths, backend, threads
        As for `rank_profile`.

    Returns
    -------
    RankGrid
        Of shape (K, R, D, B).

    Raises
    ------
    TypeError, ValueError
        As for `rank_profile`; the message says which of `blocks` the weights do not fit.
    """
    members = _blocks(blocks)
    if not members:
        raise ValueError("blocks is empty, which leaves nothing to measure; give at least one Block")
    check_kinds(members[0], weights)
    for index, block in enumerate(members):
        _check_member(index, block, members[0], weights)
    run = Propagation(members[0], weights, x, backend, threads)
    wanted = depth_list(depths, weights.depth)
    visited = sorted(set(wanted))
    order = np.searchsorted(visited, wanted)

    shape = (len(members), run.count, len(visited), run.batch)
    found = _Found.nothing(shape, run.width, weights.dtype)
    each = run.count * run.batch * run.width**2 * weights.dtype.itemsize
    at_once = max(_MEMORY // max(each, 1), 1)
    for first in range(0, len(members), at_once):
        some = members[first : first + at_once]
        accumulators = [run.accumulator() for _ in some]
        for depth in run.stops(visited, [[one] for one in accumulators], blocks=some):
            for index, accumulator in enumerate(accumulators):
                found.put((first + index, slice(None), visited.index(depth)), accumulator.singular_values())
    spread = found.spread(shape)
    named = (len(members), *run.replicates, len(wanted))
    fields = {name: shaped(array[:, :, order], (*named, *array.shape[3:])) for name, array in spread.to_dict().items()}
    return RankGrid(**fields, blocks=members, depths=np.array(wanted, np.int64))


@dataclass(frozen=True, eq=False)
class _Found:
    """Singular values collected from accumulators; axes (..., R, D, B)."""

    values: Array  # (..., R, D, B, d)
    exponents: Indices
    converged: npt.NDArray[np.bool_]

    @classmethod
    def nothing(cls, shape: tuple[int, ...], width: int, dtype: np.dtype[Any]) -> _Found:
        return cls(np.zeros((*shape, width), dtype), np.zeros(shape, np.int64), np.ones(shape, np.bool_))

    def put(self, place: tuple[int | slice, ...], found: SingularArrays) -> Array:
        """Put values at an index that leaves the axes (R, B); return them, (R, B, d)."""
        at = self.values[place]
        at[...] = found.values.reshape(at.shape)
        self.exponents[place] = found.exponent.reshape(at.shape[:-1])
        self.converged[place] = found.converged.reshape(at.shape[:-1])
        return at

    def spread(self, shape: tuple[int, ...]) -> Spread:
        """Return the Spread; `values` are overwritten."""
        flat = math.prod(shape)
        found = SingularArrays(
            self.values.reshape(flat, self.values.shape[-1]), self.exponents.reshape(flat), self.converged.reshape(flat)
        )
        return spread_of_values(found, shape)


def _unresolved(values: Array) -> npt.NDArray[np.bool_]:
    """Return where the smallest of values (..., d) is below what a product resolves."""
    width = values.shape[-1]
    if not width:
        return np.zeros(values.shape[:-1], np.bool_)
    return np.asarray(values[..., -1] < _RESOLVED * width * np.finfo(values.dtype).eps * values[..., 0])


def _fill_direct(found: _Found, graded: npt.NDArray[np.bool_] | None, run: Propagation, depths: list[int]) -> None:
    """Fill `found`, and set where in `graded`, (R, D, B) if any, it does not suffice, from the first such depth on."""
    accumulator = run.accumulator()
    for place, _ in enumerate(run.stops(depths, [[accumulator]])):
        values = found.put((slice(None), place), accumulator.singular_values())
        if graded is None:
            continue
        graded[:, place] = graded[:, max(place - 1, 0)] | _unresolved(values)
        if np.all(graded[:, place]):
            graded[:, place:] = True
            return


def _fill_graded(spread: Spread, graded: npt.NDArray[np.bool_], run: Propagation, depths: list[int]) -> None:
    """Overwrite, in arrays (R, D, B) of `spread`, the entries chosen with those of graded products."""
    examples = np.any(graded, axis=(0, 1))
    accumulator = run.graded_accumulator(examples)
    at_depths = [depth for place, depth in enumerate(depths) if np.any(graded[:, place])]
    for depth in run.stops(at_depths, [[accumulator]], examples=examples):
        chosen = graded[:, depths.index(depth)]
        logs = accumulator.log_singular_values()[chosen[:, examples].flatten()]
        part = spread_of_logs(logs, spread.singular_values.dtype, (len(logs),))
        for field in dataclasses.fields(part):
            getattr(spread, field.name)[:, depths.index(depth)][chosen] = getattr(part, field.name)


def _method(value: object) -> str:
    """Return the option `method`, checked."""
    if isinstance(value, str) and value == "naive":  # the word for "direct" in version 0.1
        return "direct"
    return arguments.choice("method", value, ("auto", "direct", "graded"))


def _blocks(blocks: object) -> tuple[Block, ...]:
    if isinstance(blocks, Block) or not isinstance(blocks, Iterable):
        raise TypeError(f"blocks must be a sequence of Block; got {type(blocks).__name__}")
    return tuple(arguments.instance(f"blocks[{index}]", block, Block) for index, block in enumerate(blocks))


def _check_member(index: int, block: Block, first: Block, weights: AnyWeights) -> None:
    """Check that weights that have what the branch of `first` needs serve `block`, too."""
    if block.branch != first.branch:
        raise ValueError(
            f"blocks[{index}] has branch={block.branch!r}, but blocks[0] has {first.branch!r}, and one set of weights "
            "serves one kind of branch; call rank_grid once for each"
        )
    try:
        for name in ("branch_scale", "skip_scale"):
            layer_scale(name, block, weights)
    except ValueError as error:
        raise ValueError(f"blocks[{index}]: {error}") from None
