"""Softmax attention under every mask, with every position.

`visibility` makes which keys each query may see of the parts of a `Mask`; `scored.Scores` says how
scores become weights and computes them: by the plain call and its fused kernels (`attention`), with
slopes (`slopes`), or by position a block at a time (`blocks`, which asks what `positions` says of
its `pairs`). `spans` has windows of its own for each head, which fade out. `cache` holds keys and
values.
"""
