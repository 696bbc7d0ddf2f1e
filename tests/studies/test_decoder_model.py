"""The decoder's forward and reverse passes, and what is observed there."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from depthgauge._common.arrays import Array
from depthgauge.studies import decoder
from depthgauge.studies.decoder import (
    BUDGET,
    DecoderConfig,
    Parameters,
    SplitMix64,
    attention,
    classify,
    commission,
    head,
    loss_derivative,
    observe,
    prepare,
    restore,
    site_ratios,
    site_rms,
)
from depthgauge.studies.decoder.model import final_loss, residual_steps

SMALL = DecoderConfig(layers=2, width=8, heads=4, kv_heads=2, ff_width=5, vocabulary=7, max_positions=9)
INPUTS, TARGETS = [0, 3, 6, 3, 1], [3, 6, 3, 1, 2]


def made(config: DecoderConfig = SMALL, rule: str = "depth", seed: int = 11) -> Parameters:
    """Return initialized parameters whose gains are no longer 1, as after some training."""
    parameters = prepare(config, BUDGET, SplitMix64(seed), rule=rule).complete().parameters
    rng = np.random.default_rng(seed)
    for name, array in parameters.items():
        if name.endswith("gain"):
            array += 0.3 * rng.standard_normal(array.shape)
    return parameters


def central_difference(loss: Callable[[], float], array: Array) -> Array:
    """Return the derivative of `loss` with respect to every entry of `array`, which is put back."""
    step, found = 1e-5, np.empty(array.shape)
    for index in np.ndindex(array.shape):
        old = array[index]
        array[index] = old + step
        above = loss()
        array[index] = old - step
        found[index] = (above - loss()) / (2 * step)
        array[index] = old
    return found


# --- derivatives


@pytest.mark.slow
@pytest.mark.parametrize("kv_heads", [1, 2])
def test_every_parameter_holds_against_central_differences(backend: str, kv_heads: int) -> None:
    parameters = made(dataclasses.replace(SMALL, width=4, heads=2, kv_heads=kv_heads, ff_width=3))
    exact = loss_derivative(parameters, INPUTS, TARGETS, backend=backend).gradients
    assert exact is not None
    assert list(exact) == list(parameters)

    def loss() -> float:
        return loss_derivative(parameters, INPUTS, TARGETS, gradients=False, backend=backend).mean_loss

    for name, array in parameters.items():
        np.testing.assert_allclose(exact[name], central_difference(loss, array), rtol=1e-6, atol=2e-9, err_msg=name)


@pytest.mark.parametrize("rule", ["depth", "none", "fixup"])
def test_every_site_holds_against_central_differences(rule: str) -> None:
    parameters = made(rule=rule)
    found = loss_derivative(parameters, INPUTS, TARGETS)
    steps = residual_steps(parameters, len(INPUTS))
    for site, state in enumerate(found.states):

        def loss(start: int = site, at: Array = state) -> float:
            h = at.copy()
            for step in steps[start:]:
                h, _, _ = step.forward(h)
            return final_loss(parameters, h, np.array(TARGETS), gradients=False)[0]

        np.testing.assert_allclose(found.adjoints[site], central_difference(loss, state), rtol=1e-6, atol=2e-9)


def torch_loss(torch: Any, config: DecoderConfig, weights: dict[str, Any]) -> tuple[Any, list[Any]]:
    """Return the mean loss and the residual sites by torch, rotary positions by complex numbers."""

    def rms_norm(x: Any, gain: Any) -> Any:
        return torch.nn.functional.rms_norm(x, (config.width,), gain, config.rms_epsilon)

    def rotated(x: Any) -> Any:
        pairs = torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2).contiguous())
        exponents = torch.arange(0, config.head_dim, 2, dtype=torch.float64) / config.head_dim
        angles = torch.outer(torch.arange(x.shape[-2], dtype=torch.float64), config.rope_base**-exponents)
        return torch.view_as_real(pairs * torch.polar(torch.ones_like(angles), angles)).flatten(-2)

    def split(x: Any) -> Any:
        return x.unflatten(-1, (-1, config.head_dim)).transpose(0, 1)

    h = weights["embedding.weight"][torch.tensor(INPUTS)]
    sites = [h]
    for block in range(config.layers):
        w = {name.removeprefix(f"blocks.{block}."): value for name, value in weights.items()}
        x = rms_norm(h, w["attention_norm.gain"])
        query, key = (rotated(split(x @ w[f"attention.{part}.weight"])) for part in ("query", "key"))
        mixed = torch.nn.functional.scaled_dot_product_attention(
            query,
            key.repeat_interleave(config.group, 0),
            split(x @ w["attention.value.weight"]).repeat_interleave(config.group, 0),
            is_causal=True,
        )
        h = h + mixed.transpose(0, 1).flatten(1) @ w["attention.output.weight"]
        sites.append(h)
        x = rms_norm(h, w["ffn_norm.gain"])
        gate = torch.nn.functional.silu(x @ w["ffn.gate.weight"])
        h = h + (gate * (x @ w["ffn.up.weight"])) @ w["ffn.down.weight"]
        sites.append(h)
    logits = rms_norm(h, weights["final_norm.gain"]) @ weights["embedding.weight"].T
    return torch.nn.functional.cross_entropy(logits, torch.tensor(TARGETS)), sites


def test_torch_agrees(backend: str) -> None:
    torch = pytest.importorskip("torch")
    config = dataclasses.replace(SMALL, layers=3, width=24, heads=6, kv_heads=3, ff_width=17)
    parameters = made(config)
    weights = {name: torch.tensor(array, requires_grad=True) for name, array in parameters.items()}
    loss, sites = torch_loss(torch, config, weights)
    for site in sites:
        site.retain_grad()
    loss.backward()
    found = loss_derivative(parameters, INPUTS, TARGETS, backend=backend)
    assert found.gradients is not None
    assert found.mean_loss == pytest.approx(loss.item(), rel=1e-13)

    def assert_close(got: Array, want: Any, what: object) -> None:
        np.testing.assert_allclose(got, want.detach().numpy(), rtol=1e-10, atol=1e-13, err_msg=str(what))

    for index, site in enumerate(sites):
        assert_close(found.states[index], site, index)
        assert_close(found.adjoints[index], site.grad, index)
    for name, value in weights.items():
        assert_close(found.gradients[name], value.grad, name)


# --- properties of the model


def test_no_position_sees_a_later_one() -> None:
    parameters = made()
    whole = loss_derivative(parameters, INPUTS, TARGETS).states
    for length in range(1, len(INPUTS)):
        part = loss_derivative(parameters, INPUTS[:length], TARGETS[:length]).states
        np.testing.assert_allclose(part, whole[:, :length], rtol=1e-13, atol=1e-15)


def test_pieces_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of queries, and of logits, taken a few at a time."""
    parameters = made()
    whole = loss_derivative(parameters, INPUTS, TARGETS)
    monkeypatch.setattr(attention, "_QUERY_ROWS", 2)
    monkeypatch.setattr(head, "_LOGITS", 3 * SMALL.vocabulary)
    parts = loss_derivative(parameters, INPUTS, TARGETS)
    assert whole.gradients is not None
    assert parts.gradients is not None
    assert parts.mean_loss == pytest.approx(whole.mean_loss, rel=1e-14)
    np.testing.assert_allclose(parts.adjoints, whole.adjoints, rtol=1e-11, atol=1e-15)
    for name, gradient in whole.gradients.items():
        np.testing.assert_allclose(parts.gradients[name], gradient, rtol=1e-11, atol=1e-15)


