"""Softmax attention over patterns that are known beforehand.

A `plan` is a union of `patterns` (`patterns_grid` for pictures, `random_blocks` for blocks);
`layouts` say how their pairs lie in dense units; `attention` runs a plan: `branches` by fused
kernels, `by_torch` by torch's operations, or FlexAttention.
"""
