"""Stacks of blocks: their weights, and states, cotangents and tangents pushed through them."""
