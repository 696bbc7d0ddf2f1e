"""depthgauge: what very deep residual stacks do to states, gradients and Jacobians."""

import inspect
from typing import TYPE_CHECKING, Any

from depthgauge._version import __version__
from depthgauge.backends import available_backends
from depthgauge.backends.build_info import build_config
from depthgauge.equation import Block
from depthgauge.jacobians.full import jacobian, jacobian_prefixes
from depthgauge.jacobians.operators import JacobianOperator, jacobian_operator
from depthgauge.jacobians.path_orders import PathNorms, path_norms
from depthgauge.jacobians.rank_profiles import RankGrid, RankProfile, rank_grid, rank_profile
from depthgauge.random.normals import normal
from depthgauge.spectra.estimates import Estimate, estimate_spread
from depthgauge.spectra.products import log_singular_values
from depthgauge.spectra.spreads import Spread, singular_values, spread, spread_ragged
from depthgauge.stacks.generated_weights import GeneratedWeights
from depthgauge.stacks.initialization import initialize
from depthgauge.stacks.propagation import forward, jvp, vjp
from depthgauge.stacks.results import Backward, Forward, Tangent
from depthgauge.stacks.weights import Weights

__all__ = [
    "Backward",
    "Block",
    "Estimate",
    "Forward",
    "GeneratedWeights",
    "JacobianOperator",
    "PathNorms",
    "RankGrid",
    "RankProfile",
    "Spread",
    "Tangent",
    "Weights",
    "__version__",
    "available_backends",
    "build_config",
    "estimate_spread",
    "forward",
    "initialize",
    "jacobian",
    "jacobian_operator",
    "jacobian_prefixes",
    "jvp",
    "log_singular_values",
    "normal",
    "path_norms",
    "rank_grid",
    "rank_profile",
    "read_store",
    "singular_values",
    "spread",
    "spread_ragged",
    "sweep",
    "vjp",
]

if TYPE_CHECKING:
    from depthgauge.sweeps import read_store, sweep

# Public classes and functions are at home here, wherever they are written: pickles and messages then name this module.
# Annotations are evaluated where their names are known.
for _name in __all__:
    _public = globals().get(_name)
    if isinstance(_public, type):
        _public.__annotations__ = inspect.get_annotations(_public, eval_str=True)
    if hasattr(_public, "__module__"):
        _public.__module__ = __name__
del _name, _public


def __getattr__(name: str) -> Any:
    # What needs SQLite and executors is loaded when it is first asked for.
    if name in ("read_store", "sweep"):
        from depthgauge import sweeps

        return getattr(sweeps, name)
    raise AttributeError(f"module 'depthgauge' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
