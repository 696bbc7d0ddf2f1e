"""The parameters of a decoder by name, and what has been done to them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Literal

import numpy as np

from depthgauge._common import arguments
from depthgauge._common.arrays import Array
from depthgauge.studies.decoder.config import DecoderConfig
from depthgauge.studies.decoder.errors import LayoutError

Stage = Literal["blank", "base", "control", "initialized", "restored"]


class Parameters(Mapping[str, Array]):
    """The float64 arrays of a decoder, by name, in the order of `DecoderConfig.shapes`.

    A new one is blank: it has a layout and no arrays.  `prepare` fills one with base values, `restore` with stored
    ones.  The arrays are the caller's to write; only the set of names is fixed.

    Parameters
    ----------
    config : DecoderConfig
        The dimensions.

    Attributes
    ----------
    config : DecoderConfig
    stage : {"blank", "base", "control", "initialized", "restored"}
        What they hold: nothing; what was drawn; a copy of that, to compare with; what a rule made of it; what was
        stored.
    gradients : dict of str to ndarray
        Gradients by the parameters' names, none at first; a place for an optimizer.

    Raises
    ------
    TypeError
        If `config` is not a DecoderConfig.
    """

    def __init__(self, config: DecoderConfig) -> None:
        self.config = arguments.instance("config", config, DecoderConfig)
        self.stage: Stage = "blank"
        self.gradients: dict[str, Array] = {}
        self._arrays: dict[str, Array] = {}

    def __getitem__(self, name: str) -> Array:
        return self._arrays[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._arrays)

    def __len__(self) -> int:
        return len(self._arrays)

    def __repr__(self) -> str:
        return f"Parameters(layers={self.config.layers}, width={self.config.width}, stage={self.stage!r})"

    def check_layout(self) -> None:
        """Refuse names, order, shapes or dtypes other than the configuration's.

        Raises
        ------
        LayoutError
            If they differ; the message names the first parameter that does.
        """
        check_layout(self.config, self)

    def derived(self, stage: Stage, changes: Mapping[str, Array]) -> Parameters:
        """Return parameters that share these arrays but for `changes`."""
        found = Parameters(self.config)
        found._fill(stage, {**self, **changes})
        return found

    def _fill(self, stage: Stage, arrays: Mapping[str, Array]) -> None:
        self._arrays.update(arrays)
        self.stage = stage


def check_layout(config: DecoderConfig, arrays: Mapping[str, Array]) -> None:
    """Refuse `arrays` whose names, order, shapes or dtypes are not those of `config`; see `Parameters`."""
    shapes = config.shapes()
    missing = [name for name in shapes if name not in arrays]
    unknown = [name for name in arrays if name not in shapes]
    if missing or unknown:
        listing = [f"{what} {names[0]!r}" for what, names in (("lack", missing), ("have unknown", unknown)) if names]
        raise LayoutError(f"the parameters {' and '.join(listing)}; the layout has {len(shapes)} names")
    for position, (name, expected) in enumerate(zip(arrays, shapes, strict=True)):
        if name != expected:
            raise LayoutError(f"parameter {position} is {name!r}, but the layout has {expected!r} there")
    for name, shape in shapes.items():
        array = arrays[name]
        if array.shape != shape:
            raise LayoutError(f"{name} has shape {array.shape}, but the layout has {shape}")
        if array.dtype != np.float64:
            raise LayoutError(f"{name} has dtype {array.dtype}, but the layout has float64")
