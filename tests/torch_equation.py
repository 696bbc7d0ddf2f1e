"""The block equation in torch, every option of it, for autograd to differentiate."""

from __future__ import annotations

from typing import Any

import numpy as np
from problems import Problem


class TorchEquation:
    """A problem's stack, written from the definition of the block equation."""

    def __init__(self, torch: Any, p: Problem) -> None:
        self.torch, self.block = torch, p.block
        self.weights = {name: torch.tensor(array, requires_grad=True) for name, array in p.weights.items()}
        scales = {"branch_scale": p.block.branch_scale, "skip_scale": p.block.skip_scale}
        self.scales = {
            name: torch.tensor(np.broadcast_to(scale, (p.weights.depth,)).copy(), requires_grad=True)
            for name, scale in scales.items()
        }
        self.x = torch.tensor(p.x, requires_grad=True)

    def activation(self, z: Any) -> Any:
        f = self.torch.nn.functional
        return {
            "relu": f.relu,
            "leaky_relu": lambda a: f.leaky_relu(a, self.block.slope),
            "tanh": self.torch.tanh,
            "sigmoid": self.torch.sigmoid,
            "gelu": f.gelu,
            "gelu_tanh": lambda a: f.gelu(a, approximate="tanh"),
            "silu": f.silu,
            "abs": self.torch.abs,
            "identity": lambda a: a,
        }[self.block.activation](z)

    def norm(self, place: str, layer: int, x: Any) -> Any:
        kind = getattr(self.block, f"{place}_norm")
        if kind in ("layer", "layer_detached", "center"):
            x = x - x.mean(-1, keepdim=True)
        if kind.startswith(("rms", "layer")):
            root = self.torch.sqrt((x**2).mean(-1, keepdim=True) + self.block.eps)
            x = x / (root.detach() if kind.endswith("detached") else root)
        if kind == "dyt":
            x = self.torch.tanh(self.block.dyt_alpha * x)
        return x * self.weights[f"{place}_gain"][layer] + self.weights[f"{place}_shift"][layer]

    def branch(self, layer: int, u: Any) -> Any:
        w, a = self.weights, self.block.weight_scale
        up = a * (u @ w["up"][layer]) + w["b_up"][layer]
        if self.block.branch == "linear":
            return self.activation(up)
        if self.block.branch == "gated":
            hidden = self.activation(a * (u @ w["gate"][layer]) + w["b_gate"][layer]) * up
        else:
            hidden = self.activation(up)
        return a * (hidden @ w["down"][layer]) + w["b_down"][layer]

    def output(self, h: Any) -> Any:
        for layer in range(len(self.scales["skip_scale"])):
            r = self.norm("output", layer, self.branch(layer, self.norm("pre", layer, h)))
            total = self.scales["skip_scale"][layer] * h + self.scales["branch_scale"][layer] * r
            h = self.norm("post", layer, total)
        return h
