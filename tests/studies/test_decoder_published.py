"""The decoder study against its published tables: every figure within half a unit of the last printed digit."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

import depthgauge as dg
from depthgauge.studies.decoder import FIXTURES, RULES, fixtures_to_dict, run_fixtures, symbolic_plan
from depthgauge.studies.decoder.fixtures import LAPTOP

PUBLISHED = json.loads((Path(__file__).parents[1] / "data" / "decoder_expected.json").read_text())
TOLERANCE = 5e-7


@pytest.fixture(scope="module", params=dg.available_backends())
def found(request: pytest.FixtureRequest) -> dict[str, Any]:
    runs = list(run_fixtures(backend=request.param))
    return json.loads(json.dumps(fixtures_to_dict(runs), allow_nan=False))  # type: ignore[no-any-return]


def numbers_in(got: Any, want: Any, path: str = "") -> int:
    """Check that `got` has the keys, lengths, words and numbers of `want`; return how many numbers there were."""
    if isinstance(want, dict):
        assert want.keys() <= got.keys(), path
        return sum(numbers_in(got[key], want[key], f"{path}.{key}") for key in want)
    if isinstance(want, list):
        assert len(got) == len(want), path
        return sum(numbers_in(got[index], item, f"{path}[{index}]") for index, item in enumerate(want))
    if isinstance(want, int | float) and not isinstance(want, bool):
        assert abs(got - want) <= TOLERANCE, f"{path}: {got!r} is not {want!r}"
        return 1
    assert got == want, path
    assert type(got) is type(want), path
    return 0


def test_every_published_figure(found: dict[str, Any]) -> None:
    assert numbers_in(found, PUBLISHED) > 250
    assert list(found) == list(PUBLISHED)


def test_values_are_not_rounded(found: dict[str, Any]) -> None:
    ratios = [site["adjoint_ratio"] for fixture in found["fixtures"] for site in fixture["initialized"]["sites"]]
    assert sum(ratio != round(ratio, 6) for ratio in ratios) > 20


@pytest.mark.parametrize("index", range(len(FIXTURES)), ids=[fixture.id for fixture in FIXTURES])
def test_what_goes_beyond_the_tables(found: dict[str, Any], index: int) -> None:
    fixture, config = found["fixtures"][index], FIXTURES[index].config
    projections = [
        f"blocks.{block}.{name}"
        for block in range(config.layers)
        for name in ("attention.output.weight", "ffn.down.weight")
    ]
    assert fixture["selected"] == projections
    transformed = projections if config.layers > 1 else []
    assert fixture["record"]["transformed"] == transformed
    assert fixture["unchanged_tensors"] + len(transformed) == len(config.shapes()) == 9 * config.layers + 2
    assert fixture["record"]["factor"] == fixture["factor"]
    for observation in (fixture["initialized"], fixture["same_base_unscaled_control"]):
        # A uniform guess has the loss ln(266) = 5.58.
        assert 5 < observation["mean_loss"] < 7
        assert len(observation["branches"]) == 2 * config.layers
        for branch, before, after in zip(
            observation["branches"], observation["sites"], observation["sites"][1:], strict=False
        ):
            assert branch["after"] == after["label"]
            assert branch["branch_gain"] == branch["branch_rms"] / before["activation_rms"]
            assert branch["activation_gain"] == after["activation_rms"] / before["activation_rms"]
            assert branch["adjoint_gain"] == before["adjoint_rms"] / after["adjoint_rms"]
            # Of two sides of a triangle and the third.
            assert abs(after["activation_rms"] - before["activation_rms"]) <= branch["branch_rms"] * (1 + 1e-12)


def test_one_block_is_its_own_control(found: dict[str, Any]) -> None:
    fixture = found["fixtures"][0]
    control = fixture["same_base_unscaled_control"]
    assert {key: control[key] for key in fixture["initialized"]} == fixture["initialized"]


def test_the_control_is_drawn_once(found: dict[str, Any]) -> None:
    """The narrow decoders share their first draws, so an unscaled first block is the same at every depth."""
    controls = [fixture["same_base_unscaled_control"]["sites"][:3] for fixture in found["fixtures"][:3]]
    assert len({json.dumps([site["activation_rms"] for site in sites]) for sites in controls}) == 1


def test_the_plan_counts_what_is_laid_out() -> None:
    counted = sum(math.prod(shape) for shape in LAPTOP.shapes().values())
    assert counted == LAPTOP.parameters == symbolic_plan(LAPTOP)["parameters"] == 32_514_560


def test_the_formula_says_what_is_counted() -> None:
    names = {
        "V": LAPTOP.vocabulary,
        "d": LAPTOP.width,
        "L": LAPTOP.layers,
        "d_kv": LAPTOP.kv_width,
        "f": LAPTOP.ff_width,
    }
    assert eval(symbolic_plan(LAPTOP)["formula"], {}, names) == LAPTOP.parameters


def test_the_rules_are_those_of_the_literature() -> None:
    factors = {name: rule.factors(8) for name, rule in RULES.items()}
    outputs = ("attention.output.weight", "ffn.down.weight")
    assert factors["none"] == {}
    assert factors["depth"] == dict.fromkeys(outputs, 1 / math.sqrt(8))
    assert factors["gpt2"] == dict.fromkeys(outputs, 1 / math.sqrt(16))
    assert factors["zero"] == dict.fromkeys(outputs, 0.0)
    fixup = factors["fixup"]
    assert [fixup[name] for name in outputs] == [0, 0]
    assert fixup["attention.value.weight"] == 1 / math.sqrt(16)
    assert fixup["ffn.gate.weight"] == fixup["ffn.up.weight"] == 16**-0.25
