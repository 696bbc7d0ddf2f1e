"""What every public function returns: shapes, dtypes, memory, pickles, and no call left out."""

from __future__ import annotations

import dataclasses
import io
import pickle
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from calls import Call, Sizes, arrays_in
from problems import Array, assert_same_bits
from registry import CALLS, EXCEPTIONS, IN_DTYPE, OTHER_DTYPES

import depthgauge as dg

every_call = pytest.mark.parametrize("call", CALLS, ids=lambda call: call.name)

EMPTY = [
    Sizes(depth=0),
    Sizes(width=0),
    Sizes(hidden=0),
    Sizes(batch=0),
    Sizes(depth=0, batch=0),
    Sizes(width=0, hidden=0, batch=0),
    Sizes(replicates=(0,)),
    Sizes(replicates=(2, 0)),
]


def results_in(found: Any) -> Iterator[Any]:
    """Iterate over the results proper, where a call's are in a dict."""
    if isinstance(found, dict):
        for part in found.values():
            yield from results_in(part)
    else:
        yield found


class Recorder(pickle.Unpickler):
    """Notes where a pickle says that its classes are."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file)
        self.classes: set[tuple[str, str]] = set()

    def find_class(self, module: str, name: str) -> Any:
        self.classes.add((module, name))
        return super().find_class(module, name)


def wanted_dtype(name: str, dtype: np.dtype[Any]) -> np.dtype[Any]:
    last = name.split(".")[-1]
    if last in IN_DTYPE and not name.startswith("weight_rms"):
        return dtype
    return np.dtype(OTHER_DTYPES.get(last, np.float64))


def check_arrays(call: Call, sizes: Sizes, dtype: np.dtype[Any], found: dict[str, Array]) -> None:
    absent = call.results.keys() - found.keys()
    assert not absent
    for name, axes in call.results.items():
        array, shape = found[name], sizes.shape(axes)
        assert array.ndim == len(shape), name
        assert all(want in (None, got) for want, got in zip(shape, array.shape, strict=True)), (name, array.shape)
        assert array.dtype == wanted_dtype(name, dtype) or (name == "method" and array.dtype.kind == "U"), name


def sizes_for(call: Call, sizes: Sequence[Sizes]) -> list[Sizes]:
    """Return those that the call can have: seeds have one axis."""
    return [size for size in sizes if call.arrays or len(size.replicates) < 2] if call.sized else []


@every_call
def test_shapes_dtypes_and_memory(call: Call, dtype: np.dtype[Any], backend: str) -> None:
    """Array results own their memory, are writable and in C order, and share nothing with arguments or each other."""
    for sizes in sizes_for(call, [Sizes(), Sizes(replicates=(2,)), Sizes(replicates=(2, 1))]):
        case = call.case(sizes, dtype)
        found = case.found(backend=backend)
        check_arrays(call, sizes, dtype, found)
        others = list(case.arrays.values())
        for name, array in found.items():
            assert array.flags.writeable, name
            assert array.flags.c_contiguous, name
            if not call.keeps_inputs:
                assert array.flags.owndata, name
                assert not any(np.shares_memory(array, other) for other in others), name
            others.append(array)


@every_call
def test_empty_axes(call: Call, dtype: np.dtype[Any], backend: str) -> None:
    for sizes in sizes_for(call, EMPTY):
        with np.errstate(all="raise"):
            found = call.case(sizes, dtype).run(backend=backend)
            check_arrays(call, sizes, dtype, dict(arrays_in(found)))
            for result in results_in(found):
                assert repr(result)


@every_call
def test_results_are_plain_frozen_and_known_by_their_identity(call: Call, backend: str) -> None:
    case = call.case(Sizes(), np.dtype(np.float64))
    pairs = zip(*(results_in(case.run(backend=backend)) for _ in range(2)), strict=True)
    for result, twin in pairs:
        if not type(result).__module__.startswith("depthgauge"):
            continue
        assert type(result).__module__ == "depthgauge"
        assert type(result).__name__ in dg.__all__
        assert "\n" not in repr(result)
        assert repr(result).startswith(type(result).__name__)
        assert result == result
        assert result != twin
        if not dataclasses.is_dataclass(result):
            continue
        assert hash(result) != hash(twin)
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(result, dataclasses.fields(result)[0].name, None)
        if hasattr(result, "to_dict"):
            assert all(not name.startswith("_") for name in result.to_dict())


@every_call
def test_results_pickle_and_name_public_classes_in_depthgauge(call: Call, backend: str) -> None:
    found = call.case(Sizes(replicates=(2,)), np.dtype(np.float32)).run(backend=backend)
    text = pickle.dumps(found)
    want = dict(arrays_in(found))
    got = dict(arrays_in(pickle.loads(text)))
    assert got.keys() == want.keys()
    for name, array in want.items():
        assert_same_bits(got[name], array, name)
    recorder = Recorder(io.BytesIO(text))
    recorder.load()
    assert all(module == "depthgauge" for module, name in recorder.classes if name in dg.__all__)


def test_every_public_name_is_registered() -> None:
    returned = {
        type(result).__name__
        for call in CALLS
        for result in results_in(call.case(Sizes(), np.dtype(np.float64)).run(backend="reference"))
    }
    functions = {call.function for call in CALLS}
    assert functions <= set(dg.__all__)
    assert not EXCEPTIONS.keys() & (functions | returned)
    assert set(dg.__all__) - functions - returned == EXCEPTIONS.keys()
