"""The README and the pages of docs/ keep their word: their code runs, and their output and commands are real."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

import depthgauge as dg
from depthgauge import cli

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
if not all(page.exists() for page in PAGES):
    pytest.skip("not a checkout", allow_module_level=True)

# Before a block of text that is output: of the Python block above it, or of a command.
MARK = re.compile(r"^<!-- output(?:: (?P<command>.+?))? -->\n", re.M)
BLOCK = re.compile(rf"(?P<mark>{MARK.pattern})?^```(?P<language>\w+)\n(?P<content>.*?)^```$", re.M | re.S)


class Block(NamedTuple):
    """A block of a page; `mark` is what stands after "output" in the mark above it, None where there is no mark."""

    place: str
    language: str
    content: str
    mark: str | None


class Example(NamedTuple):
    """A block of Python, or a command, and what it is shown to print."""

    place: str
    code: str
    output: str | None


def blocks(page: Path) -> Iterator[Block]:
    text = page.read_text(encoding="utf-8")
    for found in BLOCK.finditer(text):
        line = text.count("\n", 0, found.start()) + 1
        mark = None if found["mark"] is None else found["command"] or ""
        yield Block(f"{page.relative_to(ROOT)}:{line}", found["language"], found["content"], mark)


def shell_lines(*pages: Path) -> list[str]:
    shell = (block for page in pages for block in blocks(page) if block.language == "sh")
    return [line for block in shell for line in block.content.splitlines()]


def read_examples() -> tuple[list[Example], list[Example]]:
    """Return the examples in Python, and the commands whose output is shown."""
    scripts: list[Example] = []
    commands: list[Example] = []
    for page in PAGES:
        previous = None
        for block in blocks(page):
            if block.language == "python":
                scripts.append(Example(block.place, block.content, None))
            elif block.mark:
                commands.append(Example(block.place, block.mark, block.content))
            elif block.mark is not None:
                assert previous == "python", f"{block.place}: output of what?"
                scripts[-1] = scripts[-1]._replace(output=block.content)
            previous = block.language
    return scripts, commands


SCRIPTS, COMMANDS = read_examples()


@pytest.mark.parametrize("example", SCRIPTS, ids=lambda example: example.place)
def test_code_prints_what_is_shown(
    example: Example, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It runs as a script in a folder of its own, where it may leave files."""
    script = tmp_path / "script.py"
    script.write_text(example.code, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    exec(compile(example.code, str(script), "exec"), {})
    if example.output is not None:
        assert capsys.readouterr().out == example.output


@pytest.mark.parametrize("example", COMMANDS, ids=lambda example: example.place)
def test_commands_print_what_is_shown(example: Example, capsys: pytest.CaptureFixture[str]) -> None:
    program, *arguments = example.code.split()
    assert program == "depthgauge"
    assert cli.main(arguments) == 0
    assert capsys.readouterr().out == example.output


def test_output_is_shown_and_every_mark_is_read() -> None:
    marks = sum(len(MARK.findall(page.read_text(encoding="utf-8"))) for page in PAGES)
    shown = [example for example in (*SCRIPTS, *COMMANDS) if example.output is not None]
    assert len(shown) == marks >= 5


def test_two_lines_from_a_fresh_clone() -> None:
    lines = shell_lines(ROOT / "README.md")
    assert len(lines) == 2
    assert lines[0].endswith("&& .venv/bin/depthgauge transport")
    assert lines[1].endswith("&& .venv/bin/pytest")


@pytest.mark.skipif(not (ROOT / ".ci" / "run").exists(), reason="not a checkout")
def test_continuous_integration_runs_the_second_line() -> None:
    """It reads the line from the README, so that the two cannot drift."""
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    assert "README.md" in script
    assert "pip install -q '.[test]'" not in script


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_relative_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(((?!https?:)[^)]+)\)", page.read_text(encoding="utf-8")):
        path, _, anchor = target.partition("#")
        other = page.parent / path if path else page
        assert other.exists(), target
        if anchor:
            titles = re.findall(r"^#+ (.+)$", other.read_text(encoding="utf-8"), flags=re.M)
            assert anchor in {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}, target


def test_files_that_are_named_exist() -> None:
    """Contributors are sent to files: whoever moves one finds its name here."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    named = re.findall(r"`((?:cpp|python|tests|tools|benchmarks|docs)/[\w./-]*)`", text)
    assert named
    for path in named:
        assert (ROOT / path).exists(), path


def test_commands_parse() -> None:
    commands = [line for line in shell_lines(*PAGES) if line.startswith("depthgauge ")]
    assert commands
    for line in commands:
        arguments = line.partition("#")[0].split()[1:]
        if "--help" not in arguments:
            cli._parser().parse_args(arguments)


def test_the_sizes_that_are_shown_pass() -> None:
    sizes = {
        " ".join(line.split()[1:6]) for line in shell_lines(*PAGES) if line.startswith("depthgauge transport --depth")
    }
    assert sizes
    for size in sizes:
        assert cli.main(size.split()) == 0


def test_every_public_name_has_its_place_in_the_reference() -> None:
    pages = "".join(page.read_text(encoding="utf-8") for page in (ROOT / "docs" / "api").glob("*.md"))
    documented = re.findall(r"^::: depthgauge\.(\w+)$", pages, flags=re.M)
    assert sorted(documented) == sorted(name for name in dg.__all__ if name != "__version__")
