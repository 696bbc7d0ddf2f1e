"""During every native call the interpreter runs on, and Ctrl-C stops it within half a second."""

from __future__ import annotations

import pytest
from interrupts import needs_signals, output_and_time_after_control_c
from registry import CALLS

# Each takes seconds, in little memory: replicates, probes and matrices share one array.
SETUP = """
import threading, time
import numpy as np
import depthgauge as dg

block = dg.Block(branch_scale=0.1)
weights = dg.GeneratedWeights(block, 8, 512, init="he", seed=0, dtype=np.float32).materialize()
x = dg.normal(1, (256, 512), dtype=np.float32)
many = np.broadcast_to(x, (400, *x.shape))
fwd = dg.forward(block, weights, x)
matrices = np.broadcast_to(x[:128, :128], (300000, 128, 128))

def sweep_cell(i, seed):
    return {"x": dg.normal(seed, 10)[i % 10]}
"""

CALLS_OF_SECONDS = {
    "forward": "dg.forward(block, weights, many, keep='nothing')",
    "vjp": "dg.vjp(block, weights, fwd, many)",
    "vjp with weights": "dg.vjp(block, weights, fwd, x, weight_grads=True)",
    "jvp": "dg.jvp(block, weights, fwd, many)",
    "jacobian": "dg.jacobian(block, weights, x)",
    "jacobian_prefixes": "next(dg.jacobian_prefixes(block, weights, x, depths=[8]))",
    "jacobian_operator": "dg.jacobian_operator(block, weights, x[0]).matmat(np.tile(x[0, :, None], 30000))",
    "rank_profile": "dg.rank_profile(block, weights, x, depths=[8])",
    "rank_profile graded": "dg.rank_profile(block, weights, x, depths=[8], method='graded')",
    "rank_grid": "dg.rank_grid([block, block], weights, x, depths=[8])",
    "path_norms": "dg.path_norms(block, weights, x[:64], 4)",
    "singular_values": "dg.singular_values(matrices)",
    "singular_values relative": "dg.singular_values(matrices, accuracy='relative')",
    "spread": "dg.spread(matrices)",
    "spread_ragged": "dg.spread_ragged([dg.normal(index, (2000, 2000)) for index in range(3)])",
    "log_singular_values": "dg.log_singular_values(np.broadcast_to(x[:64, :64], (400, 500, 64, 64)))",
    "log_singular_values of a large matrix": "dg.log_singular_values(dg.normal(1, (1, 1500, 1500)))",
    "estimate_spread": "dg.estimate_spread(dg.normal(1, (1500, 1500)), steps=600)",
    "GeneratedWeights": "dg.GeneratedWeights(block, 500, 512, seed=0).materialize()",
    "normal": "dg.normal(1, 2**27)",
    "sweep": "dg.sweep(sweep_cell, {'i': range(10**5)})",
}

# Another thread tells that the call has begun; it needs the interpreter many times, which a call that kept it would
# grant once.
CODE = """
def announce():
    began = time.monotonic()
    for _ in range(10):
        time.sleep(0.01)
    print("ready" if time.monotonic() - began < 5 else "starved", flush=True)

before = dg.forward(block, weights, x[:3]).output
threading.Thread(target=announce).start()
try:
    while True:
        {call}
except KeyboardInterrupt:
    print("interrupted", flush=True)
assert np.array_equal(dg.forward(block, weights, x[:3]).output, before)
print("works", flush=True)
"""


@needs_signals
@pytest.mark.slow
@pytest.mark.parametrize("call", CALLS_OF_SECONDS)
def test_control_c_stops_a_call_within_half_a_second_and_the_next_one_works(call: str) -> None:
    if call == "sweep":
        pytest.importorskip("xarray")
    code = SETUP + CODE.format(call=CALLS_OF_SECONDS[call])
    for _ in range(3):
        words, took = output_and_time_after_control_c(code, environment={"DEPTHGAUGE_BACKEND": "native"})
        assert words == ["interrupted", "works"]
        if took < 0.5:
            return  # a busy machine may take longer
    pytest.fail(f"took {took:.2f} s")


def test_every_call_that_works_is_interrupted() -> None:
    functions = {call.function for call in CALLS if call.takes_options or call.function == "sweep"}
    assert functions <= CALLS_OF_SECONDS.keys()
