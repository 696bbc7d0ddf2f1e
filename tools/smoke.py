"""Try an installed depthgauge: both backends on one small problem, and the command line.

It imports nothing but the package and NumPy, so that it can follow a wheel into an empty environment:

    python -I tools/smoke.py
"""

from __future__ import annotations

import contextlib
import io
from pathlib import Path

import numpy as np

import depthgauge as dg
from depthgauge import cli


def check_backends() -> None:
    """Compare states, gradients, a Jacobian and its singular values with the reference's."""
    block = dg.Block(activation="gelu", branch="gated", pre_norm="rms", branch_scale=0.5)
    weights = dg.initialize(block, depth=6, width=24, hidden=40, rng=0)
    rng = np.random.default_rng(1)
    x, cotangent = rng.standard_normal((2, 10, 24))

    found = {}
    for backend in ("native", "reference"):
        forward = dg.forward(block, weights, x, backend=backend)
        backward = dg.vjp(block, weights, forward, cotangent, backend=backend)
        jacobian = dg.jacobian(block, weights, x, backend=backend)
        values = dg.singular_values(jacobian, backend=backend)
        found[backend] = (forward.output, forward.rms, backward.input_gradient, jacobian, values)
    for native, reference in zip(found["native"], found["reference"], strict=True):
        np.testing.assert_allclose(native, reference, rtol=1e-10, atol=1e-10 * np.abs(reference).max())


def check_command() -> None:
    """Run the transport table, whose status says that its checks hold."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        status = cli.main(["transport"])
    if status != 0 or "checks: PASS" not in printed.getvalue():
        raise SystemExit(printed.getvalue())


def main() -> None:
    """Check that all runs, and say what ran."""
    if dg.available_backends()[0] != "native":
        raise SystemExit(f"backends: {dg.available_backends()}")
    check_backends()
    check_command()
    print(
        f"depthgauge {dg.__version__} with NumPy {np.__version__} on {dg.build_config()['target']},"
        f" from {Path(dg.__file__).parent}: ok"
    )


if __name__ == "__main__":
    main()
