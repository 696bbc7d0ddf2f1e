"""The weights of a stack."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from depthgauge._common import arguments
from depthgauge._common.arrays import (
    Array,
    broadcast_shapes,
    float_array,
    native,
    raw_array,
    require_dtype,
    supported_dtype,
)

# The last axes of each field after the layer axis: d is the width, m the hidden size.
_SHAPES = {
    "up": ("d", "m"),
    "down": ("m", "d"),
    "gate": ("d", "m"),
    "b_up": ("m",),
    "b_down": ("d",),
    "b_gate": ("m",),
    "pre_gain": ("d",),
    "pre_shift": ("d",),
    "output_gain": ("d",),
    "output_shift": ("d",),
    "post_gain": ("d",),
    "post_shift": ("d",),
}


@dataclass(frozen=True, eq=False, init=False, repr=False)
class Weights:
    """The weights of a stack of L blocks of width d and hidden size m.

    Every array may have leading axes before the layer axis: replicates (seeds, configurations).  They broadcast
    between fields, so a matrix for each seed goes with one bias for all.

    Parameters
    ----------
    up : array_like, shape (..., L, d, m)
        First matrices; rows of states are multiplied from the left, ``u @ up``.
    down : array_like, shape (..., L, m, d), optional
        Last matrices; absent for ``branch="linear"``.
    gate : array_like, shape (..., L, d, m), optional
        Gate matrices of ``branch="gated"``.
    b_up, b_gate : array_like, shape (..., L, m), optional
        Biases of the hidden units.
    b_down : array_like, shape (..., L, d), optional
        Biases of the branch.
    pre_gain, pre_shift, output_gain, output_shift, post_gain, post_shift : array_like, shape (..., L, d), optional
        Factors and offsets after each norm.
    copy : bool, optional
        As in `numpy.array`.  None keeps an array in native C order without copying, so that an in-place update is
        seen, and copies others once; True always copies; False raises where a copy is needed.

    Raises
    ------
    TypeError
        If a dtype is not float32 or float64, or two fields differ in it.
    ValueError
        If shapes disagree, or `copy` is False and a copy is needed.
    """

    up: Array
    down: Array | None
    gate: Array | None
    b_up: Array | None
    b_down: Array | None
    b_gate: Array | None
    pre_gain: Array | None
    pre_shift: Array | None
    output_gain: Array | None
    output_shift: Array | None
    post_gain: Array | None
    post_shift: Array | None

    def __init__(
        self,
        up: npt.ArrayLike,
        down: npt.ArrayLike | None = None,
        *,
        gate: npt.ArrayLike | None = None,
        b_up: npt.ArrayLike | None = None,
        b_down: npt.ArrayLike | None = None,
        b_gate: npt.ArrayLike | None = None,
        pre_gain: npt.ArrayLike | None = None,
        pre_shift: npt.ArrayLike | None = None,
        output_gain: npt.ArrayLike | None = None,
        output_shift: npt.ArrayLike | None = None,
        post_gain: npt.ArrayLike | None = None,
        post_shift: npt.ArrayLike | None = None,
        copy: bool | None = None,
    ) -> None:
        given = locals()
        for name in _SHAPES:
            value = given[name]
            array = None if value is None and name != "up" else _kept(name, value, copy)
            object.__setattr__(self, name, array)
        self._check_shapes()

    def _check_shapes(self) -> None:
        if self.up.ndim < 3:
            raise ValueError(f"up must have shape (..., L, d, m); got {self.up.shape}")
        sizes = {"L": self.up.shape[-3], "d": self.up.shape[-2], "m": self.up.shape[-1]}
        for name, array in self.items():
            require_dtype(name, array, self.dtype, "up")
            symbols = ("L", *_SHAPES[name])
            expected = tuple(sizes[symbol] for symbol in symbols)
            if array.shape[-len(symbols) :] != expected:
                raise ValueError(
                    f"{name} must have shape (..., {', '.join(symbols)}), which up of shape {self.up.shape} makes "
                    f"(..., {', '.join(map(str, expected))}); got {array.shape}"
                )
        leading = {name: leading_shape(name, array) for name, array in self.items()}
        try:
            broadcast_shapes(*leading.values())
        except ValueError:
            listing = ", ".join(f"{name} {shape}" for name, shape in leading.items())
            raise ValueError(f"the leading (replicate) axes of the weights do not broadcast: {listing}") from None

    @classmethod
    def from_linear(
        cls,
        up: npt.ArrayLike | Sequence[npt.ArrayLike],
        down: npt.ArrayLike | Sequence[npt.ArrayLike] | None = None,
        *,
        dtype: npt.DTypeLike | None = None,
        **fields: npt.ArrayLike | Sequence[npt.ArrayLike] | None,
    ) -> Weights:
        """Return the weights made of the matrices of linear layers, stored (out, in) as torch does.

        Parameters
        ----------
        up : array_like, shape (..., L, m, d), or a list of L arrays of shape (..., m, d)
            First matrices.
        down : array_like, shape (..., L, d, m), or a list of L arrays of shape (..., d, m), optional
            Last matrices.
        dtype : dtype, optional
            float32 or float64 to convert to, from any real dtype; None keeps what is given.
        **fields
            The other fields of `Weights`: `gate` like `up`; biases, gains and shifts as they are, one array or a list
            of one a layer.

        Returns
        -------
        Weights
            With transposed copies of the matrices.

        Raises
        ------
        TypeError, ValueError
            As for `Weights`.
        """
        target = None if dtype is None else supported_dtype("dtype", dtype)
        for name in fields:
            arguments.choice("field of Weights", name, tuple(_SHAPES))
        arrays: dict[str, Array] = {}
        for name, value in {"up": up, "down": down, **fields}.items():
            if value is None and name != "up":
                continue
            array = _stacked(name, value, len(_SHAPES[name]), target)
            if len(_SHAPES[name]) == 2:
                if array.ndim < 3:
                    raise ValueError(f"{name} must have shape (..., L, out, in); got {array.shape}")
                array = np.swapaxes(array, -1, -2)
            arrays[name] = np.array(array, order="C")
        return cls(**arrays)  # type: ignore[arg-type]  # keys were checked above

    @property
    def depth(self) -> int:
        """The number of blocks, L."""
        return int(self.up.shape[-3])

    @property
    def width(self) -> int:
        """The number of features of a state, d."""
        return int(self.up.shape[-2])

    @property
    def hidden(self) -> int:
        """The number of hidden units, m."""
        return int(self.up.shape[-1])

    @property
    def dtype(self) -> np.dtype[Any]:
        """float32 or float64, the dtype of every field."""
        return self.up.dtype

    @property
    def replicates(self) -> tuple[int, ...]:
        """The leading axes of all fields, broadcast; () for a single stack."""
        return broadcast_shapes(*(leading_shape(name, array) for name, array in self.items()))

    def items(self) -> Iterator[tuple[str, Array]]:
        """Iterate over the names and arrays of the fields present, matrices first."""
        for name in _SHAPES:
            array = getattr(self, name)
            if array is not None:
                yield name, array

    def __getitem__(self, layers: slice) -> Weights:
        """Return the weights of a slice of the layers: a view where that is in C order, else a copy."""
        if not isinstance(layers, slice):
            raise TypeError(f"weights are indexed by a slice of layers, as weights[:k]; got {layers!r}")
        return Weights(
            **{name: array[(..., layers, *_whole(name))] for name, array in self.items()}  # type: ignore[arg-type]
        )

    def as_replicates(self) -> Weights:
        """Return the weights with layers moved to the replicate axes, (..., L, 1, d, m): each block its own stack.

        No data is copied.
        """
        return Weights(
            **{name: array[(..., None, *_whole(name))] for name, array in self.items()}  # type: ignore[arg-type]
        )

    def __repr__(self) -> str:
        extra = [name for name, _ in self.items() if name != "up"]
        sizes = f"depth={self.depth}, width={self.width}, hidden={self.hidden}, dtype={self.dtype}"
        replicates = f", replicates={self.replicates}" if self.replicates else ""
        return f"Weights({sizes}{replicates}, fields=up{''.join(', ' + name for name in extra)})"


def leading_shape(name: str, array: Array) -> tuple[int, ...]:
    """Return the replicate axes of the field called `name`."""
    return array.shape[: array.ndim - 1 - len(_SHAPES[name])]


def _whole(name: str) -> tuple[slice, ...]:
    return (slice(None),) * len(_SHAPES[name])


def _kept(name: str, value: object, copy: bool | None) -> Array:
    if copy is not None:
        arguments.flag("copy", copy)
    given = raw_array(name, value)
    array = float_array(name, given)
    if copy:
        return np.array(array, order="C", copy=True)
    kept = np.ascontiguousarray(array) if array.ndim else array
    # A list has no memory to share, so reading it is not the copy that copy=False forbids.
    if copy is False and kept is not given and not np.shares_memory(kept, given) and kept.size:
        raise ValueError(f"{name} is not in native C order, so it needs a copy; pass copy=None to allow it")
    return kept


def _stacked(name: str, value: object, item_axes: int, target: np.dtype[Any] | None) -> Array:
    """Return one array from an array or a list of one a layer, with the layer axis in its place."""

    def read(item_name: str, item: object) -> Array:
        if target is None:
            return float_array(item_name, item)
        array = native(raw_array(item_name, item))
        if array.dtype.kind not in "fiu" and array.dtype.name != "bfloat16":
            raise TypeError(f"{item_name} has dtype {array.dtype}, which is not real numbers")
        return array.astype(target)

    if not isinstance(value, list | tuple):
        return read(name, value)
    items = [read(f"{name}[{layer}]", item) for layer, item in enumerate(value)]
    if not items:
        raise ValueError(f"{name} is an empty list, which has no shape; pass an array with L = 0 instead")
    for layer, item in enumerate(items):
        require_dtype(f"{name}[{layer}]", item, items[0].dtype, f"{name}[0]")
        if item.shape != items[0].shape or item.ndim < item_axes:
            raise ValueError(
                f"{name} must list one array a layer, all of one shape with at least {item_axes} axes; "
                f"{name}[0] has shape {items[0].shape}, {name}[{layer}] {item.shape}"
            )
    return np.stack(items, axis=-1 - item_axes)
