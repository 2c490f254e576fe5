"""Depth: how often, and which way, the blocks of a stack are applied."""
