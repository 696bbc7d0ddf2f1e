"""Initialization of the decoder as a transaction: what it draws and scales, and that refusals change nothing."""

from __future__ import annotations

import dataclasses
import math
import pickle
from typing import Any

import numpy as np
import pytest
from decoders import CONFIG, WORD, initialized, splitmix_words, touch, unchanged

from depthgauge.studies import decoder
from depthgauge.studies.decoder import (
    BUDGET,
    RULES,
    Budget,
    DecoderConfig,
    Parameters,
    Preparation,
    SplitMix64,
    apply_rule,
    prepare,
    restore,
)


class Undrawable(SplitMix64):
    """A generator that must not be drawn from, and copies of which must not be."""

    def copy(self) -> SplitMix64:
        return Undrawable(self.state)

    def random(self, shape: tuple[int, ...]) -> Any:
        raise AssertionError("it was drawn from")


def test_draw_order_and_limits() -> None:
    done = initialized()
    words = splitmix_words(5, CONFIG.parameters)
    place = 0
    for name, array in done.control.items():
        if name.endswith("gain"):
            assert (array == 1).all()
            continue
        limit = math.sqrt(6 / (array.shape[0] + array.shape[1]))
        unit = [(word >> 11) * 2.0**-53 for word in words[place : place + array.size]]
        assert array.ravel().tolist() == [limit * (2 * u - 1) for u in unit]
        place += array.size
    assert done.record.generator_after == (5 + place * 0x9E3779B97F4A7C15) % WORD


@pytest.mark.parametrize("rule", RULES)
def test_scaled_once_and_bit_for_bit(rule: str) -> None:
    rng = SplitMix64(5)
    done = prepare(CONFIG, BUDGET, rng, rule=rule).complete()
    factors = RULES[rule].selected(CONFIG)
    assert done.record.transformed == tuple(factors)
    assert done.record.policy == rule
    for name, array in done.parameters.items():
        expected = done.control[name] * factors[name] if name in factors else done.control[name]
        assert array.tobytes() == expected.tobytes()
        assert not np.shares_memory(array, done.control[name])
    assert rng.state == done.record.generator_after
    assert (done.parameters.stage, done.control.stage) == ("initialized", "control")


def test_depth_factor_is_of_complete_blocks() -> None:
    assert initialized().record.factor == 1 / math.sqrt(3)


@pytest.mark.parametrize("rule", ["depth", "none"])
def test_one_block_returns_the_base_itself(rule: str) -> None:
    config = dataclasses.replace(CONFIG, layers=1)
    preparation = prepare(config, BUDGET, SplitMix64(5), rule=rule)
    arrays = dict(preparation.parameters)
    done = preparation.complete()
    assert done.parameters is preparation.parameters
    assert all(done.parameters[name] is array for name, array in arrays.items())
    assert done.record.transformed == ()
    assert done.record.factor == 1.0


def test_blank_parameters_are_filled_on_completion_alone() -> None:
    blank = Parameters(CONFIG)
    preparation = prepare(CONFIG, BUDGET, SplitMix64(5), parameters=blank)
    assert (len(blank), blank.stage) == (0, "blank")
    done = preparation.complete()
    assert done.parameters is blank
    assert blank.stage == preparation.parameters.stage == "initialized"
    assert all(preparation.parameters[name] is array for name, array in blank.items())
    for name, array in initialized().parameters.items():
        assert blank[name].tobytes() == array.tobytes()


def test_rules_on_the_same_base() -> None:
    control = initialized().control
    for rule in RULES:
        other = apply_rule(rule, control)
        for name, array in initialized(rule=rule).parameters.items():
            assert other[name].tobytes() == array.tobytes()
    with pytest.raises(decoder.AlreadyInitializedError, match="unscaled"):
        apply_rule("depth", apply_rule("depth", control))


def test_dropping_a_preparation_changes_nothing() -> None:
    rng, blank = SplitMix64(5), Parameters(CONFIG)
    with unchanged(rng, blank):
        preparation = prepare(CONFIG, BUDGET, rng, parameters=blank)
        del preparation
    assert rng.integers(3).tolist() == splitmix_words(5, 3)


