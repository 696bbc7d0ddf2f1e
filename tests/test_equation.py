"""Block: names, scales, comparison, JSON, formula."""

from __future__ import annotations

import dataclasses
import json
import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from depthgauge import Block
from depthgauge.equation import ACTIVATIONS, BRANCHES, NORMS, PLACEMENTS

finite = st.floats(allow_nan=False, allow_infinity=False)
scales = st.one_of(finite, st.lists(finite, max_size=4))
blocks = st.builds(
    Block,
    activation=st.sampled_from(ACTIVATIONS),
    branch=st.sampled_from(BRANCHES),
    pre_norm=st.sampled_from(NORMS),
    output_norm=st.sampled_from(NORMS),
    post_norm=st.sampled_from(NORMS),
    branch_scale=scales,
    skip_scale=scales,
    weight_scale=finite,
    eps=st.floats(min_value=0, allow_nan=False, allow_infinity=False),
    slope=finite,
    dyt_alpha=finite,
)


def test_defaults_are_a_pre_norm_relu_mlp() -> None:
    assert Block() == Block(
        activation="relu",
        branch="mlp",
        pre_norm="rms",
        output_norm="none",
        post_norm="none",
        branch_scale=1.0,
        skip_scale=1.0,
        weight_scale=1.0,
        eps=1e-6,
        slope=0.01,
        dyt_alpha=0.5,
    )


@given(blocks)
def test_json_and_pickle_give_an_equal_block(block: Block) -> None:
    for copy in (Block.from_json(block.to_json()), pickle.loads(pickle.dumps(block)), block.replace()):
        assert copy == block
        assert hash(copy) == hash(block)
        assert copy.formula() == block.formula()


@given(blocks)
def test_json_is_plain_and_the_formula_one_line(block: Block) -> None:
    assert set(json.loads(block.to_json())) == {field.name for field in dataclasses.fields(Block)}
    assert "\n" not in block.formula()
    assert block.formula().startswith("h' = ")


@pytest.mark.parametrize("scale", [[0.5, 2], (0.5, 2.0), np.array([0.5, 2]), np.array([0.5, 2], np.float32)])
def test_scales_of_layers_are_kept_as_tuples_of_floats(scale: Any) -> None:
    block = Block(branch_scale=scale, skip_scale=scale)
    assert block.branch_scale == block.skip_scale == (0.5, 2.0)
    assert all(type(value) is float for value in block.branch_scale)
    assert hash(block) == hash(Block(branch_scale=(0.5, 2.0), skip_scale=(0.5, 2.0)))


@pytest.mark.parametrize("value", [2, np.float32(2), np.int64(2), np.array(2.0)])
def test_scalars_become_floats(value: Any) -> None:
    block = Block(branch_scale=value, eps=value)
    assert type(block.branch_scale) is float
    assert type(block.eps) is float
    assert block.branch_scale == block.eps == 2.0


@pytest.mark.parametrize(
    ("field", "value", "suggestion"),
    [
        ("activation", "swish", "silu"),
        ("activation", "gelu_new", "gelu_tanh"),
        ("activation", "ReLU", "relu"),
        ("activation", "relux", "relu"),
        ("activation", "sigmiod", "sigmoid"),
        ("branch", "swiglu", "gated"),
        ("pre_norm", "layernorm", "layer"),
        ("output_norm", "rmsnorm", "rms"),
        ("post_norm", "layer-detached", "layer_detached"),
    ],
)
def test_an_unknown_name_suggests_the_near_one(field: str, value: str, suggestion: str) -> None:
    with pytest.raises(ValueError, match=f"{field}={value!r} is unknown; did you mean {suggestion!r}"):
        Block().replace(**{field: value})


def test_a_name_like_no_other_lists_them_all() -> None:
    with pytest.raises(ValueError, match=r"unknown\. Choose one of: relu, leaky_relu, tanh"):
        Block(activation="xyzzy")


@pytest.mark.parametrize("field", ["branch_scale", "skip_scale", "weight_scale", "eps", "slope", "dyt_alpha"])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), 10**400])
def test_scalars_must_be_finite(field: str, value: Any) -> None:
    with pytest.raises(ValueError, match=field):
        Block(**{field: value})


