"""Ctrl-C, sent to a process of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping

import pytest

needs_signals = pytest.mark.skipif(os.name != "posix", reason="sends a POSIX signal")


def output_after_control_c(
    code: str, *arguments: str, after: float, environment: Mapping[str, str] | None = None
) -> list[str]:
    """Run `code`, send Ctrl-C `after` seconds after it prints "ready", and return the words it prints from then on."""
    return output_and_time_after_control_c(code, *arguments, after=after, environment=environment)[0]


def output_and_time_after_control_c(
    code: str, *arguments: str, after: float = 0.0, environment: Mapping[str, str] | None = None
) -> tuple[list[str], float]:
    """Return the words, and the seconds from Ctrl-C to the first line of them."""
    with subprocess.Popen(
        [sys.executable, "-c", code, *arguments],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | (environment or {}),
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline().strip() == "ready"
        time.sleep(after)
        child.send_signal(signal.SIGINT)
        sent = time.monotonic()
        first = child.stdout.readline()
        took = time.monotonic() - sent
        words = (first + child.stdout.read()).split()
    assert child.returncode == 0
    return words, took
