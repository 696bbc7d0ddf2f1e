"""The attention branch in NumPy: causal, grouped heads, rotary positions; and its vector-Jacobian product."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from depthgauge._common.arrays import Array, Floats
from depthgauge.studies.decoder.config import DecoderConfig
from depthgauge.studies.decoder.rms_norm import RmsNorm, rms

# Rows of queries whose scores exist at once: memory stays linear in the length, and keys after a row are never met.
_QUERY_ROWS = 128

Gradients = dict[str, Array]


@dataclass(frozen=True, eq=False)
class Rotation:
    """Rotary positions (Su et al. 2021): pair (2i, 2i + 1) turns by position * base^(-2i / head_dim).

    Attributes
    ----------
    cos, sin : ndarray, shape (T, head_dim / 2)
    """

    cos: Floats
    sin: Floats

    @classmethod
    def of(cls, config: DecoderConfig, positions: int) -> Rotation:
        """Return the rotation of the first `positions` positions."""
        exponents = -2.0 * np.arange(config.head_dim // 2) / config.head_dim
        angles = np.arange(positions)[:, None] * config.rope_base**exponents
        return cls(np.cos(angles), np.sin(angles))

    def turn(self, heads: Array, sign: float = 1.0) -> Array:
        """Return `heads`, shape (H, T, head_dim), turned by the angles, or back with `sign` -1."""
        even, odd, sin = heads[..., 0::2], heads[..., 1::2], sign * self.sin
        turned = np.empty(heads.shape)
        turned[..., 0::2] = even * self.cos - odd * sin
        turned[..., 1::2] = even * sin + odd * self.cos
        return turned


@dataclass(frozen=True, eq=False)
class AttentionTape:
    """What `Attention.vjp` needs; probabilities are made again, so memory is linear in the length."""

    norm: RmsNorm
    x: Array  # (T, d)
    query: Array  # (H, T, head_dim), turned
    key: Array  # (K, T, head_dim), turned
    value: Array  # (K, T, head_dim)
    context: Array  # (T, d)


class Attention:
    """The step h + attention(rms(h) * gain) of one block."""

    def __init__(self, config: DecoderConfig, parameters: Mapping[str, Array], block: int, rotation: Rotation) -> None:
        self._config, self._rotation = config, rotation
        self._scale = 1.0 / math.sqrt(config.head_dim)
        self._names = {"gain": f"blocks.{block}.attention_norm.gain"} | {
            part: f"blocks.{block}.attention.{part}.weight" for part in ("query", "key", "value", "output")
        }
        self._weights = {part: parameters[name] for part, name in self._names.items()}

    def forward(self, h: Array) -> tuple[Array, float, AttentionTape]:
        """Return the next state, the RMS of the branch's output, and the tape."""
        weights = self._weights
        norm = RmsNorm.of(h, self._config.rms_epsilon)
        x = norm.value * weights["gain"]
        query = self._rotation.turn(self._split(x @ weights["query"]))
        key = self._rotation.turn(self._split(x @ weights["key"]))
        value = np.ascontiguousarray(self._split(x @ weights["value"]))
        contexts = np.empty(query.shape)
        for head, kv, rows in self._tiles(len(h)):
            probabilities = self._probabilities(query[head], key[kv], rows)
            np.matmul(probabilities, value[kv, : rows.stop], out=contexts[head, rows])
        context = _joined(contexts)
        branch = context @ weights["output"]
        return h + branch, rms(branch), AttentionTape(norm, x, query, key, value, context)

    def vjp(self, tape: AttentionTape, g: Array, *, gradients: bool) -> tuple[Array, Gradients]:
        """Return the derivative at the state before from `g`, that at the state after, and those of the parameters."""
        weights = self._weights
        g_context = g @ weights["output"].T
        g_contexts = np.ascontiguousarray(self._split(g_context))
        # The row sums of p * dp, which softmax's derivative subtracts, are those of context * g_context.
        inner = np.sum(self._split(tape.context) * g_contexts, axis=-1, keepdims=True)
        g_query, g_key, g_value = (np.zeros(part.shape) for part in (tape.query, tape.key, tape.value))
        for head, kv, rows in self._tiles(len(g)):
            seen = slice(0, rows.stop)
            p = self._probabilities(tape.query[head], tape.key[kv], rows)
            g_value[kv, seen] += p.T @ g_contexts[head, rows]
            g_scores = g_contexts[head, rows] @ tape.value[kv, seen].T
            g_scores -= inner[head, rows]
            g_scores *= p
            g_scores *= self._scale
            np.matmul(g_scores, tape.key[kv, seen], out=g_query[head, rows])
            g_key[kv, seen] += g_scores.T @ tape.query[head, rows]
        projected = {
            "query": _joined(self._rotation.turn(g_query, -1.0)),
            "key": _joined(self._rotation.turn(g_key, -1.0)),
            "value": _joined(g_value),
        }
        g_x = sum((g_part @ weights[part].T for part, g_part in projected.items()), start=np.zeros(g.shape))
        found: Gradients = {}
        if gradients:
            by_part = {part: tape.x.T @ g_part for part, g_part in projected.items()}
            by_part |= {"output": tape.context.T @ g, "gain": np.sum(g_x * tape.norm.value, axis=0)}
            found = {name: by_part[part] for part, name in self._names.items()}
        return g + tape.norm.vjp(g_x * weights["gain"]), found

    def _split(self, columns: Array) -> Array:
        """Return the heads, contiguous slices of columns, as a view of shape (heads, T, head_dim)."""
        return columns.reshape(len(columns), -1, self._config.head_dim).transpose(1, 0, 2)

    def _tiles(self, positions: int) -> Iterator[tuple[int, int, slice]]:
        """Yield query head, head of keys and values, and rows, tile by tile."""
        for head in range(self._config.heads):
            for first in range(0, positions, _QUERY_ROWS):
                yield head, head // self._config.group, slice(first, min(first + _QUERY_ROWS, positions))

    def _probabilities(self, query: Array, key: Array, rows: slice) -> Array:
        """Return the attention of `rows` to all positions up to the last of them."""
        scores = query[rows] @ key[: rows.stop].T
        scores *= self._scale
        count = rows.stop - rows.start
        scores[:, rows.start :][~np.tri(count, dtype=bool)] = -np.inf
        scores -= np.max(scores, axis=-1, keepdims=True)
        np.exp(scores, out=scores)
        scores /= np.sum(scores, axis=-1, keepdims=True)
        return np.asarray(scores)


def _joined(heads: Array) -> Array:
    """Return heads, shape (H, T, head_dim), as columns, shape (T, H * head_dim)."""
    return np.ascontiguousarray(heads.transpose(1, 0, 2)).reshape(heads.shape[1], -1)
