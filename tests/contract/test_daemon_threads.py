"""Native calls in threads that nobody waits for."""

from __future__ import annotations

import subprocess
import sys

import pytest

# Calls of all sorts in threads that nobody waits for, which the end of the interpreter meets in the middle.
DAEMONS = """
import threading
import time
import numpy as np
import depthgauge as dg

block = dg.Block()
weights = dg.initialize(block, 20, 64, rng=0)
x = np.random.default_rng(1).standard_normal((64, 64))
started = threading.Barrier(4)

def work(call):
    call()
    started.wait()
    while True:
        call()

for call in (
    lambda: dg.forward(block, weights, x),
    lambda: dg.singular_values(np.broadcast_to(x, (2000, 64, 64))),
    lambda: dg.singular_values(x[:3, :3]),
):
    threading.Thread(target=work, args=(call,), daemon=True).start()
started.wait()
time.sleep(0.05)
print("done", flush=True)
"""


@pytest.mark.slow
def test_the_interpreter_ends_while_daemon_threads_call() -> None:
    for _ in range(5):
        ended = subprocess.run([sys.executable, "-c", DAEMONS], capture_output=True, text=True, timeout=60)
        assert (ended.returncode, ended.stdout, ended.stderr) == (0, "done\n", "")
