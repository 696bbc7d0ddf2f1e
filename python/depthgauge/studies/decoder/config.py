"""The dimensions of a decoder, what follows from them without any array, and the budget they must fit."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from depthgauge._common import arguments
from depthgauge.studies.decoder.errors import BudgetExceededError, ZeroDepthError

_COUNTS = ("layers", "width", "heads", "ff_width", "vocabulary", "max_positions")

PARAMETER_FORMULA = "V*d + L*(2*d**2 + 2*d*d_kv + 3*d*f + 2*d) + d"


@dataclass(frozen=True, kw_only=True)
class DecoderConfig:
    """The dimensions of a decoder-only transformer.

    Parameters
    ----------
    layers : int
        Complete blocks, L; each adds an attention and a feed-forward branch.
    width : int
        Features of a state, d.
    heads : int
        Query heads; they divide `width` into contiguous slices of `head_dim` columns, an even number.
    kv_heads : int, optional
        Heads of keys and values; they divide `heads`, and consecutive query heads share one.  None means `heads`.
    ff_width : int
        Hidden units of the feed-forward branch, f.
    vocabulary : int
        Tokens, V.
    max_positions : int
        The longest sequence.
    rope_base : float
        Base of the rotary angles, above 0.
    rms_epsilon : float
        What the norms add inside the root, at least 0.

    Raises
    ------
    ZeroDepthError
        If `layers` is 0.
    ValueError
        If another count is below 1, one does not divide another as it must, or a scalar is out of range.
    TypeError
        If a value is of the wrong kind.
    """

    layers: int
    width: int
    heads: int
    ff_width: int
    vocabulary: int
    max_positions: int
    kv_heads: int | None = None
    rope_base: float = 10000.0
    rms_epsilon: float = 1e-6

    def __post_init__(self) -> None:
        if self.layers is not False and self.layers == 0:
            raise ZeroDepthError("layers=0 leaves no depth to scale by; a decoder has at least 1 complete block")
        counts = {name: arguments.integer(name, getattr(self, name), minimum=1) for name in _COUNTS}
        kv_heads = counts["heads"] if self.kv_heads is None else self.kv_heads
        counts["kv_heads"] = arguments.integer("kv_heads", kv_heads, minimum=1)
        scalars = {
            "rope_base": arguments.real("rope_base", self.rope_base, minimum=0.0),
            "rms_epsilon": arguments.real("rms_epsilon", self.rms_epsilon, minimum=0.0),
        }
        for name, value in (counts | scalars).items():
            object.__setattr__(self, name, value)
        if self.rope_base == 0:
            raise ValueError("rope_base=0 must be above 0")
        if self.width % self.heads:
            raise ValueError(f"heads={self.heads} must divide width={self.width}")
        if self.head_dim % 2:
            raise ValueError(
                f"width={self.width} over heads={self.heads} gives a head dimension of {self.head_dim}, but rotary "
                f"positions turn pairs of features, so it must be even"
            )
        if self.heads % counts["kv_heads"]:
            raise ValueError(f"kv_heads={self.kv_heads} must divide heads={self.heads}")

    @property
    def head_dim(self) -> int:
        """Features of one head."""
        return self.width // self.heads

    @property
    def group(self) -> int:
        """Query heads that share one head of keys and values."""
        return self.heads // (self.kv_heads or self.heads)

    @property
    def kv_width(self) -> int:
        """Columns of the key and value matrices, d_kv."""
        return self.width // self.group

    @property
    def sites(self) -> int:
        """Residual sites: the input, then one after each addition, 2L + 1."""
        return 2 * self.layers + 1

    @property
    def parameters(self) -> int:
        """Number of parameters, by `PARAMETER_FORMULA`; the head shares the embedding."""
        d, f = self.width, self.ff_width
        return self.vocabulary * d + self.layers * (2 * d**2 + 2 * d * self.kv_width + 3 * d * f + 2 * d) + d

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the shape of every parameter by its name, in the order in which they are drawn."""
        d, kv, f = self.width, self.kv_width, self.ff_width
        shapes: dict[str, tuple[int, ...]] = {"embedding.weight": (self.vocabulary, d)}
        for block in range(self.layers):
            prefix = f"blocks.{block}"
            shapes |= {
                f"{prefix}.attention_norm.gain": (d,),
                f"{prefix}.attention.query.weight": (d, d),
                f"{prefix}.attention.key.weight": (d, kv),
                f"{prefix}.attention.value.weight": (d, kv),
                f"{prefix}.attention.output.weight": (d, d),
                f"{prefix}.ffn_norm.gain": (d,),
                f"{prefix}.ffn.gate.weight": (d, f),
                f"{prefix}.ffn.up.weight": (d, f),
                f"{prefix}.ffn.down.weight": (f, d),
            }
        return shapes | {"final_norm.gain": (d,)}

    def site_labels(self) -> tuple[str, ...]:
        """Return the names of the residual sites, from the input on."""
        after = (
            f"block.{block}.after_{part}" for block in range(self.layers) for part in ("attention", "feed_forward")
        )
        return ("input", *after)

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as plain data."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> DecoderConfig:
        """Return the configuration that `to_dict` described.

        Raises
        ------
        ValueError, TypeError
            As for `DecoderConfig`; ValueError also for an unknown field.
        """
        names = [field.name for field in dataclasses.fields(cls)]
        for name in fields:
            arguments.choice("field of DecoderConfig", name, names, {})
        return cls(**fields)


@dataclass(frozen=True, kw_only=True)
class Budget:
    """The most that a decoder may take.

    Parameters
    ----------
    parameters : int
        Parameters of one copy, 8 bytes each.
    positions : int
        Positions of a sequence.

    Raises
    ------
    ValueError
        If a limit is negative.
    TypeError
        If a limit is not an integer.
    """

    parameters: int
    positions: int

    def __post_init__(self) -> None:
        for name in ("parameters", "positions"):
            object.__setattr__(self, name, arguments.integer(name, getattr(self, name), minimum=0))

    def check(self, config: DecoderConfig) -> None:
        """Refuse a decoder that does not fit, without making any array.

        Raises
        ------
        BudgetExceededError
            If it has too many parameters or positions.
        """
        for what, asked, allowed in (
            ("parameters", config.parameters, self.parameters),
            ("positions", config.max_positions, self.positions),
        ):
            if asked > allowed:
                raise BudgetExceededError(f"the decoder has {asked:,} {what}, the budget allows {allowed:,}")


def symbolic_plan(config: DecoderConfig) -> dict[str, Any]:
    """Return the dimensions of a decoder, its number of parameters and its depth factor, without any array.

    Returns
    -------
    dict
        Plain data; "factor" is the depth factor as text, "formula" the number of parameters.

    Raises
    ------
    TypeError
        If `config` is not a DecoderConfig.
    """
    arguments.instance("config", config, DecoderConfig)
    return {
        "vocabulary": config.vocabulary,
        "width": config.width,
        "layers": config.layers,
        "heads": config.heads,
        "kv_heads": config.kv_heads,
        "ff_width": config.ff_width,
        "context": config.max_positions,
        "residual_sites": config.sites,
        "parameters": config.parameters,
        "formula": PARAMETER_FORMULA,
        "factor": f"1/sqrt({config.layers})",
    }
