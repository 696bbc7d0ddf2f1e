"""The transport ablation: the published figures to all their digits, and what must hold at any size."""

from __future__ import annotations

import copy
import json
import math
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import depthgauge as dg
from depthgauge.studies import ablation
from depthgauge.studies.ablation import CHECKS, CONFIGURATIONS, TransportAblation, sampled_depths, transport_ablation

PUBLISHED = json.loads((Path(__file__).parents[1] / "data" / "transport_expected.json").read_text())
NAMES = [configuration.name for configuration in CONFIGURATIONS]

# Rounding differs between the backends, and over 96 layers a plain stack magnifies it.
RELATIVE = 1e-10


@pytest.fixture(scope="module", params=dg.available_backends())
def published_run(request: pytest.FixtureRequest) -> TransportAblation:
    return transport_ablation(backend=request.param)


@pytest.fixture(scope="module")
def small() -> TransportAblation:
    return transport_ablation(depth=13, width=16, batch=8, seed=3, backend="reference")


def assert_same(got: Any, want: Any, path: str = "") -> None:
    """Compare plain data: the same keys, lengths and words, numbers to `RELATIVE`."""
    if isinstance(want, dict):
        assert list(got) == list(want), path
        for key in want:
            assert_same(got[key], want[key], f"{path}.{key}")
    elif isinstance(want, list):
        assert len(got) == len(want), path
        for index, item in enumerate(want):
            assert_same(got[index], item, f"{path}[{index}]")
    elif isinstance(want, float):
        assert isinstance(got, float), path
        # Curves are logarithms: an absolute error there is a relative one of the RMS.
        assert math.isclose(got, want, rel_tol=RELATIVE, abs_tol=RELATIVE), f"{path}: {got!r} is not {want!r}"
    else:
        assert type(got) is type(want), path
        assert got == want, path


def test_published_figures(published_run: TransportAblation) -> None:
    assert_same(published_run.to_dict(), PUBLISHED)


def test_threads_change_no_digit() -> None:
    runs = [transport_ablation(depth=12, width=24, batch=40, threads=threads) for threads in (1, 2, 3)]
    assert runs[0].to_dict() == runs[1].to_dict() == runs[2].to_dict()


def test_every_configuration_gets_the_same_input(small: TransportAblation) -> None:
    assert len({float(transport.forward_rms[0]) for transport in small.transports}) == 1


def test_terminal_gradient_has_unit_rms(small: TransportAblation) -> None:
    for transport in small.transports:
        assert transport.gradient_rms[-1] == pytest.approx(1.0, rel=1e-14)


def test_shallow_control_keeps_its_depth_and_starts_as_the_deep_stack(small: TransportAblation) -> None:
    shallow, deep = small["relu_he_plain_shallow"], small["relu_he_plain"]
    assert (shallow.depth, deep.depth) == (ablation.SHALLOW_DEPTH, 13)
    assert shallow.forward_rms.tolist() == deep.forward_rms[: shallow.depth + 1].tolist()


def test_seed_decides_every_figure(small: TransportAblation) -> None:
    again = transport_ablation(13, 16, 8, 3, backend="reference")
    other = transport_ablation(13, 16, 8, 4, backend="reference")
    assert again.to_dict() == small.to_dict()
    for one, two in zip(small.transports, other.transports, strict=True):
        assert one.end_rms != two.end_rms
        assert one.gradient_ratio != two.gradient_ratio


@pytest.mark.parametrize(
    ("depth", "width", "batch", "seed"), [(1, 1, 1, 0), (1, 5, 3, 1), (3, 8, 2, 9), (30, 1, 1, 3), (40, 33, 17, 0)]
)
def test_other_sizes(depth: int, width: int, batch: int, seed: int) -> None:
    run = transport_ablation(depth, width, batch, seed, backend="reference")
    for transport in run.transports:
        expected = ablation.SHALLOW_DEPTH if transport.configuration.fixed_depth else depth
        assert transport.depth == expected
        assert transport.forward_rms.shape == transport.gradient_rms.shape == (expected + 1,)
        assert transport.drift >= 1
        assert 0 <= transport.live_fraction <= 1
    assumptions = run.to_dict()["assumptions"]
    assert assumptions["data"] == f"{batch} synthetic Gaussian examples"
    assert (assumptions["width"], assumptions["deep_blocks"], assumptions["seed"]) == (width, depth, seed)


