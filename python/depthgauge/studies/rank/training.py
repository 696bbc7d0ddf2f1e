"""Training a classifier around a stack, many learning rates at a time, with the library's own gradients."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

import depthgauge as dg
from depthgauge._common.arrays import Array, Floats
from depthgauge.studies.rank.digits import Examples
from depthgauge.studies.rank.networks import DTYPE, generated

# The RMS norm before the readout, alone: a block whose branch is left out.
FINAL_NORM = dg.Block(branch="linear", branch_scale=0.0, pre_norm="none", post_norm="rms")

# Examples classified at once: a batch so small that BLAS takes no threads of its own beside the sweep's.
_AT_ONCE = 128

# Streams of a seed's normals, beside those of its stack.
_EMBEDDING, _READOUT = 1, 2


@dataclass(frozen=True, eq=False)
class Classifier:
    """A classifier of images, ``logits = rms(stack(images @ embedding)) @ readout``, or R of them side by side.

    The final norm keeps logits at one scale, however much a stack without a norm of its own lets the states grow.

    Attributes
    ----------
    block : Block
    embedding : ndarray, shape (..., pixels, d)
    weights : Weights
        Of the stack, with the same leading (replicate) axes.
    readout : ndarray, shape (..., d, classes)
    """

    block: dg.Block
    embedding: Array
    weights: dg.Weights
    readout: Array

    @classmethod
    def drawn(
        cls, block: dg.Block, depth: int, width: int, *, alphas: Sequence[float], pixels: int, classes: int, seed: int
    ) -> Classifier:
        """Return the replicates of one seed that differ in alpha alone: N(0, alpha²/fan_in) in the stack.

        Embedding and readout are N(0, 1/fan_in).
        """
        normals = generated(block, depth, width, seed).materialize()
        factors = np.asarray(alphas, DTYPE)[:, None, None, None]
        embedding = dg.normal(seed, (pixels, width), dtype=DTYPE, stream=_EMBEDDING) / math.sqrt(pixels)
        readout = dg.normal(seed, (width, classes), dtype=DTYPE, stream=_READOUT) / math.sqrt(width)
        return cls(
            block,
            np.stack([embedding] * len(alphas)),
            dg.Weights(**{name: factors * array for name, array in normals.items()}),  # type: ignore[arg-type]  # keys are fields
            np.stack([readout] * len(alphas)),
        )

    def copied(self, replicates: tuple[int, ...] = (), dtype: npt.DTypeLike = DTYPE) -> Classifier:
        """Return copies along more replicate axes in front, in arrays of their own."""

        def copy(array: Array) -> Array:
            return np.array(np.broadcast_to(array, replicates + array.shape), dtype)

        fields = {name: copy(array) for name, array in self.weights.items()}
        return Classifier(self.block, copy(self.embedding), dg.Weights(**fields), copy(self.readout))  # type: ignore[arg-type]  # keys are fields

    @property
    def parameters(self) -> dict[str, Array]:
        """All that is trained, by name: the arrays themselves, which may be updated in place."""
        return {"embedding": self.embedding, **dict(self.weights.items()), "readout": self.readout}

    def norm_weights(self) -> dg.Weights:
        """Return what `FINAL_NORM` takes for weights, which count for nothing."""
        return dg.Weights(np.zeros((1, self.weights.width, self.weights.width), self.weights.dtype))

    def logits(self, images: Array) -> Array:
        """Return the logits, (..., B, classes), of images (B, pixels)."""
        states = dg.forward(self.block, self.weights, images @ self.embedding, keep="nothing").output
        return dg.forward(FINAL_NORM, self.norm_weights(), states, keep="nothing").output @ self.readout

    def loss_and_gradients(self, images: Array, labels: npt.NDArray[np.int64]) -> tuple[Floats, dict[str, Array]]:
        """Return the mean cross entropy of examples, (...), and its gradient in each of the `parameters`."""
        stack = dg.forward(self.block, self.weights, images @ self.embedding)
        norm = dg.forward(FINAL_NORM, self.norm_weights(), stack.output)
        losses, in_logits = cross_entropy(norm.output @ self.readout, labels)
        in_logits = (in_logits / len(labels)).astype(self.readout.dtype)
        in_norm = dg.vjp(FINAL_NORM, norm.weights, norm, in_logits @ _transposed(self.readout)).input_gradient
        back = dg.vjp(self.block, self.weights, stack, in_norm, weight_grads=True)
        assert back.weights is not None
        return losses.mean(axis=-1), {
            "embedding": images.T @ back.input_gradient,
            **dict(back.weights.items()),
            "readout": _transposed(norm.output) @ in_logits,
        }


def cross_entropy(logits: Array, labels: npt.NDArray[np.int64]) -> tuple[Floats, Floats]:
    """Return the cross entropy of each example, (..., B), and its gradient in the logits, (..., B, classes)."""
    logits = logits.astype(np.float64)
    logits -= logits.max(axis=-1, keepdims=True)
    odds = np.exp(logits)
    total = odds.sum(axis=-1)
    gradient = odds / total[..., None]
    right = (..., np.arange(len(labels)), labels)
    gradient[right] -= 1
    return np.log(total) - logits[right], gradient


class Adam:
    """Adam, with its published constants, in place on arrays with a learning rate for each index of the first axis.

    References
    ----------
    Kingma & Ba 2015, "Adam: a method for stochastic optimization".
    """

    decays, eps = (0.9, 0.999), 1e-8

    def __init__(self, parameters: Mapping[str, Array], learning_rates: Sequence[float]) -> None:
        self._parameters = parameters
        self._rates = learning_rates
        self._means = {name: np.zeros_like(array) for name, array in parameters.items()}
        self._squares = {name: np.zeros_like(array) for name, array in parameters.items()}
        self._steps = 0

    def step(self, gradients: Mapping[str, Array]) -> None:
        """Take one step down."""
        self._steps += 1
        first, second = (1 - decay**self._steps for decay in self.decays)
        for name, array in self._parameters.items():
            # One rate at a time, for a cache to hold.
            each = zip(self._rates, array, gradients[name], self._means[name], self._squares[name], strict=True)
            for rate, parameter, gradient, mean, square in each:
                mean += (1 - self.decays[0]) * (gradient - mean)
                square += (1 - self.decays[1]) * (gradient * gradient - square)
                parameter -= rate / first * mean / (np.sqrt(square / second) + self.eps)


def train(
    classifier: Classifier,
    examples: Examples,
    learning_rates: Sequence[float],
    *,
    steps: int,
    batch: int,
    rng: np.random.Generator,
) -> None:
    """Train all replicates in place on the same batches; learning rates are those along the first replicate axis.

    One that diverges goes on with what it has become, infinities and NaN: that is a result.
    """
    adam = Adam(classifier.parameters, learning_rates)
    with np.errstate(all="ignore"):
        for chosen in _batches(len(examples.labels), batch, steps, rng):
            _, gradients = classifier.loss_and_gradients(examples.images[chosen], examples.labels[chosen])
            adam.step(gradients)


class Score(NamedTuple):
    """Mean cross entropy, share of right answers, and whether all logits are finite; each (...)."""

    loss: Floats
    accuracy: Floats
    finite: npt.NDArray[np.bool_]


def score(classifier: Classifier, examples: Examples) -> Score:
    """Return how well examples are classified; one whose logits are not all finite counts as a guess."""
    parts = [slice(start, start + _AT_ONCE) for start in range(0, len(examples.labels), _AT_ONCE)]
    with np.errstate(all="ignore"):
        logits = np.concatenate([classifier.logits(examples.images[part]) for part in parts], axis=-2)
    finite = np.isfinite(logits).all(axis=-1)
    logits[~finite] = 0
    right = np.where(finite, logits.argmax(axis=-1) == examples.labels, 1 / logits.shape[-1])
    losses, _ = cross_entropy(logits, examples.labels)
    return Score(losses.mean(axis=-1), right.mean(axis=-1), np.asarray(finite.all(axis=-1)))


def _batches(examples: int, batch: int, steps: int, rng: np.random.Generator) -> Iterator[npt.NDArray[np.int64]]:
    """Yield the examples of each step: all of them in a new random order, then again, but for an incomplete batch."""
    left = np.empty(0, np.int64)
    for _ in range(steps):
        if len(left) < batch:
            left = rng.permutation(examples)
        chosen, left = left[:batch], left[batch:]
        yield chosen


def _transposed(matrices: Array) -> Array:
    return np.swapaxes(matrices, -1, -2)
