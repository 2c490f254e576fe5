"""Attention as products of features, in linear time.

`features` estimate kernels; `attention` sums and divides them; `chunks` does so chunk by chunk over
the past, with gradients.
"""
