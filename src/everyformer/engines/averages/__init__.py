"""Softmax averages without queries, and Toeplitz products: what AFT and gMLP compute.

`running` has no bias; `banded` a bias inside a window (`factors`: the band of a low-rank product),
`planar` one on a square of a picture, `dense` one for every pair; `toeplitz` is one filter for all
positions.
"""
