from collections.abc import Mapping, Sequence
from typing import Any, SupportsIndex

import numpy as np
import numpy.typing as npt

_Dict = dict[str, Any]
_Array = npt.NDArray[Any]
_Indices = npt.NDArray[np.int64]
_Flags = npt.NDArray[np.bool_]

__version__: str

def build_info() -> _Dict: ...
def choose_target(forced: str, /) -> str: ...
def empty(shape: tuple[int, ...], dtype: np.dtype[Any], /) -> npt.NDArray[Any]: ...
def multiply_adds(single: bool, threads: int, target: str = "") -> float: ...

class Stack_float32:
    def __init__(
        self,
        block: object,
        depth: int,
        width: int,
        hidden: int,
        replicates: tuple[int, ...],
        set_of: _Indices,
        sets: int,
        branch_scale: _Array,
        skip_scale: _Array,
        parameters: Mapping[str, tuple[_Array, _Indices]],
    ) -> None: ...
    def forward(
        self,
        x: _Array,
        x_of: _Indices,
        keep: str,
        quantiles: Sequence[float],
        cosine: bool,
        target: str,
        threads: int,
        /,
    ) -> tuple[_Dict, Tape_float32 | None]: ...
    def vjp(
        self,
        tape: Tape_float32,
        leading: Sequence[int],
        cotangent: _Array,
        gradients: str,
        quantiles: Sequence[float],
        target: str,
        threads: int,
        /,
    ) -> _Dict: ...
    def jvp(
        self, tape: Tape_float32, leading: Sequence[int], tangent: _Array, target: str, threads: int, /
    ) -> _Dict: ...

class Tape_float32:
    @property
    def nbytes(self) -> int: ...
    def of_copies(self, count: int, /) -> Tape_float32: ...
    def states(self) -> _Array: ...
    def __reduce_ex__(self, protocol: SupportsIndex, /) -> tuple[Any, ...]: ...

def restore_tape_float32(state: tuple[Any, ...], /) -> Tape_float32: ...

class Stack_float64:
    def __init__(
        self,
        block: object,
        depth: int,
        width: int,
        hidden: int,
        replicates: tuple[int, ...],
        set_of: _Indices,
        sets: int,
        branch_scale: _Array,
        skip_scale: _Array,
        parameters: Mapping[str, tuple[_Array, _Indices]],
    ) -> None: ...
    def forward(
        self,
        x: _Array,
        x_of: _Indices,
        keep: str,
        quantiles: Sequence[float],
        cosine: bool,
        target: str,
        threads: int,
        /,
    ) -> tuple[_Dict, Tape_float64 | None]: ...
    def vjp(
        self,
        tape: Tape_float64,
        leading: Sequence[int],
        cotangent: _Array,
        gradients: str,
        quantiles: Sequence[float],
        target: str,
        threads: int,
        /,
    ) -> _Dict: ...
    def jvp(
        self, tape: Tape_float64, leading: Sequence[int], tangent: _Array, target: str, threads: int, /
    ) -> _Dict: ...

class Tape_float64:
    @property
    def nbytes(self) -> int: ...
    def of_copies(self, count: int, /) -> Tape_float64: ...
    def states(self) -> _Array: ...
    def __reduce_ex__(self, protocol: SupportsIndex, /) -> tuple[Any, ...]: ...

def restore_tape_float64(state: tuple[Any, ...], /) -> Tape_float64: ...

class JacobianAccumulator_float32:
    def __init__(self, target: str, width: int, count: int, parts: int, orders: bool, /) -> None: ...
    @property
    def passed(self) -> int: ...
    def copy(self, matrices: _Array, exponents: _Indices, target: str, threads: int, /) -> None: ...
    def singular_values(
        self, values: _Array, exponents: _Indices, converged: _Flags, target: str, threads: int, /
    ) -> None: ...
    def squares(self, branch: _Array, post: _Array, /) -> None: ...

class GradedAccumulator_float32:
    def __init__(self, target: str, width: int, hidden: int, count: int, /) -> None: ...
    def log_singular_values(self, logs: _Array, target: str, threads: int, /) -> None: ...

class JacobianAccumulator_float64:
    def __init__(self, target: str, width: int, count: int, parts: int, orders: bool, /) -> None: ...
    @property
    def passed(self) -> int: ...
    def copy(self, matrices: _Array, exponents: _Indices, target: str, threads: int, /) -> None: ...
    def singular_values(
        self, values: _Array, exponents: _Indices, converged: _Flags, target: str, threads: int, /
    ) -> None: ...
    def squares(self, branch: _Array, post: _Array, /) -> None: ...

class GradedAccumulator_float64:
    def __init__(self, target: str, width: int, hidden: int, count: int, /) -> None: ...
    def log_singular_values(self, logs: _Array, target: str, threads: int, /) -> None: ...

def propagate_float32(
    stacks: Sequence[Stack_float32],
    examples: int,
    states: Sequence[_Array],
    accumulators: Sequence[Sequence[JacobianAccumulator_float32]] | Sequence[Sequence[GradedAccumulator_float32]],
    first: int,
    blocks: int,
    target: str,
    threads: int,
    /,
) -> None: ...
def propagate_float64(
    stacks: Sequence[Stack_float64],
    examples: int,
    states: Sequence[_Array],
    accumulators: Sequence[Sequence[JacobianAccumulator_float64]] | Sequence[Sequence[GradedAccumulator_float64]],
    first: int,
    blocks: int,
    target: str,
    threads: int,
    /,
) -> None: ...
def singular_values_float32(
    a: _Array, values: _Array, exponent: _Indices, converged: _Flags, target: str, threads: int, /
) -> None: ...
def singular_values_float64(
    a: _Array, values: _Array, exponent: _Indices, converged: _Flags, target: str, threads: int, /
) -> None: ...
def log_singular_values_float32(
    factors: list[_Array], prefixes: bool, logs: _Array, target: str, threads: int, /
) -> None: ...
def log_singular_values_float64(
    factors: list[_Array], prefixes: bool, logs: _Array, target: str, threads: int, /
) -> None: ...
def relative_singular_values_float32(matrices: _Array, values: _Array, target: str, threads: int, /) -> None: ...
def relative_singular_values_float64(matrices: _Array, values: _Array, target: str, threads: int, /) -> None: ...
def normals_float32(
    out: _Array,
    seeds: npt.NDArray[np.uint64],
    first_layer: int,
    matrix: int,
    deviation: float,
    target: str,
    threads: int,
    /,
) -> None: ...
def normals_float64(
    out: _Array,
    seeds: npt.NDArray[np.uint64],
    first_layer: int,
    matrix: int,
    deviation: float,
    target: str,
    threads: int,
    /,
) -> None: ...
