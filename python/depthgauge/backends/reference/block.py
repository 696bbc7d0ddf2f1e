"""One block in plain NumPy: its value, and its derivative in both directions.

Arrays have shape (..., R, B, d): probes, replicates, examples, features.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from depthgauge._common.arrays import Array, Floats
from depthgauge.backends.protocol import Stack
from depthgauge.backends.reference.activations import value_and_slope
from depthgauge.backends.reference.norms import Normed, derivative, normed


@dataclass(frozen=True, eq=False)
class Intermediates:
    """One state's way through a block, step by step."""

    h: Array
    pre: Normed
    u: Array
    z: Array  # what the activation takes; (R, B, m)
    phi: Array
    slope: Array  # phi'(z)
    value: Array | None  # what the gate multiplies, gated only
    output: Normed
    r: Array
    post: Normed
    next: Array


class Layer:
    """Block number `index` of a stack."""

    def __init__(self, stack: Stack, index: int) -> None:
        self.block = stack.block
        self.dtype = stack.dtype
        self.weight_scale = stack.dtype.type(stack.block.weight_scale)
        self.branch_scale = stack.branch_scale[index]
        self.skip_scale = stack.skip_scale[index]
        self.weights: dict[str, Array] = {}
        for name, parameter in stack.parameters.items():
            chosen = parameter.index_of[stack.set_of]
            layer = parameter.array[:, index]
            # One array for all replicates broadcasts; fancy indexing would copy it R times.
            layer = layer if len(layer) == 1 else layer[chosen]
            self.weights[name] = layer if layer.ndim == 3 else layer[:, None, :]

    def forward(self, h: Array) -> Intermediates:
        """Push the state `h` through the block."""
        with np.errstate(all="ignore"):
            return self._forward(h)

    def _forward(self, h: Array) -> Intermediates:
        w, a = self.weights, self.weight_scale
        pre = normed(self.block.pre_norm, self.block, h)
        u = self._affine("pre", pre)
        value = None
        if self.block.branch == "gated":
            z = self._biased("b_gate", a * (u @ w["gate"]))
            value = self._biased("b_up", a * (u @ w["up"]))
        else:
            z = self._biased("b_up", a * (u @ w["up"]))
        phi, slope = value_and_slope(self.block, z)
        if self.block.branch == "linear":
            branch = phi
        else:
            hidden = phi if value is None else phi * value
            branch = self._biased("b_down", a * (hidden @ w["down"]))
        output = normed(self.block.output_norm, self.block, branch)
        r = self._affine("output", output)
        post = normed(self.block.post_norm, self.block, _times(self.skip_scale, h) + _times(self.branch_scale, r))
        return Intermediates(h, pre, u, z, phi, slope, value, output, r, post, self._affine("post", post))

    def vjp(self, at: Intermediates, g: Array, gradients: dict[str, Array] | None) -> Array:
        """Pull the cotangent `g` of the next state back to `h`; fill `gradients`, if given, for each replicate."""
        with np.errstate(all="ignore"):
            return self._vjp(at, g, {} if gradients is None else gradients, gradients is not None)

    def _vjp(self, at: Intermediates, g: Array, gradients: dict[str, Array], wanted: bool) -> Array:
        total = self._affine_vjp("post", at.post, g, gradients, wanted)
        of_branch: dict[str, Array] = {}
        through_branch = self._branch_vjp(at, _times(self.branch_scale, total), of_branch, wanted)
        if not self.branch_scale:  # the term is left out, whatever the branch is
            through_branch = np.zeros_like(through_branch)
            of_branch = {name: np.zeros_like(gradient) for name, gradient in of_branch.items()}
        if wanted:
            gradients |= of_branch
            gradients["branch_scale"] = _inner(total, at.r)
            gradients["skip_scale"] = _inner(total, at.h)
        return _times(self.skip_scale, total) + through_branch

    def _branch_vjp(self, at: Intermediates, g_r: Array, gradients: dict[str, Array], wanted: bool) -> Array:
        w, a = self.weights, self.weight_scale
        linear = self.block.branch == "linear"
        branch = self._affine_vjp("output", at.output, g_r, gradients, wanted)
        hidden = branch if linear else a * (branch @ _transposed(w["down"]))
        g_value = None
        if at.value is None:
            g_z = _through(at.slope, hidden)
        else:
            g_value = _through(at.phi, hidden)
            g_z = _through(_through(at.slope, at.value), hidden)

        entry = "up" if at.value is None else "gate"
        u = a * (g_z @ _transposed(w[entry]))
        if g_value is not None:
            u = u + a * (g_value @ _transposed(w["up"]))
        if wanted:
            self._weight_gradients(at, branch, entry, g_z, g_value, gradients)
        return self._affine_vjp("pre", at.pre, u, gradients, wanted)

    def _weight_gradients(
        self,
        at: Intermediates,
        branch: Array,
        entry: str,
        g_z: Array,
        g_value: Array | None,
        gradients: dict[str, Array],
    ) -> None:
        a = self.weight_scale
        gradients[entry] = a * (_transposed(at.u) @ g_z)
        gradients[f"b_{entry}"] = _over_examples(g_z)
        if g_value is not None:
            gradients["up"] = a * (_transposed(at.u) @ g_value)
            gradients["b_up"] = _over_examples(g_value)
        if self.block.branch != "linear":
            hidden = at.phi if at.value is None else at.phi * at.value
            gradients["down"] = a * (_transposed(hidden) @ branch)
            gradients["b_down"] = _over_examples(branch)

    @np.errstate(all="ignore")
    def jvp(self, at: Intermediates, t: Array) -> Array:
        """Push the tangent `t` of `h` forward to the next state."""
        return self.post_jvp(at, self.skip_jvp(t) + self.branch_jvp(at, t))

    @np.errstate(all="ignore")
    def skip_jvp(self, t: Array) -> Array:
        """Push the tangent `t` of `h` forward to ``skip_scale * h``."""
        return _times(self.skip_scale, t)

    def branch_jvp(self, at: Intermediates, t: Array) -> Array:
        """Push the tangent `t` of `h` forward to ``branch_scale * r``."""
        return self.down_jvp(at, self.hidden_jvp(at, t))

    @np.errstate(all="ignore")
    def hidden_jvp(self, at: Intermediates, t: Array) -> Array:
        """Push the tangent `t` of `h` forward to the hidden units, which in a linear branch are its output."""
        w, a = self.weights, self.weight_scale
        u = self._affine_jvp("pre", at.pre, t)
        if at.value is None:
            return _through(at.slope, a * (u @ w["up"]))
        gate_slope = _through(at.slope, at.value)
        return _through(gate_slope, a * (u @ w["gate"])) + _through(at.phi, a * (u @ w["up"]))

    @np.errstate(all="ignore")
    def down_jvp(self, at: Intermediates, hidden: Array) -> Array:
        """Push a tangent of the hidden units forward to ``branch_scale * r``."""
        branch = hidden if self.block.branch == "linear" else self.weight_scale * (hidden @ self.weights["down"])
        return _times(self.branch_scale, self._affine_jvp("output", at.output, branch))

    @np.errstate(all="ignore")
    def post_jvp(self, at: Intermediates, total: Array) -> Array:
        """Push a tangent of the sum of the two terms forward to the next state."""
        return self._affine_jvp("post", at.post, total)

    def _biased(self, name: str, product: Array) -> Array:
        return product + self.weights[name] if name in self.weights else product

    def _affine(self, place: str, at: Normed) -> Array:
        y = at.value.astype(self.dtype)
        gain, shift = self.weights.get(f"{place}_gain"), self.weights.get(f"{place}_shift")
        y = y if gain is None else y * gain
        return y if shift is None else y + shift

    def _affine_vjp(self, place: str, at: Normed, g: Array, gradients: dict[str, Array], wanted: bool) -> Array:
        if wanted:
            gradients[f"{place}_gain"] = _over_examples(g * at.value)
            gradients[f"{place}_shift"] = _over_examples(g)
        gain = self.weights.get(f"{place}_gain")
        return derivative(at, g if gain is None else g * gain).astype(self.dtype)

    def _affine_jvp(self, place: str, at: Normed, t: Array) -> Array:
        y = derivative(at, t).astype(self.dtype)
        gain = self.weights.get(f"{place}_gain")
        return y if gain is None else y * gain


def _times(scale: np.floating, term: Array) -> Array:
    """Return a term of the sum; a scale of 0 leaves it out, infinities and all."""
    return term * scale if scale else np.zeros_like(term)


def _through(slope: Array, v: Array) -> Array:
    """Return ``slope * v``, exactly 0 where the slope is, whatever `v`: phi', or in a gated branch what it scales."""
    return np.where(slope == 0, slope.dtype.type(0), slope * v)


def _transposed(a: Array) -> Array:
    return np.swapaxes(a, -1, -2)


def _over_examples(a: Array) -> Floats:
    return np.asarray(np.sum(a, axis=-2, dtype=np.float64))


def _inner(a: Array, b: Array) -> Floats:
    return np.asarray(np.einsum("...ij,...ij->...", a.astype(np.float64), b.astype(np.float64)))
