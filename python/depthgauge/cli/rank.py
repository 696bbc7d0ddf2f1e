"""The command ``depthgauge rank``."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator
from pathlib import Path

from depthgauge import plots
from depthgauge.cli.terminal import aligned, integer, plot_path, three_digits, to_json
from depthgauge.studies.rank import STUDIES, Study, StudyResult, run_study
from depthgauge.studies.rank.study import SEEDS, check_packages

DESCRIPTION = """\
Studies of rank at initialization. Weights are N(0, alpha^2/fan_in), the branch scale is beta,
a branch has M matrices, and its strength is beta * alpha^M. Effective ranks are those of the
Jacobian of the whole stack, as a share of the width, unless said otherwise.

studies:
"""

FOOT = """\
Every number is a mean over seeds with its 95 % interval (Student's t). A published figure
agrees if its range, for it was rounded, and the interval overlap.

A measurement at initialization is a commissioning check. That a network keeps its rank does
not show that it trains."""


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to a parser's commands."""
    width = max(map(len, STUDIES)) + 2
    studies = "\n".join(f"  {name:<{width}}{study.question}" for name, study in STUDIES.items())
    parser = commands.add_parser(
        "rank",
        description=f"{DESCRIPTION}{studies}\n  {'all':<{width}}All of them, one after the other",
        epilog=FOOT,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    count = integer(1)
    parser.add_argument("studies", nargs="+", choices=(*STUDIES, "all"), metavar="STUDY", help="one or more of these")
    parser.add_argument("--without", nargs="+", default=[], choices=tuple(STUDIES), metavar="STUDY", help="leave out")
    parser.add_argument(
        "--seeds",
        type=count,
        metavar="N",
        help="seeds (default 12, --quick 3; trainability 3, and more only if it is the only study)",
    )
    parser.add_argument(
        "--depths", type=_depths, metavar="N,N,...", help="numbers of blocks, in place of the study's own"
    )
    parser.add_argument(
        "--width",
        type=integer(2),
        metavar="N",
        help="features of a state (default 256; 64 with --quick, 32 for trainability)",
    )
    parser.add_argument("--quick", action="store_true", help="small defaults, for a first look")
    parser.add_argument(
        "--store",
        type=Path,
        metavar="FILE",
        help="keep every finished cell in this SQLite file, and go on from it if it is there",
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables, with every curve")
    parser.add_argument(
        "--plot",
        type=plot_path,
        metavar="FILE",
        help="also write a plot; FILE ends in .png, .pdf or .svg, and of several studies each goes to FILE-STUDY",
    )
    parser.add_argument("--threads", type=count, metavar="N", help="threads (default: the CPUs usable here)")
    parser.set_defaults(command=_rank)


def _depths(text: str) -> list[int]:
    parse = integer(1)
    return [parse(depth) for depth in text.split(",")]


def _rank(arguments: argparse.Namespace) -> int:
    try:
        return _run(arguments)
    except KeyboardInterrupt as stopped:
        print(f"depthgauge: stopped: {stopped}", file=sys.stderr, flush=True)
        # The interpreter would wait at its exit for the cells that have begun, seconds each.
        os._exit(130)


def _run(arguments: argparse.Namespace) -> int:
    if arguments.plot is not None:
        plots.require_matplotlib()
    asked = tuple(STUDIES) if "all" in arguments.studies else tuple(dict.fromkeys(arguments.studies))
    names = [name for name in asked if name not in arguments.without]
    if not names:
        raise ValueError("--without leaves no study to run")
    check_packages(STUDIES[name] for name in names)
    results = []
    for number, name in enumerate(names):
        result = run_study(
            STUDIES[name],
            seeds=_seeds(arguments.seeds, STUDIES[name], len(names)),
            depths=arguments.depths,
            width=arguments.width,
            quick=arguments.quick,
            store=arguments.store,
            threads=arguments.threads,
        )
        results.append(result)
        if not arguments.json:
            print(("\n\n" if number else "") + study_text(result), flush=True)
        print(f"depthgauge: {name} took {result.seconds:.1f} s", file=sys.stderr)
        if arguments.plot is not None:
            path = arguments.plot
            path = path if len(names) == 1 else path.with_stem(f"{path.stem}-{name}")
            plots.save(result.figure(), path)
            print(f"depthgauge: wrote {path}", file=sys.stderr)
    if arguments.json:
        whole = {result.study.name: result.to_dict() for result in results}
        print(to_json(whole if len(names) > 1 else whole[names[0]]))
    return 0


def _seeds(asked: int | None, study: Study, studies: int) -> int | None:
    """Return the seeds asked for; beside other studies a long one takes no more than its own."""
    if asked is None or studies == 1 or study.seeds >= SEEDS:
        return asked
    return min(asked, study.seeds)


def study_text(result: StudyResult) -> str:
    """Return a study as text: its table, then what was found beside what was expected."""
    study = result.study
    lines = [
        f"{study.name}: {study.question}",
        f"At initialization, a commissioning check: width {result.width}, depths {', '.join(map(str, result.depths))}, "
        f"{result.seeds} seed{'s' if result.seeds > 1 else ''}",
        "",
        *aligned(study.table(result.results), left=(0,)),
        "",
        *aligned(list(_finding_rows(result)), left=(0, 4)),
        *(("", study.warning) if study.warning else ()),
    ]
    return "\n".join(lines)


def _finding_rows(result: StudyResult) -> Iterator[list[str]]:
    yield ["found", "mean", "95 % interval", "expected", ""]
    for finding in result.findings:
        measured, expected = finding.measured, finding.expected
        remarks = [] if finding.agrees is None else ["agrees" if finding.agrees else "differs"]
        if measured.seeds < result.seeds:
            remarks.append(f"{measured.seeds} of {result.seeds} seeds")
        yield [
            finding.name,
            three_digits(measured.mean),
            f"[{three_digits(measured.low)}, {three_digits(measured.high)}]",
            "" if expected is None else f"{expected.text} ({expected.source})",
            ", ".join(remarks),
        ]
