"""The record of an initialization, and restoration from it."""

from __future__ import annotations

import dataclasses
import json
import math
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from decoders import CONFIG, initialized, touch, unchanged

from depthgauge._common.arrays import Array
from depthgauge.studies import decoder
from depthgauge.studies.decoder import (
    BUDGET,
    RULES,
    Parameters,
    Record,
    SplitMix64,
    prepare,
    restore,
)


@pytest.mark.parametrize("rule", RULES)
def test_restored_exactly_and_never_rescaled(rule: str) -> None:
    done = initialized(rule=rule)
    record = Record.from_dict(json.loads(json.dumps(done.record.to_dict())))
    assert record == done.record
    restored = restore(record, dict(done.parameters))
    assert restored.stage == "restored"
    for name, array in restored.items():
        assert array.tobytes() == done.parameters[name].tobytes()
        assert not np.shares_memory(array, done.parameters[name])
    again = restore(record, restored)
    assert all(again[name].tobytes() == array.tobytes() for name, array in restored.items())


def test_trained_values_are_restored_as_they_are() -> None:
    done = initialized()
    touch(done.parameters["embedding.weight"], math.nan)
    assert math.isnan(restore(done.record, done.parameters)["embedding.weight"][0, 0])


def swapped(arrays: dict[str, Array]) -> dict[str, Array]:
    first, second, *rest = arrays.items()
    return dict([second, first, *rest])


LAYOUTS: dict[str, Callable[[dict[str, Array]], dict[str, Array]]] = {
    "final_norm.gain": lambda arrays: {name: array for name, array in arrays.items() if name != "final_norm.gain"},
    "lm_head.weight": lambda arrays: arrays | {"lm_head.weight": np.zeros((8, 11))},
    "parameter 0 is 'blocks.0.attention_norm.gain'": swapped,
    r"query.weight has shape \(4, 16\)": lambda arrays: {
        name: array.reshape(4, 16) if name == "blocks.0.attention.query.weight" else array
        for name, array in arrays.items()
    },
    "float32": lambda arrays: {name: array.astype(np.float32) for name, array in arrays.items()},
}


@pytest.mark.parametrize("words", LAYOUTS)
def test_a_wrong_layout_is_named(words: str) -> None:
    rng = SplitMix64(5)
    done = prepare(CONFIG, BUDGET, rng).complete()
    with unchanged(rng, done.parameters), pytest.raises(decoder.LayoutError, match=words):
        restore(done.record, LAYOUTS[words](dict(done.parameters)))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"policy": "none"}, "factor"),
        ({"policy": "lsuv"}, "lsuv"),
        ({"policy": ["depth"]}, "policy"),
        ({"base_initializer": "he"}, "base_initializer is 'he'"),
        ({"factor": 1 / math.sqrt(6)}, "factor"),
        ({"factor": math.nan}, "factor"),
        ({"transformed": ()}, "transformed"),
        ({"transformed": None}, "transformed"),
        ({"generator_before": 6}, "generator_after"),
        ({"generator_after": 5}, "generator_after"),
        ({"generator_before": -1}, "generator|seed"),
        ({"config": CONFIG.to_dict()}, "config must be a DecoderConfig"),
        ({"config": dataclasses.replace(CONFIG, layers=2)}, "factor"),
    ],
)
def test_a_record_that_contradicts_itself(change: dict[str, Any], words: str) -> None:
    rng = SplitMix64(5)
    done = prepare(CONFIG, BUDGET, rng).complete()
    record = dataclasses.replace(done.record, **change)
    with unchanged(rng, done.parameters), pytest.raises(decoder.RecordError, match=words):
        restore(record, done.parameters)


@pytest.mark.parametrize(
    "change",
    [{"factor": None}, {"more": 1}, {"generator_after": 7}, {"generator_before": "seven"}, {"config": {"layers": 0}}],
)
def test_fields_that_are_no_record(change: dict[str, Any]) -> None:
    fields = initialized().record.to_dict() | change
    if change == {"factor": None}:
        del fields["factor"]
    with pytest.raises(decoder.RecordError):
        Record.from_dict(fields)


def test_results_are_plain_to_keep() -> None:
    done = initialized()
    for thing in (done, done.parameters, done.record, prepare(CONFIG, BUDGET, SplitMix64(5)), SplitMix64(5)):
        assert "\n" not in repr(thing)
    kept = pickle.loads(pickle.dumps(done))
    assert kept.parameters["embedding.weight"].tobytes() == done.parameters["embedding.weight"].tobytes()
    with pytest.raises(TypeError, match="DecoderConfig"):
        Parameters({})  # type: ignore[arg-type]
