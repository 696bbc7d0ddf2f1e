"""``depthgauge info``: how the package was built and what it uses here."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from typing import Any

import depthgauge as dg
from depthgauge.cli.terminal import to_json


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "info", description="Print version, compiler, flags, instruction sets and threads, for bug reports."
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")
    parser.set_defaults(command=_run)


def _run(arguments: argparse.Namespace) -> int:
    config = dg.build_config()
    if arguments.json:
        print(to_json(config))
    else:
        entries = list(_flattened(config))
        width = max(len(name) for name, _ in entries)
        print("\n".join(f"{name.ljust(width)}  {value}".rstrip() for name, value in entries))
    return 0


def _flattened(config: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    for name, value in config.items():
        if isinstance(value, Mapping):
            yield from _flattened(value, f"{prefix}{name}.")
        elif isinstance(value, (list, tuple)):
            yield prefix + name, ", ".join(map(str, value))
        else:
            yield prefix + name, str(value)
