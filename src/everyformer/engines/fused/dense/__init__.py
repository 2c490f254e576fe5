"""Averages with a bias for every pair: `call` runs the kernels of `averages` and `gradients`.

Nothing of size L x S is made of factors, and no number is read by the host: each tile decides
whether its range lets its exponentials be taken apart (see `tiles`).
"""
