"""What `import depthgauge` loads, and how long it takes."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.slow
def test_import_is_light() -> None:
    code = (
        "import sys, time, numpy; start = time.process_time(); import depthgauge; took = time.process_time() - start;"
        "heavy = {'scipy', 'torch', 'matplotlib', 'cupy', 'jax', 'xarray'} & set(sys.modules);"
        "assert not heavy, heavy; print(took)"
    )
    took = [
        float(subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout)
        for _ in range(3)
    ]
    assert min(took) < 0.1
