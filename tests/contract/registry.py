"""Every public call, one entry each: what is promised of all functions is tested of all that stand here."""

from __future__ import annotations

from typing import Any

import numpy as np
from calls import FIELDS, Axes, Call, Case

import depthgauge as dg

# A gated branch has every field that there is; dead units of ReLU are left out of products.
GATED = dg.Block(branch="gated", activation="gelu", output_norm="rms", post_norm="layer", branch_scale=0.7)
RELU = dg.Block(activation="relu", branch_scale=0.7, skip_scale=0.9)
LINEAR = dg.Block(branch="linear", activation="tanh", pre_norm="layer", output_norm="rms", post_norm="layer")
OF_RELU = {name: axes for name, axes in FIELDS.items() if not name.endswith("gate")}
OF_LINEAR = {name: axes for name, axes in FIELDS.items() if name.startswith(("pre", "output", "post"))}
OF_LINEAR |= {"up": "R L d d", "b_up": "R L d"}
ONE_STACK = {name: axes.removeprefix("R ") for name, axes in OF_RELU.items()}
QUANTILES = (0.25, 1.0)

STATE, GRADIENT = "R B d", {"input_gradient": "R B d"} | dict.fromkeys(("rms", "max_abs", "nonfinite"), "R S")
SCALES = {"branch_scale": "R L", "skip_scale": "R L"}


def spread(measures: Axes, values: Axes) -> dict[str, Axes]:
    """The arrays of a Spread."""
    names = ("effective_rank", "effective_rank_of_squares", "stable_rank", "participation_ratio", "condition")
    of_matrices = dict.fromkeys((*names, "log_spread", "log_max", "full_rank", "converged"), measures)
    return of_matrices | dict.fromkeys(("singular_values", "log_singular_values"), values)


def prefixes(case: Case, **options: Any) -> dict[str, Any]:
    found = list(dg.jacobian_prefixes(RELU, case.weights, case["x"], return_log_scale=True, **options))
    assert [depth for depth, _ in found] == list(range(case.sizes.depth + 1))
    return {
        name: dict(zip(("jacobian", "log_scale"), found[at][1], strict=True))
        for name, at in (("first", 0), ("last", -1))
    }


def products(case: Case, **options: Any) -> dict[str, Any]:
    operator = dg.jacobian_operator(RELU, case.weights, case["x"], **options)
    return {
        "operator": operator,
        "matmat": operator.matmat(case["X"]),
        "rmatmat": operator.rmatmat(case["Y"]),
        "rmatvec": operator.rmatvec(case["y"]),
    }


def logs_and_jacobian(case: Case, **options: Any) -> dict[str, Any]:
    depths = [case.sizes.depth, 0]
    found = dg.jacobian(GATED, case.weights, case["x"], depths=depths, return_log_scale=True, **options)
    return dict(zip(("jacobian", "log_scale"), found, strict=True))


def cell(block: dg.Block, depth: int, seed: int) -> dict[str, Any]:
    fwd = dg.forward(block, dg.GeneratedWeights(block, depth, 4, seed=seed), dg.normal(seed, (3, 4)))
    return {"rms": fwd.rms[-1], "state": (("example", "feature"), fwd.output)}


def profile(method: Any) -> Call:
    return Call(
        f"rank_profile {method}",
        "rank_profile",
        lambda c, **o: dg.rank_profile(RELU, c.weights, c["x"], method=method, **o),
        OF_RELU | {"x": STATE},
        spread("R S B", "R S B d") | {"depths": "S", "method": "R S B"},
    )


