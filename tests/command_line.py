"""The command line, run in a process of its own or in this one."""

from __future__ import annotations

import os
import subprocess
import sys

from depthgauge import cli


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "depthgauge", *arguments],
        capture_output=True,
        text=True,
        encoding="utf-8",
        env={**os.environ, **environment},
        check=False,
    )


def exit_status(*arguments: str) -> int:
    """Return the exit status of an in-process run, whether returned or raised."""
    try:
        return cli.main(arguments)
    except SystemExit as stop:
        return int(stop.code or 0)