def test_a_block_with_zero_outputs_is_the_identity() -> None:
    found = loss_derivative(made(rule="zero"), INPUTS, TARGETS)
    assert (found.states == found.states[0]).all()
    assert (found.adjoints == found.adjoints[-1]).all()
    assert (found.branch_rms == 0).all()


def test_repeated_keys_and_values_are_grouped_ones() -> None:
    """Heads that share keys and values are heads that each have a copy of them."""
    grouped = made()
    config = dataclasses.replace(SMALL, kv_heads=4)
    copies = {}
    for name, array in grouped.items():
        shared = name.endswith(("key.weight", "value.weight"))
        copies[name] = np.repeat(array.reshape(8, 2, 2), 2, axis=1).reshape(8, 8) if shared else array
    blank = prepare(config, BUDGET, SplitMix64(1)).complete()
    repeated = restore(blank.record, copies)
    one, other = (loss_derivative(parameters, INPUTS, TARGETS) for parameters in (grouped, repeated))
    np.testing.assert_allclose(one.adjoints, other.adjoints, rtol=1e-12, atol=1e-16)


def test_gradients_are_of_stored_weights() -> None:
    """Scaling once at initialization leaves no factor in the pass: the stored weights alone decide."""
    done = prepare(SMALL, BUDGET, SplitMix64(11)).complete()
    stored = restore(done.record, done.parameters)
    one, other = (loss_derivative(parameters, INPUTS, TARGETS) for parameters in (done.parameters, stored))
    assert one.mean_loss == other.mean_loss
    assert one.gradients is not None
    assert other.gradients is not None
    assert all(one.gradients[name].tobytes() == gradient.tobytes() for name, gradient in other.gradients.items())


