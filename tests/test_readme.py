"""The README keeps its word: its table is the program's output, its code runs, its commands are the ones that run."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from depthgauge import cli

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", README, flags=re.MULTILINE | re.DOTALL)


def test_table_is_real_output(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["transport"]) == 0
    assert blocks("text")[0] == capsys.readouterr().out


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Runs code as a script in a folder of its own, where it may leave files."""

    def run(code: str) -> None:
        script = tmp_path / "script.py"
        script.write_text(code, encoding="utf-8")
        monkeypatch.chdir(tmp_path)
        exec(compile(code, str(script), "exec"), {})

    return run


@pytest.mark.parametrize("code", blocks("python"))
def test_code_runs(code: str, run: Callable[[str], None]) -> None:
    run(code)


@pytest.mark.parametrize(
    ("call", "place"), [("dg.spread(", 1), ("dg.rank_grid(", 2), ("dg.sweep(", 3), ("run_study(", 4)]
)
def test_output_is_real(call: str, place: int, run: Callable[[str], None], capsys: pytest.CaptureFixture[str]) -> None:
    (code,) = (block for block in blocks("python") if call in block)
    run(code)
    assert blocks("text")[place] == capsys.readouterr().out


def test_two_lines_from_a_fresh_clone() -> None:
    lines = [line for block in blocks("sh") for line in block.splitlines() if "venv" in line]
    assert len(lines) == 2
    assert lines[0].endswith("&& .venv/bin/depthgauge transport")
    assert lines[1].endswith("&& .venv/bin/pytest")


@pytest.mark.skipif(not (ROOT / ".ci" / "run").exists(), reason="not a checkout")
def test_continuous_integration_runs_the_second_line() -> None:
    """It reads the line from the README, so that the two cannot drift."""
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    assert "README.md" in script
    assert "pip install -q '.[test]'" not in script


def test_relative_links_lead_somewhere() -> None:
    for target in re.findall(r"\]\(((?!https?:)[^)#]+)\)", README):
        assert (ROOT / target).exists(), target


def test_commands_in_the_tour_parse() -> None:
    for line in (line for block in blocks("sh") for line in block.splitlines() if line.startswith("depthgauge ")):
        arguments = line.partition("#")[0].split()[1:]
        if "--help" in arguments:
            continue
        cli._parser().parse_args(arguments)


def test_the_sizes_in_the_tour_pass() -> None:
    sizes = re.findall(r"^depthgauge (transport --depth \d+ --seed \d+)", README, flags=re.MULTILINE)
    assert sizes
    for size in sizes:
        assert cli.main(size.split()) == 0
