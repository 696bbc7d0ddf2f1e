"""Rank at initialization: the laws of depth, with error bars.

Each study sweeps a few hundred networks over settings and seeds, and reads effective ranks of their Jacobians, or of
what they represent: one stored result, a few fitted numbers with 95 % intervals beside published ones, one figure.
Weights are N(0, alpha²/fan_in), the branch scale is beta, a branch has M matrices; the strength of a branch is
beta * alpha^M.  All of it describes initialization, and shows of no network that it trains; `trainability` alone holds
rank against training, on one small task.

Examples
--------
>>> from depthgauge.studies.rank import STUDIES, run_study
>>> result = run_study(STUDIES["depth"], quick=True, seeds=2)
>>> print(result.findings[-2].name)
Post-Norm: rank at strength 4, depth 48
"""

from depthgauge.studies.rank.correlate import CORRELATE
from depthgauge.studies.rank.depth import DEPTH
from depthgauge.studies.rank.intervals import Expected, Finding, Interval
from depthgauge.studies.rank.operations import OPERATIONS
from depthgauge.studies.rank.paths import PATHS
from depthgauge.studies.rank.ratio import RATIO
from depthgauge.studies.rank.skip import SKIP
from depthgauge.studies.rank.spike import SPIKE
from depthgauge.studies.rank.stream import STREAM
from depthgauge.studies.rank.study import Part, Study, StudyResult, run_study
from depthgauge.studies.rank.trainability import TRAINABILITY
from depthgauge.studies.rank.width import WIDTH

STUDIES = {
    study.name: study
    for study in (SKIP, RATIO, DEPTH, CORRELATE, OPERATIONS, PATHS, SPIKE, WIDTH, STREAM, TRAINABILITY)
}

__all__ = ["STUDIES", "Expected", "Finding", "Interval", "Part", "Study", "StudyResult", "run_study"]
