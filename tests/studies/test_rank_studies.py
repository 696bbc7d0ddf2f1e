"""Properties that hold for every rank study, and for what studies share: intervals, fits, the run from a store."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import math
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("xarray")
pytest.importorskip("scipy")

import xarray
from scipy import stats

import depthgauge as dg
from depthgauge import cli
from depthgauge.cli.rank import study_text
from depthgauge.cli.terminal import to_json
from depthgauge.studies.rank import STUDIES, Expected, Finding, Interval, Study, StudyResult, run_study
from depthgauge.studies.rank.fits import contour_exponent, crossing, slope
from depthgauge.studies.rank.intervals import mean_and_half

pytestmark = pytest.mark.slow

SMALL: dict[str, Any] = {"seeds": 2, "depths": (2, 4, 8), "width": 16, "quick": True}


@pytest.fixture(scope="module")
def small(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[StudyResult, Path]:
    """A study in small, and the store it left."""
    for package in STUDIES[request.param].packages:
        pytest.importorskip(package)
    store = tmp_path_factory.mktemp("rank") / "store.db"
    return run_study(STUDIES[request.param], store=store, threads=2, **SMALL), store


every_study = pytest.mark.parametrize("small", STUDIES, indirect=True)


def never(**_: Any) -> dict[str, Any]:
    raise AssertionError("a cell ran that was stored")


def without_cells(study: Study) -> Study:
    """Return the study with cells that fail when they run."""

    def parts(depths: tuple[int, ...], quick: bool) -> dict[str, Any]:
        return {name: dataclasses.replace(part, cell=never) for name, part in study.parts(depths, quick).items()}

    return dataclasses.replace(study, parts=parts)


@every_study
def test_finished_cells_are_not_run_again(small: tuple[StudyResult, Path]) -> None:
    first, store = small
    again = run_study(without_cells(first.study), store=store, threads=1, **SMALL)
    for name, result in first.results.items():
        xarray.testing.assert_identical(
            result.drop_vars(["cell_seconds", "cell_error"]),
            again.results[name].drop_vars(["cell_seconds", "cell_error"]),
        )
    np.testing.assert_equal(
        [finding.to_dict() for finding in again.findings], [finding.to_dict() for finding in first.findings]
    )


@every_study
def test_stored_cells_of_other_sizes_are_not_taken(small: tuple[StudyResult, Path]) -> None:
    first, store = small
    with pytest.raises(RuntimeError, match="a cell ran that was stored"):
        run_study(without_cells(first.study), store=store, **{**SMALL, "width": 12})


@every_study
def test_reports_in_every_form(small: tuple[StudyResult, Path], tmp_path: Path) -> None:
    result, _ = small
    assert result.findings
    assert repr(result).startswith(f"StudyResult('{result.study.name}', width=16, seeds=2")
    assert len(repr(result)) < 120
    names = [finding.name for finding in result.findings]
    assert len(set(names)) == len(names)
    table = result.study.table(result.results)
    assert len(table) > 1
    assert {len(row) for row in table} == {len(table[0])}
    text = study_text(result)
    assert result.study.question in text
    assert "commissioning check" in text
    assert all(name in text for name in names)
    plain = json.loads(to_json(result.to_dict()))
    assert plain["study"] == result.study.name
    assert len(plain["findings"]) == len(names)
    for part in plain["curves"].values():
        for name, curve in part.items():
            if name != "coords":
                shape = tuple(len(part["coords"][dim]) for dim in curve["dims"])
                assert np.shape(curve["mean"]) == np.shape(curve["half"]) == shape
    pytest.importorskip("matplotlib")
    figure = result.figure()
    for axes in figure.axes:
        place = axes.get_subplotspec()
        assert axes.get_xlabel() or (place is not None and not place.is_last_row())  # rows may share it
        assert axes.get_title() or axes.get_ylabel() or len(figure.axes) > 1
    assert any(axes.get_ylabel() for axes in figure.axes)
    assert any(axes.get_legend() for axes in figure.axes) or figure.legends
    for suffix in ("png", "pdf"):
        figure.savefig(tmp_path / f"figure.{suffix}")
        assert (tmp_path / f"figure.{suffix}").stat().st_size > 5000


@every_study
def test_one_seed_has_no_interval_but_a_mean(small: tuple[StudyResult, Path]) -> None:
    """And it is the first of two seeds: seeds do not depend on how many there are."""
    first, store = small
    one = run_study(without_cells(first.study), store=store, **{**SMALL, "seeds": 1})
    for name, result in one.results.items():
        for variable in result.data_vars:
            np.testing.assert_array_equal(result[variable], first.results[name][variable].isel(seed=[0]))
    assert all(math.isnan(finding.measured.low) for finding in one.findings)
    assert any(math.isfinite(finding.measured.mean) for finding in one.findings)


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"seeds": 0}, ValueError, "seeds"),
        ({"seeds": 1.5}, TypeError, "seeds"),
        ({"width": 1}, ValueError, "width"),
        ({"depths": (0,)}, ValueError, r"depths\[0\]"),
        ({"depths": ()}, ValueError, "depths"),
        ({"threads": 0}, ValueError, "threads"),
    ],
)
def test_bad_arguments_are_named(change: dict[str, Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        run_study(STUDIES["depth"], **{**SMALL, **change})


def test_a_name_is_no_study() -> None:
    with pytest.raises(TypeError, match="study"):
        run_study("depth")  # type: ignore[arg-type]


def test_dead_branches_have_no_ratio() -> None:
    """In a network so narrow that all units of all branches may be dead, which is no error."""
    result = run_study(STUDIES["correlate"], seeds=3, width=2, depths=(2, 3), quick=True, progress=False)
    assert np.isnan(result.results["accumulated"]["ratio"]).any()
    assert result.findings


# Intervals and findings


@given(st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=30))
def test_interval_is_students(samples: list[float]) -> None:
    found = Interval.of(samples)
    error = float(np.std(samples, ddof=1)) / len(samples) ** 0.5
    half = float(stats.t.interval(0.95, len(samples) - 1)[1]) * error
    assert found.mean == pytest.approx(np.mean(samples), abs=1e-9)
    assert (found.high - found.low) / 2 == pytest.approx(half, rel=1e-6, abs=1e-9)
    mean, spread = mean_and_half(xarray.DataArray(samples, dims="seed"))
    assert float(mean) == pytest.approx(found.mean, abs=1e-9)
    assert float(spread) == pytest.approx(half, rel=1e-6, abs=1e-9)


def test_interval_leaves_out_seeds_without_a_fit() -> None:
    samples = xarray.DataArray([[1.0, math.nan, 3.0], [2.0, 5.0, 8.0], [math.nan, math.nan, 4.0]], dims=("x", "seed"))
    mean, half = mean_and_half(samples)
    for at, values in enumerate(([1.0, 3.0], [2.0, 5.0, 8.0])):
        found = Interval.of(values)
        assert float(mean[at]) == pytest.approx(found.mean)
        assert float(half[at]) == pytest.approx(found.high - found.mean)
    assert math.isnan(float(half[2]))
    assert Interval.of([1.0, math.nan, 3.0]) == Interval.of([1.0, 3.0])
    assert Interval.of([1.0, math.nan, 3.0]).seeds == 2
    assert Interval.of([]).seeds == 0
    assert math.isnan(Interval.of([math.nan]).mean)


@pytest.mark.parametrize(
    ("expected", "inside", "outside"),
    [
        (Expected.rounded("0.51"), (0.505, 0.5149), (0.504, 0.516)),
        (Expected.rounded("-0.5"), (-0.55, -0.45), (-0.56, -0.44)),
        (Expected.rounded("2"), (1.5, 2.5), (1.4, 2.6)),
        (Expected.between(-0.57, -0.46), (-0.57, -0.46), (-0.58, -0.45)),
        (Expected.at_most(0.2), (-1.0, 0.2), (0.21,)),
        (Expected.at_least(0.2), (0.2, 9.0), (0.19,)),
    ],
)
def test_agreement_is_overlap(expected: Expected, inside: tuple[float, ...], outside: tuple[float, ...]) -> None:
    for value in inside:
        assert Finding("", Interval(value, math.nan, math.nan, 1), expected).agrees
        assert Finding("", Interval(value, value - 1e-12, value + 1e-12, 3), expected).agrees
    for value in outside:
        assert not Finding("", Interval(value, math.nan, math.nan, 1), expected).agrees
        assert Finding("", Interval(value, value - 9, value + 9, 3), expected).agrees
    assert Finding("", Interval.of([]), expected).agrees is None
    assert Finding("", Interval.of([1, 2])).agrees is None


# Fits


@given(st.floats(-3, 3), st.floats(-5, 5), st.integers(3, 9))
def test_slope_of_a_line(s: float, offset: float, count: int) -> None:
    x = np.arange(count, dtype=float)
    y = s * x + offset
    assert slope(x, y) == pytest.approx(s, abs=1e-9)
    assert slope([*x, 99.0], [*y, math.nan]) == pytest.approx(s, abs=1e-9)


def test_slope_needs_points() -> None:
    assert math.isnan(slope([1, 2, 3], [1, 2, math.nan]))


@given(st.floats(0.02, 0.98))
def test_crossing_of_a_falling_line(level: float) -> None:
    x = np.linspace(-2, 3, 11)
    assert crossing(x, (3 - x) / 5, level) == pytest.approx(3 - 5 * level)
    assert math.isnan(crossing(x, (3 - x) / 5, level + 1))
    assert math.isnan(crossing(x, (3 - x) / 5, level - 1))


@given(st.floats(-0.9, -0.2), st.floats(0.3, 0.9))
def test_contours_of_a_power_law(exponent: float, level: float) -> None:
    """Ranks that depend on strength / depth**exponent alone have that exponent at every level."""
    depths = np.array([12, 24, 48, 96])
    strengths = np.geomspace(1e-3, 1e2, 9)
    ranks = 1 / (1 + strengths[:, None] * depths**-exponent)
    assert contour_exponent(strengths, depths, ranks, level) == pytest.approx(exponent, abs=1e-9)


# The command


def test_help_names_every_study(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["rank", "--help"])
    text = capsys.readouterr().out
    for name, study in STUDIES.items():
        assert f"  {name} " in text
        assert study.question in text
    assert "does\nnot show that it trains" in text


def test_several_studies_to_json_and_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    options = ["--quick", "--seeds", "2", "--width", "8", "--depths", "2,4,8", "--json", "--threads", "1"]
    plot, store = tmp_path / "rank.png", tmp_path / "rank.db"
    assert cli.main(["rank", "depth", "skip", *options, "--plot", str(plot), "--store", str(store)]) == 0
    output = capsys.readouterr()
    assert list(json.loads(output.out)) == ["depth", "skip"]
    assert {path.name for path in tmp_path.glob("*.png")} == {"rank-depth.png", "rank-skip.png"}
    assert store.exists()
    assert cli.main(["rank", "all", "--without", *(set(STUDIES) - {"depth"}), *options, "--store", str(store)]) == 0
    one = json.loads(capsys.readouterr().out)
    assert one["study"] == "depth"
    assert one["findings"] == json.loads(output.out)["depth"]["findings"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["deph"], "invalid choice"),
        ([], "required"),
        (["depth", "--seeds", "0"], "at least 1"),
        (["depth", "--depths", "1,x"], "at least 1"),
        (["depth", "--width", "1"], "at least 2"),
        (["depth", "--plot", "x.gif"], ".png"),
    ],
)
def test_usage_errors(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        cli.main(["rank", *arguments])
    assert stopped.value.code == 2
    assert words in capsys.readouterr().err


def test_errors_of_the_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["rank", "depth", "--without", "depth"]) == 2
    assert "no study" in capsys.readouterr().err
    damaged = tmp_path / "damaged.db"
    damaged.write_text("this is no store")
    assert cli.main(["rank", "depth", "--quick", "--store", str(damaged)]) == 2
    assert "damaged.db" in capsys.readouterr().err


def test_the_long_study_keeps_its_seeds_among_others(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("sklearn")
    options = ["--quick", "--width", "8", "--depths", "2", "--json"]
    assert cli.main(["rank", "stream", "trainability", *options, "--seeds", "4"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert {name: study["seeds"] for name, study in found.items()} == {"stream": 4, "trainability": 3}
    assert cli.main(["rank", "trainability", *options, "--seeds", "4"]) == 0
    assert json.loads(capsys.readouterr().out)["seeds"] == 4


def test_control_c_ends_at_once_and_keeps_what_is_finished(tmp_path: Path) -> None:
    store = tmp_path / "store.db"
    options = ["--width", "64", "--depths", "48", "--seeds", "500", "--threads", "2"]
    command = [sys.executable, "-m", "depthgauge", "rank", "depth", *options, "--store", str(store)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        deadline = time.monotonic() + 60
        while not store.exists() or store.stat().st_size < 30_000:  # a few cells are in it
            assert time.monotonic() < deadline
            assert process.poll() is None
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=10)
    assert process.returncode == 130
    assert "cells have a result in the store" in errors
    assert "Traceback" not in errors
    assert "terminate" not in errors
    stored = dg.read_store(store)
    assert np.count_nonzero(np.isfinite(stored["rank"].isel(strength=0, depth=0))) > 2


def test_a_missing_package_is_named_before_the_first_study(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "sklearn" else find(name))
    assert cli.main(["rank", "stream", "trainability", "--quick"]) == 2
    output = capsys.readouterr()
    assert not output.out
    assert "rank studies need sklearn" in output.err
    assert "pip install 'depthgauge[studies]'" in output.err