def test_threads_change_no_bit() -> None:
    runs = [loss_derivative(made(), INPUTS, TARGETS, threads=threads) for threads in (1, 2, 3)]
    assert len({run.adjoints.tobytes() for run in runs}) == 1


# --- observation


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


# --- refusals of observation: named, and nothing changed


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
    "an overflow in the reverse pass alone": (
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


# --- the commission


def test_commission_is_its_parts() -> None:
    run = commission(SMALL, INPUTS, TARGETS, seed=11, compare=["gpt2", "none"])
    done = prepare(SMALL, BUDGET, SplitMix64(11)).complete()
    assert run.record == done.record
    assert run.initialized.to_dict() == observe(done.parameters, INPUTS, TARGETS).to_dict()
    assert run.control.to_dict() == observe(done.control, INPUTS, TARGETS).to_dict()
    assert run.comparisons["none"].to_dict() == run.control.to_dict()
    assert run.comparisons["gpt2"].activation_ratio[-1] < run.initialized.activation_ratio[-1]


def test_example_sequence_fills_the_positions() -> None:
    run = commission(SMALL)
    assert run.input_ids == (0, 1, 2, 3, 4, 5, 6, 0, 1)
    assert run.target_ids == (1, 2, 3, 4, 5, 6, 0, 1, 1)
    assert decoder.example_sequence(4, 266) == ([0, 99, 100, 101], [99, 100, 101, 1])
    assert decoder.example_sequence(1, 1) == ([0], [0])


def test_half_a_sequence() -> None:
    with pytest.raises(ValueError, match="go together"):
        commission(SMALL, INPUTS)


def test_bad_arguments_of_a_commission_are_named() -> None:
    wrong: Any
    for wrong in ("gpt2", 5):
        with pytest.raises(TypeError, match="compare"):
            commission(SMALL, compare=wrong)
    for wrong in (10**9, None):
        with pytest.raises(TypeError, match="budget must be a Budget"):
            commission(SMALL, budget=wrong)
    with pytest.raises(TypeError, match="config must be a DecoderConfig"):
        commission({"layers": 2})  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="config must be a DecoderConfig"):
        decoder.symbolic_plan({"layers": 2})  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="gradients must be True or False"):
        loss_derivative(made(), INPUTS, TARGETS, gradients="rms")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="did you mean 'gpt2'"):
        commission(SMALL, compare=["gpt3"])
    with pytest.raises(ValueError, match="seed"):
        commission(SMALL, seed=-1)
    with pytest.raises(ValueError, match="vocabulary"):
        decoder.example_sequence(3, 0)


def test_numpy_integers_are_as_good() -> None:
    """And leave nothing that JSON could not write."""
    sizes: Any = {"layers": np.int64(2), "width": np.uint8(8)}
    seed: Any = np.int64(11)
    config = dataclasses.replace(SMALL, **sizes)
    run = commission(config, np.array(INPUTS, np.uint8), np.array(TARGETS, np.int16), seed=seed)
    plain = json.loads(json.dumps(run.to_dict() | run.setting()))
    assert plain == commission(SMALL, INPUTS, TARGETS, seed=11).to_dict() | run.setting()


@pytest.mark.parametrize("change", [{"layers": 1}, {"heads": 1, "kv_heads": 1}, {"vocabulary": 1}, {"ff_width": 1}])
def test_small_extremes(change: dict[str, Any]) -> None:
    config = dataclasses.replace(SMALL, max_positions=1, **change)
    if config.vocabulary == 1:
        # One token is always right: there is no loss, and no gradient to take ratios to.
        with pytest.raises(decoder.NormalizerError):
            commission(config)
        return
    assert commission(config).initialized.activation_rms.shape == (config.sites,)
