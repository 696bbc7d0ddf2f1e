"""The feed-forward branch, by the library's gated kernels."""

from __future__ import annotations

from collections.abc import Mapping

import depthgauge as dg
from depthgauge._common.arrays import Array
from depthgauge.studies.decoder.attention import Gradients
from depthgauge.studies.decoder.config import DecoderConfig


class FeedForward:
    """The step h + (silu(x @ gate) * (x @ up)) @ down of one block, with x = rms(h) * gain."""

    def __init__(
        self,
        config: DecoderConfig,
        parameters: Mapping[str, Array],
        block: int,
        *,
        backend: str | None,
        threads: int | None,
    ) -> None:
        self._names = {"pre_gain": f"blocks.{block}.ffn_norm.gain"} | {
            part: f"blocks.{block}.ffn.{part}.weight" for part in ("gate", "up", "down")
        }
        self._block = dg.Block(activation="silu", branch="gated", pre_norm="rms", eps=config.rms_epsilon)
        # A stack of one block; the layer axis is a view, so nothing is copied.
        arrays = {field: parameters[name][None] for field, name in self._names.items()}
        self._weights = dg.Weights(arrays["up"], arrays["down"], gate=arrays["gate"], pre_gain=arrays["pre_gain"])
        self._backend, self._threads = backend, threads

    def forward(self, h: Array) -> tuple[Array, float, dg.Forward]:
        """Return the next state, the RMS of the branch's output, and the tape."""
        found = dg.forward(self._block, self._weights, h, backend=self._backend, threads=self._threads)
        return found.output, float(found.branch_rms[0]), found

    def vjp(self, tape: dg.Forward, g: Array, *, gradients: bool) -> tuple[Array, Gradients]:
        """Return the derivative at the state before from `g`, that at the state after, and those of the parameters."""
        found = dg.vjp(self._block, self._weights, tape, g, weight_grads=gradients, threads=self._threads)
        if found.weights is None:
            return found.input_gradient, {}
        by_field = dict(found.weights.items())
        return found.input_gradient, {name: by_field[field][0] for field, name in self._names.items()}
