"""The command ``depthgauge decoder``: what it prints, and how it fails."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import exit_status, run

from depthgauge import cli
from depthgauge.plots import CAPTION
from depthgauge.studies.decoder import BAND, FIXTURES, RULES, DecoderConfig, commission
from depthgauge.studies.decoder.figures import RULE_STYLES, decoder_figure

SIZES = {"layers": 3, "width": 16, "heads": 4, "kv-heads": 2, "ff": 12, "vocabulary": 40, "seed": 9}
OWN = [*(f"--{option}={value}" for option, value in SIZES.items()), "--ids=3,1,4,1,5"]
PUBLISHED = json.loads((Path(__file__).parents[1] / "data" / "decoder_expected.json").read_text())


def test_by_default_it_prints_the_published_decoder_of_eight_blocks() -> None:
    """In its own process: nothing on stderr, and warnings would be errors."""
    result = run("decoder", PYTHONWARNINGS="error")
    assert (result.returncode, result.stderr) == (0, "")
    rows = [cells for line in result.stdout.splitlines() if (cells := line.split()) and cells[0].isdecimal()]
    (fixture,) = (fixture for fixture in PUBLISHED["fixtures"] if fixture["layers"] == 8)
    for row, site in zip(rows, fixture["initialized"]["sites"], strict=True):
        assert [row[1], " ".join(row[4:6]), " ".join(row[8:])] == [
            site["label"],
            site["activation_status"],
            site["adjoint_status"],
        ]
        printed = [float(row[index]) for index in (2, 3, 6, 7)]
        published = [site[f"{what}_{kind}"] for what in ("activation", "adjoint") for kind in ("rms", "ratio")]
        assert printed == pytest.approx(published, rel=1e-5, abs=1e-6)


def test_fixtures_as_tables(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["decoder", "--fixtures"]) == 0
    text = capsys.readouterr().out
    assert all(fixture.title in text for fixture in FIXTURES)
    assert "parameters 32514560" in text


def test_fixtures_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["decoder", "--fixtures", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert list(found) == list(PUBLISHED)
    for got, want in zip(found["fixtures"], PUBLISHED["fixtures"], strict=True):
        assert want.keys() <= got.keys()
        assert got["initialized"]["max_adjoint_ratio"] == pytest.approx(
            want["initialized"]["max_adjoint_ratio"], abs=5e-7
        )


def test_own_decoder_prints_the_same_record(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["decoder", *OWN, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert cli.main(["decoder", "--fixtures", "--json"]) == 0
    fixture = json.loads(capsys.readouterr().out)["fixtures"][0]
    assert set(fixture) <= set(found)
    assert (found["input_ids"], found["target_ids"]) == ([3, 1, 4, 1], [1, 4, 1, 5])
    assert (found["seed"], found["max_positions"], found["kv_heads"]) == (9, 4, 2)
    config = DecoderConfig(layers=3, width=16, heads=4, kv_heads=2, ff_width=12, vocabulary=40, max_positions=4)
    expected = commission(config, [3, 1, 4, 1], [1, 4, 1, 5], seed=9)
    assert found["initialized"] == expected.initialized.to_dict()
    assert found["record"] == expected.record.to_dict()


def test_positions_without_ids(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["decoder", "--positions", "9", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["input_ids"] == [0, *range(99, 107)]


def test_compared_rules(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["decoder", *OWN, "--compare", "gpt2", "zero", "fixup", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert list(found["comparisons"]) == ["gpt2", "zero", "fixup"]
    assert found["comparisons"]["zero"]["max_activation_ratio"] == 1
    assert cli.main(["decoder", *OWN, "--compare", *RULES]) == 0
    firsts = [line.split()[0] for line in capsys.readouterr().out.splitlines() if line]
    assert firsts[-len(RULES) :] == list(RULES)


def test_a_ratio_out_of_the_band_is_no_failure(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["decoder", "--vocabulary", "90000"]) == 0
    text = capsys.readouterr().out
    assert "Above band" in text
    assert cli.main(["decoder", "--vocabulary", "90000", "--json"]) == 0
    assert not json.loads(capsys.readouterr().out)["initialized"]["within_band"]


def test_a_gain_out_of_range_is_null(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Gains are reported, never refused."""
    odd = commission(DecoderConfig(layers=1, width=4, heads=1, ff_width=4, vocabulary=9, max_positions=2))
    odd.initialized.adjoint_rms[1] = 0.0
    monkeypatch.setattr("depthgauge.cli.decoder.commission", lambda *_, **__: odd)
    assert cli.main(["decoder", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["initialized"]["branches"][0]["adjoint_gain"] is None


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--layers", "0"], "--layers: takes an integer of at least 1"),
        (["--layers", "-1"], "--layers: takes an integer of at least 1"),
        (["--layers", "two"], "--layers"),
        (["--width", "6", "--heads", "4"], "heads=4 must divide width=6"),
        (["--width", "6", "--heads", "2"], "must be even"),
        (["--width", "8", "--heads", "4", "--kv-heads", "3"], "kv_heads=3 must divide heads=4"),
        (["--positions", "0"], "--positions"),
        (["--positions", "3", "--ids", "1,2,3,4,5"], "max_positions=3"),
        (["--ids", "1,266"], "target_ids[0]=266"),
        (["--ids", "1,-2"], "--ids"),
        (["--ids", "5"], "--ids"),
        (["--ids", f"1,{2**70}"], f"target_ids[0]={2**70}"),
        (["--ids", ""], "--ids"),
        (["--ids", "1,two"], "--ids"),
        (["--seed", "-1"], "--seed"),
        (["--seed", str(2**64)], "seed"),
        (["--ff", "0"], "--ff"),
        (["--vocabulary", "1"], "of the adjoints, the RMS at site 16 is 0.0"),
        (["--budget", "2027"], "2,028 parameters"),
        (["--layers", "1" + "0" * 15], "budget"),
        (["--positions", "1" + "0" * 15], "budget"),
        (["--compare", "rezero"], "--compare"),
        (["--fixtures", "--seed", "0"], "--seed does not go with --fixtures"),
        (["--fixtures", "--layers", "1"], "--layers does not go with --fixtures"),
        (["--fixtures", "--kv-heads", "1"], "--kv-heads does not go with --fixtures"),
        (["--plot", "curves.jpg"], ".png"),
        (["--plot", "nowhere/curves.png"], "no folder"),
        (["--threads", "0"], "--threads"),
    ],
)
def test_usage_errors(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_status("decoder", *arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert words in captured.err.splitlines()[-1]
    assert "Traceback" not in captured.err


def test_a_folder_is_refused_as_a_plot_before_the_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "curves.png"
    path.mkdir()
    assert exit_status("decoder", "--plot", str(path)) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "is a folder" in captured.err


def test_help_says_what_ratios_mean_and_what_not(capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_status("decoder", "--help") == 0
    text = " ".join(capsys.readouterr().out.split())
    for words in (
        "activation ratio that over the RMS of the input",
        "adjoint ratio that over the one at the last site",
        "do not establish: that training converges, how large a gradient is in itself",
        "what another seed",
    ):
        assert words in text
    assert all(rule.statement in text for rule in RULES.values())


def test_plot(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / "curves.svg"
    assert cli.main(["decoder", *OWN, "--json", "--plot", str(path)]) == 0
    captured = capsys.readouterr()
    json.loads(captured.out)
    assert str(path) in captured.err
    assert path.stat().st_size > 1000


@pytest.mark.parametrize("rows", [1, 3])
def test_both_curves_and_the_band_are_drawn(rows: int) -> None:
    pytest.importorskip("matplotlib")
    config = DecoderConfig(layers=2, width=4, heads=1, ff_width=4, vocabulary=266, max_positions=4)
    compared: Any = list(RULES)
    runs = {f"run {row}": commission(config, compare=compared, seed=row) for row in range(rows)}
    figure = decoder_figure(runs)
    assert len(figure.axes) == 2 * rows
    for number, run_ in enumerate(runs.values()):
        for axes, attribute in zip(figure.axes[2 * number :], ("activation_ratio", "adjoint_ratio"), strict=False):
            assert axes.get_yscale() == "log"
            assert [line.get_label() for line in axes.lines] == list(run_.observations)
            for line, observation in zip(axes.lines, run_.observations.values(), strict=True):
                np.testing.assert_array_equal(line.get_ydata(), getattr(observation, attribute))
            (band,) = axes.patches
            box = band.get_extents().transformed(axes.transData.inverted())
            assert (box.y0, box.y1) == pytest.approx(BAND)
    assert len({style["color"] for style in RULE_STYLES.values()}) == len(RULES)
    assert CAPTION in [text.get_text() for text in figure.texts]


@pytest.mark.slow
@pytest.mark.parametrize("rows", [1, 4])
def test_nothing_of_a_plot_is_cut_off(rows: int) -> None:
    pytest.importorskip("matplotlib")
    config = DecoderConfig(layers=40, width=4, heads=1, ff_width=4, vocabulary=266, max_positions=4)
    figure = decoder_figure(dict.fromkeys(map(str, range(rows)), commission(config, compare=list(RULES))))
    figure.draw_without_rendering()
    whole = figure.get_tightbbox()
    assert (whole.x0, whole.y0) >= (0, 0)
    assert (whole.x1, whole.y1) <= (figure.get_figwidth(), figure.get_figheight())
    legend = figure.legends[0].get_window_extent()
    assert not any(text.get_window_extent().overlaps(legend) for text in figure.texts)
    for axes in figure.axes:
        box = axes.get_tightbbox()
        assert box is not None
        assert not box.overlaps(legend)
