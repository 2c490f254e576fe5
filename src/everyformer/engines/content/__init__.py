"""Softmax attention among tokens that content brought together.

`hashing` sorts by buckets, `chunk_lists` and `sorted_chunks` attend in chunks of what was sorted;
`centroids` follow what is routed to them, `clustered` attends inside clusters; `balance` makes
matrices doubly stochastic; `nearest` finds the keys with the largest products, `best` keeps
the best that it meets.
"""
