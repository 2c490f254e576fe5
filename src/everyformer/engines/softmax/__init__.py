"""Softmax attention under every mask, with every position.

`attention` is the plain call and its fused kernels; `weighing` chooses between it, slopes
(`slopes`) and scores by position (`scored`, with `places` for tables over distances); `visibility`
makes the one mask of a call out of the parts of a `Mask`; `cache` holds keys and values.
"""
