"""The commissioning of one decoder, whole."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import numpy as np
import pytest
from decoders import INPUTS, SMALL, TARGETS, made

from depthgauge.studies import decoder
from depthgauge.studies.decoder import (
    BUDGET,
    SplitMix64,
    commission,
    loss_derivative,
    observe,
    prepare,
)


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