@pytest.mark.parametrize(
    ("budget", "words"),
    [
        (Budget(parameters=CONFIG.parameters - 1, positions=6), "parameters"),
        (Budget(parameters=CONFIG.parameters, positions=5), "6 positions"),
        (Budget(parameters=0, positions=0), "parameters"),
    ],
)
def test_budget_is_checked_before_any_draw(budget: Budget, words: str) -> None:
    rng, blank = Undrawable(5), Parameters(CONFIG)
    with unchanged(rng, blank), pytest.raises(decoder.BudgetExceededError, match=words):
        prepare(CONFIG, budget, rng, parameters=blank)


def test_budget_may_be_met() -> None:
    prepare(CONFIG, Budget(parameters=CONFIG.parameters, positions=6), SplitMix64(5)).complete()


def test_budget_is_checked_before_any_array() -> None:
    """No machine holds this decoder, nor the names of its parameters."""
    huge = dataclasses.replace(CONFIG, layers=10**15, max_positions=10**18)
    rng = Undrawable(5)
    with unchanged(rng), pytest.raises(decoder.BudgetExceededError, match=f"{huge.parameters:,}"):
        prepare(huge, BUDGET, rng)
    with pytest.raises(decoder.BudgetExceededError):
        decoder.commission(huge)


@pytest.mark.parametrize("stage", ["control", "initialized", "restored", "base"])
def test_filled_parameters_are_refused_before_any_draw(stage: str) -> None:
    done = initialized()
    stores = {
        "control": done.control,
        "initialized": done.parameters,
        "restored": restore(done.record, done.parameters),
        "base": prepare(CONFIG, BUDGET, SplitMix64(5)).parameters,
    }
    rng = Undrawable(5)
    with unchanged(rng, *stores.values()), pytest.raises(decoder.AlreadyInitializedError, match=stage):
        prepare(CONFIG, BUDGET, rng, parameters=stores[stage])


def test_blank_parameters_of_another_configuration() -> None:
    rng, blank = Undrawable(5), Parameters(dataclasses.replace(CONFIG, layers=2))
    with unchanged(rng, blank), pytest.raises(decoder.LayoutError):
        prepare(CONFIG, BUDGET, rng, parameters=blank)


def test_zero_depth() -> None:
    """No configuration without depth can be made, so none reaches a generator."""
    rng, done = Undrawable(5), initialized()
    fields = CONFIG.to_dict() | {"layers": 0}
    with unchanged(rng, done.parameters), pytest.raises(decoder.ZeroDepthError, match="layers=0"):
        prepare(DecoderConfig.from_dict(fields), BUDGET, rng)
    with pytest.raises(decoder.ZeroDepthError):
        dataclasses.replace(CONFIG, layers=0)


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"layers": -1}, ValueError, "layers=-1 must be an integer >= 1"),
        ({"layers": False}, TypeError, "layers"),
        ({"layers": 1.5}, TypeError, "layers"),
        ({"width": 0}, ValueError, "width"),
        ({"heads": 3}, ValueError, "heads=3 must divide width=8"),
        ({"heads": 8, "kv_heads": 8}, ValueError, "even"),
        ({"kv_heads": 3}, ValueError, "kv_heads=3 must divide heads=4"),
        ({"kv_heads": 8}, ValueError, "kv_heads=8 must divide heads=4"),
        ({"kv_heads": 0}, ValueError, "kv_heads"),
        ({"vocabulary": 0}, ValueError, "vocabulary"),
        ({"rope_base": 0.0}, ValueError, "rope_base"),
        ({"rope_base": math.nan}, ValueError, "rope_base"),
        ({"rms_epsilon": -1e-6}, ValueError, "rms_epsilon"),
        ({"rms_epsilon": "small"}, TypeError, "rms_epsilon"),
    ],
)
def test_bad_configurations_are_named(change: dict[str, Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        dataclasses.replace(CONFIG, **change)


def test_wrong_kinds_and_names() -> None:
    rng: Any = SplitMix64(5)
    with unchanged(rng):
        with pytest.raises(TypeError, match="rng must be a SplitMix64"):
            prepare(CONFIG, BUDGET, np.random.default_rng(5))  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="budget"):
            prepare(CONFIG, 10**9, rng)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="did you mean 'zero'"):
            prepare(CONFIG, BUDGET, rng, rule="rezero")
        with pytest.raises(TypeError, match="parameters"):
            prepare(CONFIG, BUDGET, rng, parameters={})  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="config must be a DecoderConfig"):
            prepare(CONFIG.to_dict(), BUDGET, rng)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="control must be a Parameters"):
            apply_rule("depth", {})  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="record must be a Record"):
            restore({}, {})  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="stored must map"):
            restore(initialized().record, [])  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["embedding.weight", "blocks.1.attention.key.weight", "final_norm.gain"])
