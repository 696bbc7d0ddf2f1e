"""The grid of a sweep: parameters as text, cells and their keys, labels."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import depthgauge as dg
from depthgauge.sweeps import canonical, grid

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3).map(tuple) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=4,
)


@given(VALUES)
def test_text_gives_the_value_back(value: Any) -> None:
    text = canonical.to_text(value)
    back = canonical.from_text(text)
    assert repr(back) == repr(value) or isinstance(value, tuple | dict)
    assert canonical.to_text(back) == text
    assert "\n" not in text


@given(st.floats(), st.floats())
def test_floats_have_one_text_only_if_they_have_one_value(one: float, other: float) -> None:
    same = one.hex() == other.hex()
    assert (canonical.to_text(one) == canonical.to_text(other)) == same


def test_numbers_of_any_kind_have_one_text_an_int_and_a_float_two() -> None:
    ints = [4, np.int64(4), np.uint8(4), np.array(4)]
    floats = [4.0, np.float32(4), np.float64(4)]
    assert {canonical.to_text(canonical.plain("x", four)) for four in ints} == {"4"}
    assert {canonical.to_text(canonical.plain("x", four)) for four in floats} == {"4.0"}
    assert canonical.to_text(True) == "true"


def test_blocks_have_a_text() -> None:
    block = dg.Block(branch_scale=[0.1, 0.2], post_norm="layer")
    text = canonical.to_text(block)
    assert canonical.from_text(text) == block
    assert text == '{"Block":{"branch_scale":[0.1,0.2],"post_norm":"layer"}}'


def test_the_order_of_axes_is_no_part_of_a_cell() -> None:
    one = grid.checked_grid({"a": [1, 2], "b": ["x"]}, 2)
    other = grid.checked_grid([("b", ["x"]), ("a", [2, 1])], [1, 0])
    assert {cell.key for cell in one.cells()} == {cell.key for cell in other.cells()}
    assert grid.Grid.from_json(one.to_json()) == one
    for cell in one.cells():
        values = canonical.from_text('{"dict":' + cell.parameters + "}")
        assert values == cell.point


@pytest.mark.parametrize(
    ("values", "labels"),
    [
        ([4, 2], [4, 2]),
        ([1, 0.5], [1.0, 0.5]),
        (["b", "a"], ["b", "a"]),
        ([False, True], [False, True]),
        ([None, 3], ["None", "3"]),
        ([3, "3"], ["3", '"3"']),
        ([(1, 2), (3,)], ["(1, 2)", "(3,)"]),
        ([2**80], [str(2**80)]),
        ([-1, 2**63], ["-1", str(2**63)]),
        ([dg.Block()], [dg.Block().formula()]),
    ],
)
def test_labels_of_an_axis(values: list[Any], labels: list[Any]) -> None:
    result = dg.sweep(lambda v, seed: {"y": 1}, {"v": values})
    assert result["v"].values.tolist() == labels


def test_ints_beside_floats_are_floats() -> None:
    assert dg.sweep(lambda v, seed: {"y": v * 2}, {"v": [1, 0.5]})["y"].values.tolist() == [[2.0], [1.0]]


def test_coords_label_axes_and_declared_dimensions() -> None:
    def states(block: dg.Block, seed: int) -> dict[str, Any]:
        return {"rms": ("depth", [1.0, 2.0])}

    blocks = [dg.Block.placed("pre"), dg.Block.placed("post")]
    result = dg.sweep(states, {"block": blocks}, coords={"block": ["pre", "post"], "depth": [12, 24, 48]})
    assert result["rms"].sel(block="post", depth=24).item() == 2.0
    assert np.isnan(result["rms"].sel(depth=48)).all()
