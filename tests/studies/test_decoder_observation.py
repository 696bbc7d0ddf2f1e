"""What is observed at the residual sites, and what cannot be measured."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from decoders import INPUTS, SMALL, TARGETS, made
from hypothesis import given
from hypothesis import strategies as st

from depthgauge.studies import decoder
from depthgauge.studies.decoder import (
    BUDGET,
    Parameters,
    SplitMix64,
    classify,
    observe,
    prepare,
    site_ratios,
    site_rms,
)


def test_observation_changes_nothing() -> None:
    rng = SplitMix64(11)
    parameters = prepare(SMALL, BUDGET, rng).complete().parameters
    before = {name: array.tobytes() for name, array in parameters.items()}, rng.state, dict(parameters.gradients)
    first = observe(parameters, INPUTS, TARGETS)
    assert ({name: array.tobytes() for name, array in parameters.items()}, rng.state, parameters.gradients) == before
    for array in parameters.values():
        array.flags.writeable = False
    assert observe(parameters, INPUTS, TARGETS).to_dict() == first.to_dict()


PADDINGS: dict[str, tuple[Any, Any, Any]] = {
    "anything": ([*INPUTS, [1, [2]], {}], [*TARGETS, np.ones(3), "pad"], len(INPUTS)),
    "count": ([*INPUTS, math.nan, 99], [*TARGETS, math.nan, -7], len(INPUTS)),
    "mask": ([*INPUTS, None, "pad"], [*TARGETS, None, "pad"], [True] * len(INPUTS) + [False] * 2),
    "floats": (np.array([*INPUTS, math.nan]), np.array([*TARGETS, math.inf]), np.arange(6) < 5),
    "longer than the positions": ([*INPUTS, *[0] * 50], [*TARGETS, *[0] * 50], 5),
}


@pytest.mark.parametrize("name", PADDINGS)
def test_padding_is_never_read(name: str) -> None:
    inputs, targets, valid = PADDINGS[name]
    assert observe(made(), inputs, targets, valid).to_dict() == observe(made(), INPUTS, TARGETS).to_dict()


@pytest.mark.parametrize("valid", [3, [True, True, True, False, False], np.array([1, 1, 1, 0, 0], bool)])
def test_padding_of_a_site_is_never_read(valid: Any) -> None:
    values = np.arange(1.0, 21.0).reshape(5, 4)
    expected = math.sqrt(np.mean(values[:3] ** 2))
    values[3:] = math.nan
    assert site_rms(values, valid) == pytest.approx(expected, rel=1e-15)


@given(st.integers(-1074, 1021))
def test_rms_is_safe_from_overflow_and_underflow(exponent: int) -> None:
    values = np.ldexp(np.array([[3.0, -4.0], [4.0, 3.0]]), exponent)
    assert site_rms(values) == pytest.approx(
        math.ldexp(math.sqrt(12.5), exponent), rel=1e-15 + 2.0 ** (-1074 - exponent)
    )
    assert site_rms(np.full((3, 5), np.finfo(float).max)) == pytest.approx(np.finfo(float).max, rel=1e-15)


@pytest.mark.parametrize(
    ("ratio", "status"),
    [
        (0.01, "Within band"),
        (100.0, "Within band"),
        (100, "Within band"),
        (math.nextafter(0.01, 0), "Below band"),
        (math.nextafter(100, 200), "Above band"),
        (np.float64(1.0), "Within band"),
        (np.int64(1), "Within band"),
        (np.float32(0.01), "Below band"),  # 0.00999999978
        (np.float16(0.01), "Within band"),  # 0.01000214
        (np.nextafter(np.float32(100), np.float32(200)), "Above band"),
        (0.0, "Below band"),
    ],
)
def test_the_band_is_inclusive_and_unrounded(ratio: float, status: str) -> None:
    assert classify(ratio) == status


def test_curves_own_their_memory() -> None:
    observation = observe(made(), INPUTS, TARGETS)
    for field in dataclasses.fields(observation):
        value = getattr(observation, field.name)
        if isinstance(value, np.ndarray):
            assert value.flags.owndata, field.name
            assert value.flags.c_contiguous, field.name


def test_branches_and_gains_are_never_classified() -> None:
    observation = observe(made(), INPUTS, TARGETS)
    huge = dataclasses.replace(observation, branch_rms=observation.branch_rms * 1e9)
    assert huge.within_band == observation.within_band
    assert not any("status" in key for row in huge.to_dict()["branches"] for key in row)


def scaled(name: str, factor: float) -> Callable[[Parameters], None]:
    def change(parameters: Parameters) -> None:
        parameters[name][:] *= factor

    return change


def poisoned(name: str, value: float) -> Callable[[Parameters], None]:
    def change(parameters: Parameters) -> None:
        parameters[name][(0,) * parameters[name].ndim] = value

    return change


def reshaped(parameters: Parameters) -> None:
    parameters["final_norm.gain"].shape = (2, 4)


def steep(parameters: Parameters) -> None:
    """Make the loss steep in the small states before the last block alone."""
    parameters["embedding.weight"][INPUTS] *= 1e-4
    for name in ("attention.output.weight", "ffn.down.weight"):
        scaled(f"blocks.0.{name}", 0.0)(parameters)
    scaled("final_norm.gain", 1e306)(parameters)


REFUSALS: dict[str, tuple[Callable[[Parameters], None], type[Exception], str]] = {
    "a NaN token": (poisoned("embedding.weight", math.nan), decoder.NonFiniteValueError, "state at site 'input'"),
    "an infinite weight": (
        poisoned("blocks.1.ffn.down.weight", math.inf),
        decoder.NonFiniteValueError,
        r"state at site 'block\.1\.after_feed_forward'",
    ),
    "an overflow": (
        lambda parameters: [
            scaled("blocks.0.ffn.down.weight", 1e308)(parameters),
            scaled("blocks.0.ffn_norm.gain", 1e3)(parameters),
        ][0],
        decoder.NonFiniteValueError,
        r"state at site 'block\.0\.after_feed_forward'",
    ),
    "a NaN behind the last site": (poisoned("final_norm.gain", math.nan), decoder.NonFiniteValueError, "loss is nan"),
    "an infinite loss whose derivative is finite": (
        scaled("final_norm.gain", 8e307),
        decoder.NonFiniteValueError,
        "loss is inf",
    ),
    "an overflow in the backward pass alone": (
        steep,
        decoder.NonFiniteValueError,
        r"adjoint at site 'block\.0\.after_feed_forward'",
    ),
    "no input": (scaled("embedding.weight", 0.0), decoder.NormalizerError, "of the states, the RMS at site 0 is 0.0"),
    "no terminal adjoint": (
        scaled("final_norm.gain", 0.0),
        decoder.NormalizerError,
        "of the adjoints, the RMS at site 4 is 0.0",
    ),
    "a ratio out of range": (
        lambda parameters: [
            scaled("embedding.weight", 1e-160)(parameters),
            scaled("blocks.0.attention.output.weight", 1e155)(parameters),
            scaled("blocks.0.attention_norm.gain", 1e160)(parameters),
            scaled("blocks.0.attention.key.weight", 0.0)(parameters),
        ][0],
        decoder.NonFiniteRatioError,
        "of the states, the ratio at site 1",
    ),
    "a wrong shape": (reshaped, decoder.LayoutError, "final_norm"),
}


@pytest.mark.filterwarnings("ignore:Setting the shape:DeprecationWarning")
@pytest.mark.parametrize("name", REFUSALS)
def test_what_cannot_be_measured_is_named(name: str) -> None:
    change, error, words = REFUSALS[name]
    rng = SplitMix64(11)
    parameters = prepare(SMALL, BUDGET, rng).complete().parameters
    change(parameters)
    before = {key: array.tobytes() for key, array in parameters.items()}, rng.state
    with pytest.raises(error, match=words):
        observe(parameters, INPUTS, TARGETS)
    assert ({key: array.tobytes() for key, array in parameters.items()}, rng.state) == before


@pytest.mark.parametrize(
    ("sequence", "error", "words"),
    [
        (([], []), decoder.EmptyValidityError, "no position"),
        ((INPUTS, TARGETS, 0), decoder.EmptyValidityError, "no position"),
        ((INPUTS, TARGETS, [False] * 5), decoder.EmptyValidityError, "no position"),
        ((INPUTS, TARGETS, [True, False, True, False, False]), ValueError, "trailing"),
        ((INPUTS, TARGETS, [True] * 4), ValueError, r"shape \(5,\)"),
        ((INPUTS, TARGETS, [1, 1, 1, 1, 0]), TypeError, "mask of bools"),
        ((INPUTS, TARGETS, 6), ValueError, "valid=6"),
        ((INPUTS, TARGETS, -1), ValueError, "valid"),
        ((INPUTS, TARGETS, 2.0), TypeError, "valid"),
        ((INPUTS, TARGETS[:4]), ValueError, "target_ids"),
        ((INPUTS, TARGETS, [[True], [True, False]]), ValueError, "valid"),
        ((INPUTS, TARGETS, "all"), TypeError, "valid"),
        ((INPUTS, TARGETS, True), TypeError, "valid"),
        (([7, 1], [1, 2]), ValueError, r"input_ids\[0\]=7"),
        (([0, 1e300], [1, 2]), ValueError, r"input_ids\[1\]=1e\+300"),
        ((np.array([0, 2**64 - 1], np.uint64), [1, 2]), ValueError, rf"input_ids\[1\]={2**64 - 1}"),
        (([0, 1], [1, -1]), ValueError, r"target_ids\[1\]=-1"),
        (([0.5, 1], [1, 2]), TypeError, r"input_ids\[0\] must be an integer; got 0.5"),
        (([0, math.nan], [1, 2]), decoder.NonFiniteValueError, r"input_ids\[1\] is nan"),
        (([0, 1], np.array([math.inf, 2])), decoder.NonFiniteValueError, r"target_ids\[0\] is inf"),
        ((["a", "b"], [1, 2]), TypeError, r"input_ids\[0\] must be an integer; got 'a'"),
        (([0, True], [1, 2]), TypeError, r"input_ids\[1\]"),
        (([0, None], [1, 2]), TypeError, r"input_ids\[1\]"),
        (([0, 1], [1, [2, 3]]), TypeError, r"target_ids\[1\]"),
        ((np.ma.masked_array([0, 1], [False, True]), [1, 2]), TypeError, "input_ids is a masked array"),
        ((np.zeros((1, 2), int), [1, 2]), ValueError, r"input_ids .* ndarray of shape \(1, 2\)"),
        ((None, [1]), ValueError, "input_ids"),
        (("abc", [1, 2, 3]), ValueError, "input_ids"),
        ((3, 4), ValueError, "input_ids"),
        (([0] * 10, [0] * 10), ValueError, "max_positions=9"),
    ],
)
def test_bad_sequences_are_named(sequence: tuple[Any, ...], error: type[Exception], words: str) -> None:
    parameters, before = made(), repr(sequence)
    arrays = {key: array.tobytes() for key, array in parameters.items()}
    with pytest.raises(error, match=words):
        observe(parameters, *sequence)
    assert {key: array.tobytes() for key, array in parameters.items()} == arrays
    assert repr(sequence) == before


@pytest.mark.parametrize("kind", ["list of floats", "tuple", "big-endian", "strided", "float32", "read-only", "torch"])
def test_tokens_are_read_from_any_owner_and_layout(kind: str) -> None:
    def read(tokens: list[int]) -> Any:
        if kind == "torch":
            return pytest.importorskip("torch").tensor(tokens)
        frozen = np.array(tokens, np.int8)
        frozen.flags.writeable = False
        return {
            "list of floats": [float(token) for token in tokens],
            "tuple": tuple(np.array(tokens, np.uint16)),
            "big-endian": np.array(tokens, ">i4"),
            "strided": np.repeat(tokens, 3)[::3],
            "float32": np.array(tokens, np.float32),
            "read-only": frozen,
        }[kind]

    valid = pytest.importorskip("torch").ones(5, dtype=bool) if kind == "torch" else None
    found = observe(made(), read(INPUTS), read(TARGETS), valid)
    assert found.to_dict() == observe(made(), INPUTS, TARGETS).to_dict()


def test_sites_that_cannot_be_measured() -> None:
    values = np.ones((4, 3))
    values[2, 1] = math.inf
    assert site_rms(values, 2) == 1
    with pytest.raises(decoder.NonFiniteValueError):
        site_rms(values, 3)
    with pytest.raises(decoder.EmptyValidityError):
        site_rms(values, 0)
    with pytest.raises(ValueError, match="shape"):
        site_rms(np.ones(3))
    assert values[2, 1] == math.inf


@pytest.mark.parametrize(
    ("rms", "normalizer", "error"),
    [
        ([0.0, 1.0], 0, decoder.NormalizerError),
        ([-1.0, 1.0], 0, decoder.NormalizerError),
        ([1.0, math.nan], -1, decoder.NormalizerError),
        ([math.inf, 1.0], 0, decoder.NormalizerError),
        ([1e-200, 1e200], 0, decoder.NonFiniteRatioError),
        ([1.0, math.nan], 0, decoder.NonFiniteRatioError),
        ([1.0], 1, ValueError),
        ([1.0], -2, ValueError),
        ([1.0], 0.0, TypeError),
        ([1.0, 2.0], True, TypeError),
        ([], 0, ValueError),
        ([[1.0]], 0, ValueError),
    ],
)
def test_ratios_have_no_repair(rms: list[float], normalizer: Any, error: type[Exception]) -> None:
    values = np.array(rms)
    before = values.tobytes()
    with pytest.raises(error):
        site_ratios(values, normalizer)
    assert values.tobytes() == before


def test_ratios_of_float32_are_float64() -> None:
    """They would leave the range of float32 long before that of float64."""
    ratios = site_ratios(np.array([1e-30, 1e30], np.float32), 0)
    assert ratios.dtype == np.float64
    assert ratios[1] == pytest.approx(1e60, rel=1e-6)


@pytest.mark.parametrize("ratio", [math.nan, math.inf, -math.inf, np.float32("nan"), 10**400])
def test_a_non_finite_ratio_is_not_classified(ratio: float) -> None:
    with pytest.raises(decoder.NonFiniteRatioError, match="ratio"):
        classify(ratio)


@pytest.mark.parametrize("ratio", [True, "1", None, 1j])
def test_what_is_no_ratio(ratio: Any) -> None:
    with pytest.raises(TypeError, match="ratio"):
        classify(ratio)


def test_blank_parameters_cannot_be_observed() -> None:
    with pytest.raises(decoder.LayoutError, match="embedding"):
        observe(Parameters(SMALL), INPUTS, TARGETS)
    with pytest.raises(TypeError, match="Parameters"):
        observe(dict(made()), INPUTS, TARGETS)  # type: ignore[arg-type]
