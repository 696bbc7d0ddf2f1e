from typing import Any

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
def forward_float32(
    problem: _Dict, x: _Array, x_of: _Indices, keep: str, results: _Dict, target: str, threads: int, /
) -> dict[str, _Array] | None: ...
def forward_float64(
    problem: _Dict, x: _Array, x_of: _Indices, keep: str, results: _Dict, target: str, threads: int, /
) -> dict[str, _Array] | None: ...
def vjp_float32(
    problem: _Dict, tape: _Dict, cotangent: _Array, results: _Dict, target: str, threads: int, /
) -> None: ...
def vjp_float64(
    problem: _Dict, tape: _Dict, cotangent: _Array, results: _Dict, target: str, threads: int, /
) -> None: ...
def jvp_float32(
    problem: _Dict, tape: _Dict, tangent: _Array, results: _Dict, target: str, threads: int, /
) -> None: ...
def jvp_float64(
    problem: _Dict, tape: _Dict, tangent: _Array, results: _Dict, target: str, threads: int, /
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
