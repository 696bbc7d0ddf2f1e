"""The command line: what it prints, and how it fails."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import exit_status, run

import depthgauge as dg
from depthgauge import cli
from depthgauge.cli import terminal, transport
from depthgauge.studies import ablation

# Too shallow for the unscaled residual stack to explode, so one check fails at least.
SMALL = ("transport", "--depth", "20", "--width", "16", "--batch", "8", "--backend", "reference")
PUBLISHED = Path(__file__).parents[1] / "data" / "transport_expected.json"


def test_transport_prints_the_published_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["transport"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == "checks: PASS"
    table = {cells[0]: cells[1:] for line in lines[5:-2] if (cells := line.split())}
    assert table == {
        "tanh_xavier_plain": ["96", "tanh", "none", "no", "0.0198", "61.4", "0.0250"],
        "relu_he_plain": ["96", "relu", "none", "no", "0.439", "11.5", "0.571"],
        "relu_residual_unscaled": ["96", "relu", "1", "no", "1.52e14", "1.54e14", "2.01e14"],
        "relu_residual_scaled": ["96", "relu", "1/sqrt(depth)", "no", "1.56", "1.58", "1.63"],
        "relu_prenorm_scaled": ["96", "relu", "1/sqrt(depth)", "yes", "1.37", "1.39", "1.45"],
        "relu_he_plain_shallow": ["8", "relu", "none", "no", "0.864", "1.33", "0.935"],
    }


def test_transport_by_default() -> None:
    """The very command of the README, in its own process: nothing on stderr, and warnings would be errors."""
    result = run("transport", PYTHONWARNINGS="error")
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.endswith("\nchecks: PASS\n")


def test_json_has_the_published_keys_and_all_digits(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["transport", "--json"]) == 0
    got, want = json.loads(capsys.readouterr().out), json.loads(PUBLISHED.read_text())
    assert list(got) == list(want)
    assert got["assumptions"] == want["assumptions"]
    assert got["checks"] == "PASS"
    for one, other in zip(got["summary"], want["summary"], strict=True):
        for key, value in other.items():
            exact = not isinstance(value, float)
            assert one[key] == (value if exact else pytest.approx(value, rel=1e-10))


def test_failed_checks_are_named_after_the_whole_output(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(SMALL) == 1
    lines = capsys.readouterr().out.splitlines()
    failed = ablation.transport_ablation(20, 16, 8, backend="reference").failed_checks()
    assert "unscaled_residual_explodes" in failed
    assert lines[-1] == "checks: FAIL " + ", ".join(failed)
    for configuration in ablation.CONFIGURATIONS:
        assert any(line.startswith(configuration.name) for line in lines)

    assert cli.main([*SMALL, "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert found["checks"] == failed
    assert len(found["summary"]) == len(found["sampled_curves"]) == len(ablation.CONFIGURATIONS)


def test_json_stays_json_past_the_range(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """JSON has no inf and no nan; they become null."""
    exploded = ablation.transport_ablation(20, 16, 8, backend="reference")
    exploded["relu_residual_unscaled"].forward_rms[-1] = np.inf
    exploded["relu_he_plain"].gradient_rms[0] = np.nan
    monkeypatch.setattr(transport, "transport_ablation", lambda *_, **__: exploded)
    assert cli.main(["transport", "--json"]) == 1

    def refuse(constant: str) -> Any:
        raise AssertionError(f"{constant} is not JSON")

    found = json.loads(capsys.readouterr().out, parse_constant=refuse)
    rows = {row["configuration"]: row for row in found["summary"]}
    assert rows["relu_residual_unscaled"]["forward_end_rms"] is None
    assert rows["relu_he_plain"]["input_to_output_gradient_ratio"] is None
    assert rows["relu_prenorm_scaled"]["forward_end_rms"] > 0


def test_plot(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / "rivers.svg"
    assert cli.main([*SMALL, "--json", "--plot", str(path)]) == 1
    captured = capsys.readouterr()
    json.loads(captured.out)
    assert str(path) in captured.err
    assert path.stat().st_size > 1000


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "command is missing"),
        (["tranport"], "invalid choice"),
        (["transport", "--depth", "0"], "--depth"),
        (["transport", "--depth", "1.5"], "--depth"),
        (["transport", "--width", "-3"], "--width"),
        (["transport", "--batch", "many"], "--batch"),
        (["transport", "--seed", "-1"], "--seed"),
        (["transport", "--threads", "0"], "--threads"),
        (["transport", "--backend", "cupy"], "--backend"),
        (["transport", "--plot", "rivers.jpg"], ".png"),
        (["transport", "--plot", "no/such/folder/rivers.png"], "folder"),
        (["transport", "--plot"], "--plot"),
        (["transport", "--frobnicate"], "frobnicate"),
        (["info", "extra"], "extra"),
    ],
)
def test_usage_errors(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_status(*arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert words in captured.err.splitlines()[-1]
    assert "error:" in captured.err
    assert "Traceback" not in captured.err


@pytest.mark.parametrize(("variable", "value"), [("DEPTHGAUGE_BACKEND", "cupy"), ("DEPTHGAUGE_NUM_THREADS", "many")])
def test_bad_environment(
    variable: str, value: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(variable, value)
    assert exit_status("transport", "--depth", "2") == 2
    captured = capsys.readouterr()
    assert variable in captured.err
    assert "Traceback" not in captured.err
    assert captured.out == ""


def test_missing_matplotlib_is_told_before_the_work(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.setattr(transport, "transport_ablation", lambda *_, **__: pytest.fail("the work was done first"))
    assert exit_status("transport", "--plot", str(tmp_path / "rivers.png")) == 2
    assert "pip install 'depthgauge[plot]'" in capsys.readouterr().err


def test_unwritable_plot(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / "rivers.png"
    path.mkdir()
    assert exit_status(*SMALL, "--plot", str(path)) == 2
    assert "Traceback" not in capsys.readouterr().err


def test_out_of_memory(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def exhaust(*_: object, **__: object) -> None:
        raise MemoryError

    monkeypatch.setattr(transport, "transport_ablation", exhaust)
    assert exit_status("transport") == 2
    assert "memory" in capsys.readouterr().err


@pytest.mark.parametrize("command", [[], ["transport"], ["decoder"], ["info"]])
def test_help_teaches(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_status(*command, "--help") == 0
    text = capsys.readouterr().out
    assert all(len(line) <= 100 for line in text.splitlines())
    if not command:
        assert "depthgauge transport" in text
        assert "info" in text
    if command != ["info"]:
        assert "commissioning check" in text
        assert "does not show" in text
    if command == ["transport"]:
        for option in ("depth", "width", "batch", "seed", "json", "plot", "backend", "threads"):
            assert f"--{option}" in text


def test_help_says_which_depth_the_checks_describe(capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_status("transport", "--help") == 0
    assert transport.DEPTH_OF_CHECKS in capsys.readouterr().out


@pytest.mark.parametrize("backend", dg.available_backends())
def test_the_examples_of_the_help_pass(backend: str) -> None:
    """All that choose a size; --plot and --json leave the checks as they are."""
    examples = [
        line.split("  ")[1].split() for line in cli.DESCRIPTION.splitlines() if "depthgauge transport --d" in line
    ]
    assert examples
    for _, *arguments in examples:
        assert cli.main([*arguments, "--backend", backend]) == 0


def test_version() -> None:
    result = run("--version")
    assert (result.returncode, result.stdout.strip()) == (0, f"depthgauge {dg.__version__}")


def test_info_prints_the_build_config(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["info", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found == json.loads(json.dumps(dg.build_config()))
    assert found["version"] == dg.__version__
    assert cli.main(["info"]) == 0
    text = capsys.readouterr().out
    assert all(any(line.startswith(name) for line in text.splitlines()) for name in found)


@pytest.mark.skipif(sys.platform == "win32", reason="pipes break otherwise there")
def test_a_reader_that_leaves_early_is_no_error() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    result = subprocess.run(
        [sys.executable, "-m", "depthgauge", *SMALL],
        stdout=writer,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    os.close(writer)
    assert result.stderr == ""
    assert result.returncode == 141


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.025007, "0.0250"),
        (61.39, "61.4"),
        (153979966418752.66, "1.54e14"),
        (1.0, "1.00"),
        (100.0, "100"),
        (999.9, "1.00e3"),
        (1.5e-7, "1.50e-7"),
        (0.0, "0.00"),
        (np.inf, "inf"),
        (np.nan, "nan"),
    ],
)
def test_three_digits(value: float, text: str) -> None:
    assert terminal.three_digits(value) == text
