"""Blocks: how sub-layers are wired, and the stack of them."""