CALLS = (
    Call(
        "forward",
        "forward",
        lambda c, **o: dg.forward(GATED, c.weights, c["x"], quantiles=QUANTILES, cosine=True, **o),
        FIELDS | {"x": STATE},
        {"output": STATE, "states": "R S B d", "state_quantiles": "R S 2", "derivative_quantiles": "R L 2"}
        | dict.fromkeys(("rms", "max_abs", "batch_mean_norm", "nonfinite", "cosine"), "R S")
        | dict.fromkeys(("branch_rms", "live_fraction", "dead_units", "saturation", "residual_ratio"), "R L"),
    ),
    Call(
        "vjp",
        "vjp",
        lambda c, **o: dg.vjp(RELU, c.weights, c["fwd_or_x"], c["cotangent"], quantiles=QUANTILES, **o),
        OF_RELU | {"fwd_or_x": STATE, "cotangent": STATE},
        GRADIENT | {"gradient_quantiles": "R S 2"},
    ),
    Call(
        "vjp with weights",
        "vjp",
        lambda c, **o: dg.vjp(GATED, c.weights, c["fwd_or_x"], c["cotangent"], weight_grads=True, **o),
        FIELDS | {"fwd_or_x": STATE, "cotangent": STATE},
        GRADIENT | SCALES | {f"weights.{name}": axes for name, axes in FIELDS.items()},
    ),
    Call(
        "vjp of a linear branch",
        "vjp",
        lambda c, **o: dg.vjp(LINEAR, c.weights, c["fwd_or_x"], c["cotangent"], weight_grads=True, **o),
        OF_LINEAR | {"fwd_or_x": STATE, "cotangent": STATE},
        GRADIENT | SCALES | {f"weights.{name}": axes for name, axes in OF_LINEAR.items()},
    ),
    Call(
        "vjp with rms",
        "vjp",
        lambda c, **o: dg.vjp(RELU, c.weights, c["fwd_or_x"], c["cotangent"], weight_grads="rms", **o),
        OF_RELU | {"fwd_or_x": STATE, "cotangent": STATE},
        GRADIENT | {f"weight_rms.{name}": "R L" for name in OF_RELU},
    ),
    Call(
        "jvp",
        "jvp",
        lambda c, **o: dg.jvp(GATED, c.weights, c["fwd_or_x"], c["tangent"], **o),
        FIELDS | {"fwd_or_x": STATE, "tangent": STATE},
        {"output": STATE, "rms": "R S"},
    ),
    Call(
        "jacobian",
        "jacobian",
        lambda c, **o: {"jacobian": dg.jacobian(RELU, c.weights, c["x"], **o)},
        OF_RELU | {"x": STATE},
        {"jacobian": "R B d d"},
    ),
    Call(
        "jacobian at depths",
        "jacobian",
        logs_and_jacobian,
        FIELDS | {"x": STATE},
        {"jacobian": "R 2 B d d", "log_scale": "R 2 B"},
    ),
    Call(
        "jacobian_prefixes",
        "jacobian_prefixes",
        prefixes,
        OF_RELU | {"x": STATE},
        {
            f"{at}.{name}": axes
            for at in ("first", "last")
            for name, axes in (("jacobian", "R B d d"), ("log_scale", "R B"))
        },
    ),
    Call(
        "jacobian_operator",
        "jacobian_operator",
        products,
        ONE_STACK | {"x": "1 d", "X": "d B", "Y": "d B", "y": "d 1"},
        {"matmat": "d B", "rmatmat": "d B", "rmatvec": "d 1"},
    ),
    profile("auto"),
    profile("direct"),
    profile("graded"),
    Call(
        "rank_grid",
        "rank_grid",
        lambda c, **o: dg.rank_grid([RELU, RELU.replace(branch_scale=0.2)], c.weights, c["x"], **o),
        OF_RELU | {"x": STATE},
        spread("2 R S B", "2 R S B d") | {"depths": "S"},
    ),
    Call(
        "path_norms",
        "path_norms",
        lambda c, **o: dg.path_norms(GATED, c.weights, c["x"], 2, ranks=True, **o),
        FIELDS | {"x": STATE},
        dict.fromkeys(("norms", "effective_rank", "predicted", "predicted_poisson"), "R 3 B")
        | {"reconstruction_error": "R B", "branch_squares": "R L B", "gain": "R B"},
    ),
    Call(
        "singular_values",
        "singular_values",
        lambda c, **o: {"singular_values": dg.singular_values(c["a"], **o)},
        {"a": "R B d m"},
        {"singular_values": "R B n"},
    ),
    Call(
        "singular_values relative",
        "singular_values",
        lambda c, **o: {"singular_values": dg.singular_values(c["a"], accuracy="relative", **o)},
        {"a": "R B d m"},
        {"singular_values": "R B n"},
    ),
    Call("spread", "spread", lambda c, **o: dg.spread(c["a"], **o), {"a": "R B d m"}, spread("R B", "R B n")),
    Call(
        "spread of values",
        "spread",
        lambda c, **o: dg.spread(singular_values=c["singular_values"], **o),
        {"singular_values": "R B d"},
        spread("R B", "R B d"),
    ),
    Call(
        "spread of logs",
        "spread",
        lambda c, **o: dg.spread(log_singular_values=c["log_singular_values"], **o),
        {"log_singular_values": "R B d"},
        spread("R B", "R B d"),
    ),
    Call(
        "spread_ragged",
        "spread_ragged",
        lambda c, **o: dg.spread_ragged([c[f"matrices[{index}]"] for index in range(3)], **o),
        {"matrices[0]": "d m", "matrices[1]": "m d", "matrices[2]": "d d"},
        spread("3", "3 ?"),
    ),
    Call(
        "log_singular_values",
        "log_singular_values",
        lambda c, **o: {"log_singular_values": dg.log_singular_values(c["factors"], **o)},
        {"factors": "R B L d d"},
        {"log_singular_values": "R B d"},
        lists=False,
    ),
    Call(
        "log_singular_values of prefixes",
        "log_singular_values",
        lambda c, **o: {"log_singular_values": dg.log_singular_values(c["factors"], prefixes=True, **o)},
        {"factors": "R B L d d"},
        {"log_singular_values": "R B L d"},
        lists=False,
    ),
    Call(
        "log_singular_values of a list",
        "log_singular_values",
        lambda c, **o: {"log_singular_values": dg.log_singular_values([c["factors[0]"], c["factors[1]"]], **o)},
        {"factors[0]": "R B m d", "factors[1]": "R B d m"},
        {"log_singular_values": "R B d"},
    ),
    Call(
        "estimate_spread",
        "estimate_spread",
        lambda c, **o: dg.estimate_spread(c["operator"], probes=4, **o),
        {"operator": "d m"},
        {"nodes": "4 ?", "weights": "4 ?"},
        exact=False,  # NumPy multiplies by the transpose otherwise than by its copy
    ),
    Call(
        "initialize",
        "initialize",
        lambda c: dg.initialize(GATED, c.sizes.depth, c.sizes.width, c.sizes.hidden, rng=c.seeds, dtype=c.dtype),
        results={f"{name}": FIELDS[name] for name in ("up", "gate", "down")},
        takes_options=False,
    ),
    Call(
        "materialize",
        "GeneratedWeights",
        lambda c, **o: dg.GeneratedWeights(
            GATED, c.sizes.depth, c.sizes.width, c.sizes.hidden, seed=c.seeds, dtype=c.dtype
        ).materialize(**o),
        results={f"{name}": FIELDS[name] for name in ("up", "gate", "down")},
    ),
    Call(
        "normal",
        "normal",
        lambda c, **o: {"normal": dg.normal(3, c.sizes.shape("B d m"), dtype=c.dtype, **o)},
        results={"normal": "B d m"},
    ),
    Call("Weights", "Weights", lambda c: c.weights, FIELDS, FIELDS, takes_options=False, keeps_inputs=True),
    Call(
        "Weights.from_linear",
        "Weights",
        lambda c: dg.Weights.from_linear(**c.arrays),
        {"up": "R L m d", "down": "R L d m", "b_up": "R L m"},
        {"up": "R L d m", "down": "R L m d", "b_up": "R L m"},
        takes_options=False,
        lists=False,
    ),
    Call(
        "sweep",
        "sweep",
        lambda c: dg.sweep(cell, {"block": [RELU, GATED], "depth": [0, 2]}, seeds=2),
        results={"rms": "2 2 2", "state": "2 2 2 3 4"},
        takes_options=False,
        sized=False,
    ),
)

# Results, by the last part of their names, in the dtype of the arguments; others are float64, or what stands below.
IN_DTYPE = {"output", "states", "input_gradient", "jacobian", "matmat", "rmatmat", "rmatvec", "singular_values"}
IN_DTYPE |= {"normal", *FIELDS}
OTHER_DTYPES = {"nonfinite": np.int64, "full_rank": np.int64, "depths": np.int64, "converged": np.bool_}

# Public names that need no entry, and why.
EXCEPTIONS = {
    "Block": "plain values; tests/test_equation.py",
    "__version__": "a string",
    "available_backends": "takes no arguments, returns strings",
    "build_config": "takes no arguments, returns strings",
    "read_store": "reads what sweep wrote; tests/sweeps/",
}
