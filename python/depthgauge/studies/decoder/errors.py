"""The refusals of the decoder study, each with a name of its own."""

from __future__ import annotations


class DecoderError(ValueError):
    """The base of all refusals of the decoder study."""


class ZeroDepthError(DecoderError):
    """The decoder has no blocks, so there is no depth to scale by."""


class BudgetExceededError(DecoderError):
    """The decoder has more parameters or positions than its budget allows."""


class LayoutError(DecoderError):
    """Parameters differ from the layout of the decoder in names, order, shapes or dtype."""


class AlreadyInitializedError(DecoderError):
    """Parameters hold values already: they were prepared, initialized or restored before."""


class GeneratorMovedError(DecoderError):
    """The caller's generator was used between preparation and completion."""


class _ParameterError(DecoderError):
    def __init__(self, parameter: str, message: str) -> None:
        super().__init__(parameter, message)
        self.parameter = parameter

    def __str__(self) -> str:
        return str(self.args[1])


class ModifiedParameterError(_ParameterError):
    """A parameter changed between preparation and completion; `parameter` is its name."""


class NonzeroGradientError(_ParameterError):
    """A parameter carries a gradient that is not zero; `parameter` is its name."""


class RecordError(DecoderError):
    """A record does not describe an initialization that this version performs."""


class EmptyValidityError(DecoderError):
    """No position is valid, so there is nothing to measure."""


class NonFiniteValueError(DecoderError):
    """A value at a valid position is NaN or infinite."""


class NormalizerError(DecoderError):
    """The RMS that ratios are taken to is zero, or not finite."""


class NonFiniteRatioError(DecoderError):
    """A ratio is NaN, or leaves the range of float64."""
