"""Singular values: of many matrices, of long products, and estimated for large operators."""
