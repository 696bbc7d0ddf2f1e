"""The block equation as data.

One block maps the state `h`, shape (B, d), rows being examples, to `h'`::

    u  = N_pre(h)
    r  = N_output(branch(u))
    h' = N_post(skip_scale * h + branch_scale * r)
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from depthgauge._common import arguments

ACTIVATIONS = ("relu", "leaky_relu", "tanh", "sigmoid", "gelu", "gelu_tanh", "silu", "abs", "identity")
# The matrices of each kind of branch, in the order in which they are drawn.
BRANCH_MATRICES = {"mlp": ("up", "down"), "linear": ("up",), "gated": ("up", "gate", "down")}
BRANCHES = tuple(BRANCH_MATRICES)
NORMS = ("none", "rms", "layer", "center", "dyt", "rms_detached", "layer_detached")
NORM_PLACES = ("pre", "output", "post")
PLACEMENTS = ("none", "pre", "post", "output", "sandwich")

_ACTIVATION_SYNONYMS = {
    "swish": "silu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_approximate": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_erf": "gelu",
    "gelu_exact": "gelu",
    "lrelu": "leaky_relu",
    "leaky": "leaky_relu",
    "leakyrelu": "leaky_relu",
    "logistic": "sigmoid",
    "absolute": "abs",
    "linear": "identity",
    "none": "identity",
}
_BRANCH_SYNONYMS = {"ffn": "mlp", "feedforward": "mlp", "glu": "gated", "swiglu": "gated", "geglu": "gated"}
_NORM_SYNONYMS = {
    "rmsnorm": "rms",
    "rms_norm": "rms",
    "layernorm": "layer",
    "layer_norm": "layer",
    "ln": "layer",
    "centre": "center",
    "mean": "center",
    "dynamic_tanh": "dyt",
    "identity": "none",
}
_NORM_FIELDS = tuple(f"{place}_norm" for place in NORM_PLACES)


def field_names(branch: str) -> tuple[str, ...]:
    """Return the fields of weights that a kind of branch has use for: matrices, their biases, gains and shifts."""
    matrices = BRANCH_MATRICES[branch]
    biases = (f"b_{name}" for name in matrices)
    return (*matrices, *biases, *(f"{place}_{part}" for place in NORM_PLACES for part in ("gain", "shift")))


@dataclass(frozen=True, kw_only=True)
class Block:
    """The equation of one residual block, the same for every layer of a stack but for its scales.

    With `a` the `weight_scale` and `phi` the activation, the branch of `u` is

    - ``"mlp"``: ``z = a (u @ up) + b_up``, then ``a (phi(z) @ down) + b_down``;
    - ``"linear"``: ``z = a (u @ up) + b_up``, then ``phi(z)``;
    - ``"gated"``: ``z = a (u @ gate) + b_gate``, then ``a ((phi(z) * (a (u @ up) + b_up)) @ down) + b_down``.

    Biases, gains and shifts are the business of `Weights`; absent ones leave their term out.  A norm with a gain or a
    shift is ``N(x) * gain + shift``, and so is norm ``"none"``, whose ``N(x)`` is x.

    Parameters
    ----------
    activation : str
        relu, leaky_relu, tanh, sigmoid, gelu (exact, by erf), gelu_tanh, silu, abs or identity.  At 0, relu' and abs'
        are 0 and leaky_relu' is `slope`.
    branch : str
        mlp (two matrices), linear (one) or gated (three; SwiGLU and its kin).
    pre_norm, output_norm, post_norm : str
        The norm of the branch's input, of its output, and of the sum; over the features of one example.

        - none;
        - rms: ``x / sqrt(mean(x**2) + eps)``;
        - layer: centre, then the same with the biased variance;
        - center: subtract the mean;
        - dyt: ``tanh(dyt_alpha * x)``;
        - rms_detached, layer_detached: the same values, but the factor that rescales is a constant to derivatives.
    branch_scale, skip_scale : float or sequence of float
        Factors of the branch and of the skip path: one scalar, or one value a layer, kept as a tuple.  A term whose
        scale is 0 is left out: ``skip_scale=0`` is a plain stack, ``branch_scale=0`` the no-op block.
    weight_scale : float
        Factor of every matrix product.
    eps : float
        Inside the root of rms and layer; at least 0.  With 0, a row of zeros gives zeros and a zero derivative.
    slope : float
        Slope of leaky_relu at and below 0.
    dyt_alpha : float
        Factor inside dyt.

    Raises
    ------
    ValueError
        For an unknown name (the message suggests the near one), a scalar that is not finite, or a negative `eps`.
    TypeError
        For a value of the wrong kind; a bool is no number.

    References
    ----------
    RMS norm: Zhang & Sennrich 2019.  Layer norm: Ba, Kiros & Hinton 2016.  DyT: Zhu et al. 2025.  GELU: Hendrycks &
    Gimpel 2016.  Gated branches: Shazeer 2020.

    Examples
    --------
    >>> print(Block(branch_scale=0.1).formula())
    h' = h + 0.1 * (relu(rms(h, eps=1e-06) @ up + b_up) @ down + b_down)
    """

    activation: str = "relu"
    branch: str = "mlp"
    pre_norm: str = "rms"
    output_norm: str = "none"
    post_norm: str = "none"
    branch_scale: float | Sequence[float] = 1.0
    skip_scale: float | Sequence[float] = 1.0
    weight_scale: float = 1.0
    eps: float = 1e-6
    slope: float = 0.01
    dyt_alpha: float = 0.5

    def __post_init__(self) -> None:
        checked = {
            "activation": arguments.choice("activation", self.activation, ACTIVATIONS, _ACTIVATION_SYNONYMS),
            "branch": arguments.choice("branch", self.branch, BRANCHES, _BRANCH_SYNONYMS),
            "branch_scale": arguments.scale("branch_scale", self.branch_scale),
            "skip_scale": arguments.scale("skip_scale", self.skip_scale),
            "weight_scale": arguments.real("weight_scale", self.weight_scale),
            "eps": arguments.real("eps", self.eps, minimum=0.0),
            "slope": arguments.real("slope", self.slope),
            "dyt_alpha": arguments.real("dyt_alpha", self.dyt_alpha),
        }
        for place in _NORM_FIELDS:
            checked[place] = arguments.choice(place, getattr(self, place), NORMS, _NORM_SYNONYMS)
        for name, value in checked.items():
            object.__setattr__(self, name, value)

    @classmethod
    def placed(cls, placement: str, norm: str = "rms", **rest: Any) -> Block:
        """Return a block with `norm` at one placement and no norm elsewhere.

        Parameters
        ----------
        placement : str
            none, pre, post, output or sandwich (pre and output).
        norm : str
            The norm to place.
        **rest
            The other fields of `Block`.

        Raises
        ------
        ValueError
            If the placement or the norm is unknown.
        TypeError
            If `rest` names a norm again.
        """
        arguments.choice("placement", placement, PLACEMENTS, {"post_norm": "post", "pre_norm": "pre"})
        arguments.choice("norm", norm, NORMS, _NORM_SYNONYMS)
        repeated = sorted({*_NORM_FIELDS} & rest.keys())
        if repeated:
            raise TypeError(f"Block.placed sets {', '.join(repeated)} itself; use Block(...) to choose each norm")
        return cls(
            pre_norm=norm if placement in ("pre", "sandwich") else "none",
            output_norm=norm if placement in ("output", "sandwich") else "none",
            post_norm=norm if placement == "post" else "none",
            **rest,
        )

    def replace(self, **changes: Any) -> Block:
        """Return a copy with some fields changed, checked anew."""
        return dataclasses.replace(self, **changes)

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as plain data; scales that differ by layer are lists."""
        return {
            field.name: list(value) if isinstance(value := getattr(self, field.name), tuple) else value
            for field in dataclasses.fields(self)
        }

    @classmethod
    def from_dict(cls, fields: dict[str, Any]) -> Block:
        """Return the block that `to_dict` described; fields left out take their defaults.

        Raises
        ------
        TypeError
            If `fields` is not a mapping, or a value is of the wrong kind.
        ValueError
            If a field is unknown or its value is refused.
        """
        if not isinstance(fields, Mapping):
            raise TypeError(f"fields must be a dict of the fields of a Block by name; got {fields!r}")
        names = [field.name for field in dataclasses.fields(cls)]
        for name in fields:
            arguments.choice("field of Block", name, names)
        return cls(**fields)

    def to_json(self) -> str:
        """Return the block as one line of JSON; `from_json` gives an equal block."""
        import json

        return json.dumps(self.to_dict(), allow_nan=False)

    @classmethod
    def from_json(cls, text: str) -> Block:
        """Return the block that `to_json` wrote.

        Raises
        ------
        TypeError
            If `text` is not a string, or a value is of the wrong kind.
        ValueError
            If `text` is not a JSON object, a field is unknown, or its value is refused.
        """
        import json

        if not isinstance(text, str | bytes | bytearray):
            raise TypeError(f"text must be a string of JSON, as to_json returns; got {text!r}")
        try:
            fields = json.loads(text)
        except ValueError as error:
            raise ValueError(f"text is not JSON: {error}") from None
        if not isinstance(fields, dict):
            raise ValueError(f"text must be a JSON object, the fields of a Block; got {fields!r}")
        return cls.from_dict(fields)

    def formula(self) -> str:
        """Return the whole state transition in one line; ``[l]`` marks what differs by layer."""
        u = self._normed(self.pre_norm, "h")
        r = self._normed(self.output_norm, self._branch_text(u))
        terms = [_term(self.skip_scale, "skip_scale", "h"), _term(self.branch_scale, "branch_scale", r)]
        return "h' = " + self._normed(self.post_norm, " + ".join(term for term in terms if term) or "0")

    def _normed(self, norm: str, inner: str) -> str:
        if norm == "none":
            return inner
        constants = {"center": "", "dyt": f", alpha={self.dyt_alpha:g}"}
        return f"{norm}({inner}{constants.get(norm, f', eps={self.eps:g}')})"

    def _branch_text(self, u: str) -> str:
        slope = f", slope={self.slope:g}" if self.activation == "leaky_relu" else ""

        def product(left: str, matrix: str) -> str:
            text = f"{left} @ {matrix}"
            return text if self.weight_scale == 1.0 else f"{self.weight_scale:g} * ({text})"

        def phi(z: str) -> str:
            return z if self.activation == "identity" else f"{self.activation}({z}{slope})"

        if self.branch == "linear":
            return phi(f"{product(u, 'up')} + b_up")
        if self.branch == "gated":
            gate, up = phi(f"{product(u, 'gate')} + b_gate"), f"({product(u, 'up')} + b_up)"
            gate = gate if gate.endswith(")") and self.activation != "identity" else f"({gate})"
            return f"{product(f'({gate} * {up})', 'down')} + b_down"
        hidden = phi(f"{product(u, 'up')} + b_up")
        hidden = hidden if self.activation != "identity" else f"({hidden})"
        return f"{product(hidden, 'down')} + b_down"


def _term(scale: float | Sequence[float], name: str, text: str) -> str:
    """Return one term of the sum, with its scale where that is not 1; nothing where it is 0."""
    if scale == 0.0:
        return ""
    if scale == 1.0:
        return text
    factor = f"{scale:g}" if isinstance(scale, float) else f"{name}[l]"
    return f"{factor} * {text}" if text.isidentifier() else f"{factor} * ({text})"
