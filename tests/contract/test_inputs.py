"""How every public function reads its arguments: any layout and owner, two dtypes, errors that name what is wrong."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from calls import FIELDS, Call, Case, Sizes
from layouts import BAD_ARRAYS, LAYOUTS, Capsule, Exporter
from problems import Array, assert_close, assert_same_bits
from registry import CALLS

calls_with_arrays = pytest.mark.parametrize("call", [call for call in CALLS if call.arrays], ids=lambda call: call.name)
calls_with_options = pytest.mark.parametrize(
    "call", [call for call in CALLS if call.takes_options], ids=lambda call: call.name
)


def same(call: Call, got: Case, want: dict[str, Array], backend: str, what: str) -> None:
    found = got.found(backend=backend)
    assert found.keys() == want.keys()
    for name, array in want.items():
        if call.exact:
            assert_same_bits(found[name], array, f"{what}: {name}")
        else:
            assert_close(found[name], array, 1e3 * float(np.finfo(got.dtype).eps), what=f"{what}: {name}")


def relaid(case: Case, change: Any) -> Iterator[tuple[str, Case]]:
    """Iterate over the case with all fields of the weights changed, then with one more of the other arrays each."""
    fields = {name: change(array) for name, array in case.arrays.items() if name in FIELDS}
    if fields:
        yield "weights", case.replace(**fields)
    for name, array in case.arrays.items():
        if name not in FIELDS:
            yield name, case.replace(**{name: change(array)})


@calls_with_arrays
@pytest.mark.filterwarnings("ignore:the matrix subclass")
def test_any_layout_gives_what_a_contiguous_copy_gives(call: Call, dtype: np.dtype[Any], backend: str) -> None:
    case = call.case(Sizes(2, 4, 5, 2, (2,)), dtype)
    want = case.found(backend=backend)
    for layout, change in LAYOUTS.items():
        for name, changed in relaid(case, change):
            same(call, changed, want, backend, f"{layout} {name}")


@calls_with_arrays
def test_arrays_that_repeat_one_row_are_read(call: Call, backend: str) -> None:
    case = call.case(Sizes(2, 4, 5, 2), np.dtype(np.float64))
    for name, array in case.arrays.items():
        repeated = np.broadcast_to(array[..., :1, :], array.shape)
        want = case.replace(**{name: repeated.copy()}).found(backend=backend)
        same(call, case.replace(**{name: repeated}), want, backend, name)


@calls_with_arrays
def test_objects_of_other_libraries_and_lists_are_read(call: Call, backend: str) -> None:
    case = call.case(Sizes(), np.dtype(np.float64))
    want = case.found(backend=backend)
    owners: list[Any] = [Exporter, Capsule] + [np.ndarray.tolist] * call.lists
    for owner in owners:
        for name, changed in relaid(case, owner):
            same(call, changed, want, backend, f"{owner.__name__} of {name}")


@calls_with_arrays
def test_torch_tensors_are_read_and_gradients_refused(call: Call, backend: str) -> None:
    torch = pytest.importorskip("torch")
    case = call.case(Sizes(), np.dtype(np.float64))
    want = case.found(backend=backend)
    for name, changed in relaid(case, lambda a: torch.from_numpy(a.copy()).mT.contiguous().mT):
        same(call, changed, want, backend, name)
    for name in case.arrays:
        tensor = torch.from_numpy(case[name].copy())
        message = rf"^{re.escape(name)} is a tensor that requires grad; pass {re.escape(name)}\.detach"
        with pytest.raises(TypeError, match=message):
            case.replace(**{name: tensor.requires_grad_()}).run(backend=backend)
        for other in (tensor.detach().bfloat16(), tensor.detach().to("meta")):
            with pytest.raises(TypeError, match=rf"^{re.escape(name)}"):
                case.replace(**{name: other}).run(backend=backend)


@calls_with_arrays
def test_arguments_are_never_written(call: Call, dtype: np.dtype[Any], backend: str) -> None:
    case = call.case(Sizes(replicates=(2,)), dtype)
    copies = {name: array.copy() for name, array in case.arrays.items()}
    for array in case.arrays.values():
        array.flags.writeable = False
    case.run(backend=backend)
    for name, array in copies.items():
        assert_same_bits(case[name], array, name)


@calls_with_arrays
def test_what_is_not_float_is_refused_by_name(call: Call) -> None:
    case = call.case(Sizes(), np.dtype(np.float64))
    for name in case.arrays:
        for value, message in BAD_ARRAYS:
            if value is None and name not in ("up", "x", "fwd_or_x", "cotangent", "tangent"):
                continue  # stands for an argument that is not given
            several = isinstance(value, list) and not call.lists  # arrays, whose shapes may be what is refused
            kinds = (TypeError, ValueError) if several else (TypeError,)
            with pytest.raises(kinds, match=rf"^{re.escape(name)}(?!\w)") as caught:
                case.replace(**{name: value}).run(backend="reference")
            if message != "x" and not several:
                assert message in str(caught.value), name


@calls_with_arrays
def test_dtypes_never_mix(call: Call) -> None:
    case = call.case(Sizes(), np.dtype(np.float64))
    if len(case.arrays) == 1:
        pytest.skip("takes one array")
    for name, array in case.arrays.items():
        with pytest.raises(TypeError, match=r" is float(32|64) but .* is float(32|64); convert one of them") as caught:
            case.replace(**{name: array.astype(np.float32)}).run(backend="reference")
        assert name in str(caught.value) or name in ("up", "factors[0]", "matrices[0]")  # which the others must match


@calls_with_arrays
def test_wrong_shapes_name_the_argument(call: Call) -> None:
    case = call.case(Sizes(), np.dtype(np.float64))
    stack = any(name in FIELDS for name in case.arrays)
    for name, array in case.arrays.items():
        wrong = [array[(0,) * array.ndim]]
        if stack and name != "up" and call.arrays[name][-1] in "dm":
            wrong += [array[..., :-1], np.append(array, array, axis=-1), array[..., 0]]
        for value in wrong:
            with pytest.raises(ValueError, match=rf"^{re.escape(name)} must "):
                case.replace(**{name: value}).run(backend="reference")


@calls_with_options
@pytest.mark.parametrize(
    ("options", "kind", "message"),
    [
        ({"threads": 0}, ValueError, "threads=0 must be an integer >= 1"),
        ({"threads": 1.0}, TypeError, "threads must be an integer"),
        ({"threads": True}, TypeError, "threads must be an integer"),
        ({"backend": "cuda"}, ValueError, "backend='cuda' is not a backend; choose one of native, reference"),
        ({"backend": 1}, ValueError, "backend=1 is not a backend"),
    ],
)
def test_backends_and_threads_are_checked(
    call: Call, options: dict[str, Any], kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind, match=f"^{message}"):
        call.case(Sizes(), np.dtype(np.float64)).run(**({"backend": "reference"} | options))