@pytest.mark.parametrize("field", ["branch_scale", "skip_scale", "weight_scale", "eps", "slope", "dyt_alpha"])
@pytest.mark.parametrize("value", [True, np.True_, "1", None, 1j, {}.keys])
def test_scalars_must_be_numbers(field: str, value: Any) -> None:
    with pytest.raises(TypeError, match=field):
        Block(**{field: value})


def test_other_wrong_values_name_their_argument() -> None:
    with pytest.raises(ValueError, match=r"eps=-1e-06 must be a finite number >= 0"):
        Block(eps=-1e-6)
    with pytest.raises(ValueError, match=r"branch_scale\[1\]"):
        Block(branch_scale=[1.0, float("nan")])
    with pytest.raises(TypeError, match=r"skip_scale\[0\]"):
        Block(skip_scale=[True])
    with pytest.raises(ValueError, match=r"branch_scale must be a scalar or one value a layer.*\(2, 2\)"):
        Block(branch_scale=np.ones((2, 2)))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="activation must be a string"):
        Block(activation=None)  # type: ignore[arg-type]


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("placement", PLACEMENTS)
def test_placed_puts_the_norm_where_it_says(placement: str, norm: str) -> None:
    block = Block.placed(placement, norm, activation="tanh")
    places = {"none": [], "pre": ["pre"], "post": ["post"], "output": ["output"], "sandwich": ["pre", "output"]}
    for place in ("pre", "output", "post"):
        assert getattr(block, f"{place}_norm") == (norm if place in places[placement] else "none")
    assert block.activation == "tanh"


def test_placed_refuses_what_it_cannot_place() -> None:
    with pytest.raises(ValueError, match="placement='before' is unknown"):
        Block.placed("before")
    with pytest.raises(ValueError, match="norm='layernorm' is unknown; did you mean 'layer'"):
        Block.placed("pre", "layernorm")
    with pytest.raises(TypeError, match="post_norm"):
        Block.placed("pre", post_norm="rms")


def test_replace_checks_anew() -> None:
    assert Block().replace(activation="silu").activation == "silu"
    with pytest.raises(ValueError, match="did you mean 'silu'"):
        Block().replace(activation="swish")


def test_a_block_is_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        Block().eps = 0.0  # type: ignore[misc]


@pytest.mark.parametrize(
    ("text", "kind", "message"),
    [
        ("[1]", ValueError, "text must be a JSON object"),
        ('{"activaton": "relu"}', ValueError, "'activaton' is unknown; did you mean 'activation'"),
        ('{"epsilon": 1}', ValueError, "'epsilon' is unknown; did you mean 'eps'"),
        ("{", ValueError, "text is not JSON: "),
        (b"\xff", ValueError, "text is not JSON: "),
        ('{"eps": -1}', ValueError, "eps=-1"),
        (3, TypeError, "text must be a string of JSON"),
    ],
)
def test_from_json_refuses_what_is_no_block(text: Any, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        Block.from_json(text)


@pytest.mark.parametrize("fields", [[1], None, "relu"])
def test_from_dict_takes_a_dict(fields: Any) -> None:
    with pytest.raises(TypeError, match="fields must be a dict"):
        Block.from_dict(fields)


@pytest.mark.parametrize(
    ("block", "text"),
    [
        (Block(), "h + relu(rms(h, eps=1e-06) @ up + b_up) @ down + b_down"),
        (Block.placed("none", skip_scale=0), "relu(h @ up + b_up) @ down + b_down"),
        (Block.placed("none", branch_scale=0), "h"),
        (Block.placed("none", branch_scale=0, skip_scale=0), "0"),
        (Block.placed("post", "layer", eps=0), "layer(h + relu(h @ up + b_up) @ down + b_down, eps=0)"),
        (Block.placed("none", branch="linear", activation="abs", skip_scale=0.5), "0.5 * h + abs(h @ up + b_up)"),
        (
            Block.placed("output", "dyt", branch_scale=[1, 2], weight_scale=3, activation="leaky_relu"),
            "h + branch_scale[l] * (dyt(3 * (leaky_relu(3 * (h @ up) + b_up, slope=0.01) @ down) + b_down, alpha=0.5))",
        ),
        (
            Block.placed("pre", "center", branch="gated", activation="silu"),
            "h + (silu(center(h) @ gate + b_gate) * (center(h) @ up + b_up)) @ down + b_down",
        ),
    ],
)
def test_formula(block: Block, text: str) -> None:
    assert block.formula() == f"h' = {text}"