def test_overflow_is_reported_not_raised() -> None:
    """An unscaled residual stack grows past the range of float64; nothing warns, and neighbors are untouched."""
    run = transport_ablation(depth=2500, width=16, batch=2, seed=1)
    exploded = run["relu_residual_unscaled"]
    assert not math.isfinite(exploded.end_rms)
    assert math.isfinite(run["relu_prenorm_scaled"].end_rms)


@pytest.mark.parametrize("depth", [2500, 3000])
def test_overflow_is_the_explosion(depth: int) -> None:
    """Whether the state alone or the gradient too leaves the range, the row says inf and the check holds."""
    run = transport_ablation(depth=depth, width=16, batch=4)
    exploded = run["relu_residual_unscaled"]
    assert exploded.end_rms == exploded.drift == math.inf
    assert exploded.gradient_ratio > 1e300
    assert math.isfinite(exploded.gradient_rms[0]) == (exploded.gradient_ratio < math.inf)
    assert "unscaled_residual_explodes" not in run.failed_checks()


@pytest.mark.parametrize("depth", [1, 2, 8, 11, 12, 13, 96, 1000])
def test_sampled_depths(depth: int) -> None:
    depths = sampled_depths(depth)
    assert depths[0] == 0
    assert depths[-1] == depth
    assert depths == sorted(set(depths))
    assert set(depths) == {math.floor(depth * twelfths / 12) for twelfths in (0, 1, 2, 4, 6, 8, 10, 12)}


def test_sampled_curves_are_the_curves(small: TransportAblation) -> None:
    for transport, sampled in zip(small.transports, small.to_dict()["sampled_curves"], strict=True):
        rms = 10.0 ** np.array(sampled["log10_forward_rms"])
        np.testing.assert_allclose(rms, transport.forward_rms[sampled["layers"]], rtol=1e-13)


def test_plain_stacks_have_no_skip_path() -> None:
    for configuration in CONFIGURATIONS:
        block = configuration.block(configuration.depth(96))
        assert (block.skip_scale == 0.0) == (configuration.residual == "none")
        assert (block.pre_norm == "rms") == configuration.pre_norm


def faded(transport: Any, factor: float) -> None:
    transport.forward_rms[-1] *= factor


BREAKAGES: dict[str, Callable[[Any], None]] = {
    "unscaled_residual_explodes": lambda transport: transport.gradient_rms.fill(1.0),
    "scaled_prenorm_stays_bounded": lambda transport: faded(transport, 10.0),
    "shallow_control_stays_bounded": lambda transport: transport.gradient_rms.__setitem__(0, 3.0),
    "plain_tanh_fades": lambda transport: faded(transport, 10.0),
}


@pytest.mark.parametrize("name", CHECKS)
def test_a_broken_promise_fails_its_check_alone(published_run: TransportAblation, name: str) -> None:
    assert published_run.failed_checks() == []
    broken = copy.deepcopy(published_run)
    BREAKAGES[name](broken[CHECKS[name].configuration])
    assert broken.failed_checks() == [name]
    assert broken.to_dict()["checks"] == [name]
    assert list(broken.to_dict()) == list(PUBLISHED)


@pytest.mark.parametrize("name", CHECKS)
def test_nan_fails_its_check(published_run: TransportAblation, name: str) -> None:
    broken = copy.deepcopy(published_run)
    transport = broken[CHECKS[name].configuration]
    transport.forward_rms.fill(np.nan)
    assert broken.failed_checks() == [name]


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"depth": 0}, ValueError),
        ({"width": 0}, ValueError),
        ({"batch": -1}, ValueError),
        ({"seed": -1}, ValueError),
        ({"depth": 1.5}, TypeError),
    ],
)
def test_bad_sizes_are_named(change: dict[str, Any], error: type[Exception]) -> None:
    (name,) = change
    with pytest.raises(error, match=name):
        transport_ablation(**change)


def test_result_is_plain_to_keep(small: TransportAblation) -> None:
    assert pickle.loads(pickle.dumps(small)).to_dict() == small.to_dict()
    assert "\n" not in repr(small)
    assert "\n" not in repr(small.transports[0])
    assert [row["configuration"] for row in small.to_dict()["summary"]] == NAMES
    with pytest.raises(KeyError):
        small["no_such_network"]
