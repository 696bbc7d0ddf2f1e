"""Spreads as results, of ragged lists, and of what is refused."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from exact_svd import gaussians
from layouts import BAD_ARRAYS, Capsule, Exporter
from problems import assert_same_bits

import depthgauge as dg


def test_measures_of_one_matrix_are_scalars(backend: str) -> None:
    s = dg.spread([[3.0, 0.0], [0.0, 4.0]], backend=backend)
    assert isinstance(s.effective_rank, float)
    assert isinstance(s.condition, float)
    assert s.shape == ()
    assert s.full_rank == 2
    assert s.converged


def test_spread_is_plain_data(backend: str) -> None:
    a = gaussians(6, 5, 4, np.float32).reshape(2, 3, 5, 4)
    a[0, 1, 0, 0] = np.nan
    s = dg.spread(a, backend=backend)
    text = repr(s)
    assert text.startswith("Spread(shape=(2, 3), singular_values=float32[2, 3, 4], effective_rank=[")
    assert "\n" not in text
    assert repr(dg.spread(a[0, 0], backend=backend)).startswith("Spread(shape=(), singular_values=float32[4]")
    copy = pickle.loads(pickle.dumps(s))
    assert list(s.to_dict()) == list(copy.to_dict())
    for name, array in s.to_dict().items():
        assert_same_bits(getattr(copy, name), array, name)
    with pytest.raises(AttributeError):
        s.condition = s.log_max  # type: ignore[misc]
    assert s != copy


RAGGED = [(4, 4), (3, 5), (5, 3), (1, 1), (0, 2), (4, 4), (30, 7), (7, 30), (7, 30), (33, 33)]


def test_ragged_members_are_what_they_are_alone(dtype: np.dtype[Any], backend: str) -> None:
    rng = np.random.default_rng(5)
    matrices = [rng.standard_normal(shape).astype(dtype) for shape in RAGGED]
    matrices[5][1, 1] = np.nan
    matrices[2] = np.asfortranarray(matrices[2])
    matrices[6] = matrices[6][::-1, ::-1]
    s = dg.spread_ragged(matrices, backend=backend)
    assert s.shape == (len(RAGGED),)
    assert s.singular_values.shape == (len(RAGGED), 33)
    for index, matrix in enumerate(matrices):
        alone = dg.spread(matrix, backend=backend)
        full = min(matrix.shape)
        for name, array in s.to_dict().items():
            member = array[index]
            if name.endswith("singular_values"):
                assert np.all(np.isnan(member[full:]))
                member = member[:full]
            assert_same_bits(member, getattr(alone, name), f"{name} of {RAGGED[index]}")


def test_ragged_takes_any_iterable_of_matrices(backend: str) -> None:
    a = gaussians(4, 3, 5, np.float32)
    want = dg.spread(a, backend=backend)
    for matrices in (a, list(a), tuple(a), iter(a)):
        got = dg.spread_ragged(matrices, backend=backend)
        for name, array in want.to_dict().items():
            assert_same_bits(getattr(got, name), array, name)
    nothing = dg.spread_ragged([], backend=backend)
    assert nothing.shape == (0,)
    assert nothing.singular_values.shape == (0, 0)


def test_ragged_refusals() -> None:
    for bad, message in (
        ([np.eye(2), np.ones(3)], r"matrices\[1\] must have shape \(n, k\); got \(3,\)"),
        (np.eye(3), r"matrices\[0\] must have shape \(n, k\); got \(3,\)"),
    ):
        with pytest.raises(ValueError, match=message):
            dg.spread_ragged(bad, backend="reference")
    with pytest.raises(TypeError, match=r"matrices\[1\] is float32 but matrices\[0\] is float64"):
        dg.spread_ragged([np.eye(2), np.eye(3, dtype=np.float32)], backend="reference")
    with pytest.raises(TypeError, match=r"matrices\[1\] has dtype int64"):
        dg.spread_ragged([np.eye(2), np.eye(2, dtype=np.int64)], backend="reference")
    with pytest.raises(TypeError, match="matrices must be a list of matrices; got int"):
        dg.spread_ragged(3, backend="reference")  # type: ignore[arg-type]


CALLS: dict[str, Callable[..., object]] = {
    "a": dg.singular_values,
    "a of spread": dg.spread,
    "singular_values": lambda value, **options: dg.spread(singular_values=value, **options),
    "log_singular_values": lambda value, **options: dg.spread(log_singular_values=value, **options),
}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize(("value", "message"), BAD_ARRAYS, ids=[message for _, message in BAD_ARRAYS])
def test_what_is_not_float_is_refused_by_name(value: Any, message: str, call: str) -> None:
    if value is None and call != "a":
        return  # stands for an argument that is not given
    name = call.split()[0]
    with pytest.raises(TypeError, match=name) as caught:
        CALLS[call](value, backend="reference")
    if message != "x":
        assert message in str(caught.value)


def test_wrong_arguments_say_what_they_should_be() -> None:
    for call in (dg.singular_values, dg.spread):
        for bad, shape in ((np.ones(3), r"\(3,\)"), (np.float64(2.0), r"\(\)"), ([1.0, 2.0], r"\(2,\)")):
            message = rf"^a must have shape \(\.\.\., n, k\), a matrix or a stack of them; got {shape}$"
            with pytest.raises(ValueError, match=message):
                call(bad, backend="reference")
    with pytest.raises(ValueError, match=r"^accuracy='relativ' is unknown; did you mean 'relative'\?"):
        dg.singular_values(np.eye(2), accuracy="relativ")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="accuracy must be a string"):
        dg.singular_values(np.eye(2), accuracy=1e-9)  # type: ignore[arg-type]
    for options, kind, message in (
        ({"threads": 0}, ValueError, "threads=0"),
        ({"threads": 1.5}, TypeError, "threads must be an integer"),
        ({"backend": "cuda"}, ValueError, "backend='cuda' is not a backend"),
    ):
        for accuracy in ("absolute", "relative"):
            with pytest.raises(kind, match=message):
                dg.singular_values(np.eye(2), accuracy=accuracy, **options)
        with pytest.raises(kind, match=message):
            dg.spread(singular_values=[1.0], **options)
        with pytest.raises(kind, match=message):
            dg.spread_ragged([np.eye(2)], **options)


def test_spread_takes_one_argument() -> None:
    with pytest.raises(ValueError, match="exactly one of a, singular_values, log_singular_values; got none of them"):
        dg.spread()
    with pytest.raises(ValueError, match="got a and singular_values"):
        dg.spread(np.eye(2), singular_values=[1.0, 1.0])
    with pytest.raises(ValueError, match=r"^singular_values must be >= 0; got -1\.0"):
        dg.spread(singular_values=[2.0, -1.0, np.nan])
    for name in ("singular_values", "log_singular_values"):
        with pytest.raises(ValueError, match=rf"^{name} must have shape \(\.\.\., p\)"):
            CALLS[name](np.float64(3.0))


@pytest.mark.parametrize("wrapper", [Exporter, Capsule])
def test_objects_of_other_libraries_are_read(wrapper: Any, backend: str) -> None:
    a = gaussians(3, 4, 5, np.float64)
    assert_same_bits(dg.singular_values(wrapper(a), backend=backend), dg.singular_values(a, backend=backend))
    got = dg.spread_ragged([wrapper(a[0])], backend=backend)
    assert_same_bits(got.singular_values[0], dg.singular_values(a[0], backend=backend))


def test_torch_tensors_are_read_and_gradients_refused(backend: str) -> None:
    torch = pytest.importorskip("torch")
    a = gaussians(3, 4, 5, np.float32)
    tensor = torch.from_numpy(a.copy())
    assert_same_bits(
        dg.singular_values(tensor.mT, backend=backend), dg.singular_values(a.swapaxes(1, 2), backend=backend)
    )
    with pytest.raises(TypeError, match=r"a is a tensor that requires grad; pass a\.detach"):
        dg.spread(tensor.requires_grad_(), backend=backend)


def test_lists_of_floats_are_float64(backend: str) -> None:
    assert_same_bits(
        dg.singular_values([[1.0, 2.0], [3.0, 4.0]], backend=backend),
        dg.singular_values(np.array([[1.0, 2.0], [3.0, 4.0]]), backend=backend),
    )
