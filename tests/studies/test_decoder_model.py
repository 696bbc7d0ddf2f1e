"""The decoder's forward and backward passes: derivatives, and what they must not depend on."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from decoders import INPUTS, SMALL, TARGETS, made

from depthgauge._common.arrays import Array
from depthgauge.studies.decoder import (
    BUDGET,
    DecoderConfig,
    SplitMix64,
    attention,
    head,
    loss_derivative,
    prepare,
    restore,
)
from depthgauge.studies.decoder.model import final_loss, residual_steps


def central_difference(loss: Callable[[], float], array: Array) -> Array:
    """Return the derivative of `loss` with respect to every entry of `array`, which is put back."""
    step, found = 1e-5, np.empty(array.shape)
    for index in np.ndindex(array.shape):
        old = array[index]
        array[index] = old + step
        above = loss()
        array[index] = old - step
        found[index] = (above - loss()) / (2 * step)
        array[index] = old
    return found


@pytest.mark.slow
@pytest.mark.parametrize("kv_heads", [1, 2])
def test_every_parameter_holds_against_central_differences(backend: str, kv_heads: int) -> None:
    parameters = made(dataclasses.replace(SMALL, width=4, heads=2, kv_heads=kv_heads, ff_width=3))
    exact = loss_derivative(parameters, INPUTS, TARGETS, backend=backend).gradients
    assert exact is not None
    assert list(exact) == list(parameters)

    def loss() -> float:
        return loss_derivative(parameters, INPUTS, TARGETS, gradients=False, backend=backend).mean_loss

    for name, array in parameters.items():
        np.testing.assert_allclose(exact[name], central_difference(loss, array), rtol=1e-6, atol=2e-9, err_msg=name)


@pytest.mark.parametrize("rule", ["depth", "none", "fixup"])
def test_every_site_holds_against_central_differences(rule: str) -> None:
    parameters = made(rule=rule)
    found = loss_derivative(parameters, INPUTS, TARGETS)
    steps = residual_steps(parameters, len(INPUTS))
    for site, state in enumerate(found.states):

        def loss(start: int = site, at: Array = state) -> float:
            h = at.copy()
            for step in steps[start:]:
                h, _, _ = step.forward(h)
            return final_loss(parameters, h, np.array(TARGETS), gradients=False)[0]

        np.testing.assert_allclose(found.adjoints[site], central_difference(loss, state), rtol=1e-6, atol=2e-9)


def torch_loss(torch: Any, config: DecoderConfig, weights: dict[str, Any]) -> tuple[Any, list[Any]]:
    """Return the mean loss and the residual sites by torch, rotary positions by complex numbers."""

    def rms_norm(x: Any, gain: Any) -> Any:
        return torch.nn.functional.rms_norm(x, (config.width,), gain, config.rms_epsilon)

    def rotated(x: Any) -> Any:
        pairs = torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2).contiguous())
        exponents = torch.arange(0, config.head_dim, 2, dtype=torch.float64) / config.head_dim
        angles = torch.outer(torch.arange(x.shape[-2], dtype=torch.float64), config.rope_base**-exponents)
        return torch.view_as_real(pairs * torch.polar(torch.ones_like(angles), angles)).flatten(-2)

    def split(x: Any) -> Any:
        return x.unflatten(-1, (-1, config.head_dim)).transpose(0, 1)

    h = weights["embedding.weight"][torch.tensor(INPUTS)]
    sites = [h]
    for block in range(config.layers):
        w = {name.removeprefix(f"blocks.{block}."): value for name, value in weights.items()}
        x = rms_norm(h, w["attention_norm.gain"])
        query, key = (rotated(split(x @ w[f"attention.{part}.weight"])) for part in ("query", "key"))
        mixed = torch.nn.functional.scaled_dot_product_attention(
            query,
            key.repeat_interleave(config.group, 0),
            split(x @ w["attention.value.weight"]).repeat_interleave(config.group, 0),
            is_causal=True,
        )
        h = h + mixed.transpose(0, 1).flatten(1) @ w["attention.output.weight"]
        sites.append(h)
        x = rms_norm(h, w["ffn_norm.gain"])
        gate = torch.nn.functional.silu(x @ w["ffn.gate.weight"])
        h = h + (gate * (x @ w["ffn.up.weight"])) @ w["ffn.down.weight"]
        sites.append(h)
    logits = rms_norm(h, weights["final_norm.gain"]) @ weights["embedding.weight"].T
    return torch.nn.functional.cross_entropy(logits, torch.tensor(TARGETS)), sites


def test_torch_agrees(backend: str) -> None:
    torch = pytest.importorskip("torch")
    config = dataclasses.replace(SMALL, layers=3, width=24, heads=6, kv_heads=3, ff_width=17)
    parameters = made(config)
    weights = {name: torch.tensor(array, requires_grad=True) for name, array in parameters.items()}
    loss, sites = torch_loss(torch, config, weights)
    for site in sites:
        site.retain_grad()
    loss.backward()
    found = loss_derivative(parameters, INPUTS, TARGETS, backend=backend)
    assert found.gradients is not None
    assert found.mean_loss == pytest.approx(loss.item(), rel=1e-13)

    def assert_close(got: Array, want: Any, what: object) -> None:
        np.testing.assert_allclose(got, want.detach().numpy(), rtol=1e-10, atol=1e-13, err_msg=str(what))

    for index, site in enumerate(sites):
        assert_close(found.states[index], site, index)
        assert_close(found.adjoints[index], site.grad, index)
    for name, value in weights.items():
        assert_close(found.gradients[name], value.grad, name)


def test_no_position_sees_a_later_one() -> None:
    parameters = made()
    whole = loss_derivative(parameters, INPUTS, TARGETS).states
    for length in range(1, len(INPUTS)):
        part = loss_derivative(parameters, INPUTS[:length], TARGETS[:length]).states
        np.testing.assert_allclose(part, whole[:, :length], rtol=1e-13, atol=1e-15)


def test_tiles_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of queries, and of logits, taken in small batches."""
    parameters = made()
    whole = loss_derivative(parameters, INPUTS, TARGETS)
    monkeypatch.setattr(attention, "_QUERY_ROWS", 2)
    monkeypatch.setattr(head, "_LOGITS", 3 * SMALL.vocabulary)
    parts = loss_derivative(parameters, INPUTS, TARGETS)
    assert whole.gradients is not None
    assert parts.gradients is not None
    assert parts.mean_loss == pytest.approx(whole.mean_loss, rel=1e-14)
    np.testing.assert_allclose(parts.adjoints, whole.adjoints, rtol=1e-11, atol=1e-15)
    for name, gradient in whole.gradients.items():
        np.testing.assert_allclose(parts.gradients[name], gradient, rtol=1e-11, atol=1e-15)


