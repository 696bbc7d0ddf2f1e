"""Calls beside other work: Ctrl-C, the interpreter lock, the floating-point mode."""

from __future__ import annotations

import subprocess
import sys
import threading
import time

import numpy as np
import pytest
from interrupts import needs_signals, output_after_control_c

import depthgauge as dg

# A call of many seconds on any machine, in little memory: replicates and probes that share one array and one stack.
LONG_CALL = """
import sys
import numpy as np
import depthgauge as dg

block = dg.Block(activation="relu", branch_scale=0.1)
weights = dg.initialize(block, 32, 512, init="he", rng=0, dtype=np.float32)
x = np.random.default_rng(1).standard_normal((256, 512)).astype(np.float32)
many = np.broadcast_to(x, (400, *x.shape))
fwd = dg.forward(block, weights, x)
calls = {
    "forward": lambda: dg.forward(block, weights, many, keep="nothing"),
    "vjp": lambda: dg.vjp(block, weights, fwd, many),
    "jvp": lambda: dg.jvp(block, weights, fwd, many),
    "singular_values": lambda: dg.singular_values(np.broadcast_to(x[:128, :128], (300000, 128, 128))),
}
before = dg.forward(block, weights, x[:3]).output
print("ready", flush=True)
try:
    calls[sys.argv[1]]()
    print("finished", flush=True)
except KeyboardInterrupt:
    print("interrupted", flush=True)
assert np.array_equal(dg.forward(block, weights, x[:3]).output, before)
print("works", flush=True)
"""


@needs_signals
@pytest.mark.parametrize("call", ["forward", "vjp", "jvp", "singular_values"])
def test_control_c_stops_a_native_call_and_the_next_one_works(call: str) -> None:
    words = output_after_control_c(LONG_CALL, call, after=0.3, environment={"DEPTHGAUGE_BACKEND": "native"})
    assert words == ["interrupted", "works"]


def test_the_interpreter_runs_on_during_a_call() -> None:
    block = dg.Block()
    weights = dg.initialize(block, 16, 256, rng=0)
    x = np.random.default_rng(1).standard_normal((512, 256))
    running, ticks = threading.Event(), 0

    def call() -> None:
        running.set()
        dg.forward(block, weights, x, backend="native", threads=1)
        running.clear()

    worker = threading.Thread(target=call)
    worker.start()
    running.wait()
    while running.is_set():
        ticks += 1
        time.sleep(0)
    worker.join()
    # A call that kept the lock would let this loop pass once or twice.
    assert ticks > 20


def test_the_floating_point_mode_is_left_alone() -> None:
    block = dg.Block()
    weights = dg.initialize(block, 2, 9, rng=0)
    x = np.full((3, 9), 5e-310)
    dg.vjp(block, weights, x, x, weight_grads=True, backend="native")
    tiny = np.array([5e-324])
    assert (tiny * 1.0)[0] == 5e-324  # no flush to zero
    with np.errstate(all="ignore"):
        assert (np.array([1e308]) * 10)[0] == np.inf
    assert np.array([2.5, 3.5]).round().tolist() == [2.0, 4.0]


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


def test_the_interpreter_ends_while_daemon_threads_call() -> None:
    for _ in range(5):
        ended = subprocess.run([sys.executable, "-c", DAEMONS], capture_output=True, text=True, timeout=60)
        assert (ended.returncode, ended.stdout, ended.stderr) == (0, "done\n", "")
