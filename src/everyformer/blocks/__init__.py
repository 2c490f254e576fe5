"""Blocks: how sub-layers are joined, and the stack of them."""