def test_a_block_with_zero_outputs_is_the_identity() -> None:
    found = loss_derivative(made(rule="zero"), INPUTS, TARGETS)
    assert (found.states == found.states[0]).all()
    assert (found.adjoints == found.adjoints[-1]).all()
    assert (found.branch_rms == 0).all()


def test_repeated_keys_and_values_are_grouped_ones() -> None:
    """Heads that share keys and values are heads that each have a copy of them."""
    grouped = made()
    config = dataclasses.replace(SMALL, kv_heads=4)
    copies = {}
    for name, array in grouped.items():
        shared = name.endswith(("key.weight", "value.weight"))
        copies[name] = np.repeat(array.reshape(8, 2, 2), 2, axis=1).reshape(8, 8) if shared else array
    blank = prepare(config, BUDGET, SplitMix64(1)).complete()
    repeated = restore(blank.record, copies)
    one, other = (loss_derivative(parameters, INPUTS, TARGETS) for parameters in (grouped, repeated))
    np.testing.assert_allclose(one.adjoints, other.adjoints, rtol=1e-12, atol=1e-16)


def test_gradients_are_of_stored_weights() -> None:
    """Scaling once at initialization leaves no factor in the pass: the stored weights alone decide."""
    done = prepare(SMALL, BUDGET, SplitMix64(11)).complete()
    stored = restore(done.record, done.parameters)
    one, other = (loss_derivative(parameters, INPUTS, TARGETS) for parameters in (done.parameters, stored))
    assert one.mean_loss == other.mean_loss
    assert one.gradients is not None
    assert other.gradients is not None
    assert all(one.gradients[name].tobytes() == gradient.tobytes() for name, gradient in other.gradients.items())


def test_threads_change_no_bit() -> None:
    runs = [loss_derivative(made(), INPUTS, TARGETS, threads=threads) for threads in (1, 2, 3)]
    assert len({run.adjoints.tobytes() for run in runs}) == 1
