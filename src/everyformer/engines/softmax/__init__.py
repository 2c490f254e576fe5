"""Softmax attention under every mask, with every position.

`visibility` makes which keys each query may see of the parts of a `Mask`; `scored.Scores` says how
scores become weights and computes them: by the plain call and its fused kernels (`attention`), with
slopes (`slopes`), or by position a block at a time (`scored`, with `pairs` for distances). `spans`
has windows of its own for each head, which fade out. `cache` holds keys and values.
"""