@pytest.mark.parametrize("value", [0.25, math.nan, -0.0])
def test_a_modified_parameter_is_named(name: str, value: float) -> None:
    rng = SplitMix64(5)
    preparation = prepare(CONFIG, BUDGET, rng)
    touch(preparation.parameters[name], value)
    with (
        unchanged(rng, preparation.parameters),
        pytest.raises(decoder.ModifiedParameterError, match=name) as caught,
    ):
        preparation.complete()
    assert caught.value.parameter == name
    assert pickle.loads(pickle.dumps(caught.value)).parameter == name


def test_a_bit_put_back_is_no_modification() -> None:
    preparation = prepare(CONFIG, BUDGET, SplitMix64(5))
    array = preparation.parameters["embedding.weight"]
    old = float(array[0, 0])
    touch(array, 3.0)
    touch(array, old)
    preparation.complete()


@pytest.mark.parametrize("value", [1e-300, math.nan, -math.inf])
@pytest.mark.parametrize("given_blank", [False, True])
def test_a_gradient_is_named(value: float, given_blank: bool) -> None:
    name = "blocks.2.ffn.up.weight"
    rng, blank = SplitMix64(5), Parameters(CONFIG)
    preparation = prepare(CONFIG, BUDGET, rng, parameters=blank if given_blank else None)
    holder = blank if given_blank else preparation.parameters
    holder.gradients["embedding.weight"] = np.zeros((11, 8))
    holder.gradients[name] = np.zeros((8, 5))
    touch(holder.gradients[name], value)
    with unchanged(rng, blank, preparation.parameters), pytest.raises(decoder.NonzeroGradientError, match=name):
        preparation.complete()
    holder.gradients[name][:] = 0
    preparation.complete()


def test_completed_twice() -> None:
    rng = SplitMix64(5)
    preparation = prepare(CONFIG, BUDGET, rng)
    done = preparation.complete()
    with unchanged(rng, done.parameters, done.control), pytest.raises(decoder.AlreadyInitializedError):
        preparation.complete()


def test_two_preparations_of_one_blank() -> None:
    rng, blank = SplitMix64(5), Parameters(CONFIG)
    first, second = (prepare(CONFIG, BUDGET, rng, parameters=blank) for _ in range(2))
    first.complete()
    with unchanged(rng, blank, second.parameters), pytest.raises(decoder.AlreadyInitializedError):
        second.complete()


def test_a_generator_used_in_between() -> None:
    """Its draws would come twice if the prepared state were committed over them."""
    rng = SplitMix64(5)
    preparation = prepare(CONFIG, BUDGET, rng)
    rng.random((3,))
    with unchanged(rng, preparation.parameters), pytest.raises(decoder.GeneratorMovedError):
        preparation.complete()


def reshape(preparation: Preparation) -> None:
    preparation.parameters["blocks.0.ffn.down.weight"].shape = (8, 5)


@pytest.mark.filterwarnings("ignore:Setting the shape:DeprecationWarning")
def test_a_reshaped_parameter() -> None:
    rng = SplitMix64(5)
    preparation = prepare(CONFIG, BUDGET, rng)
    reshape(preparation)
    with unchanged(rng, preparation.parameters), pytest.raises(decoder.LayoutError, match=r"ffn\.down"):
        preparation.complete()
