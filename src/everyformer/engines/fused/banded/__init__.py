"""Softmax averages with a bias inside a band, a block of queries at a time.

The keys of the window of a block, which holds all its bands, are taken as tiles whose bias is 0
beside the band (`averages`). What lies before and after the window is two averages, one token each:
every block of keys is averaged by itself, and the running averages of these, from either end, are
what a block of queries begins with. All sums follow the largest score so far and are exact for keys
and biases of any range.
"""
