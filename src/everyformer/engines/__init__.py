"""Algebra that members share, in groups. The one to take, for a mixer whose outputs are:

    softmax(Q K^T + bias) V, any mask, any position             softmax/   attention, scored
    the same, over a pattern that is known beforehand            sparse/    plan, then attention
    the same, over tokens that hashing or clusters brought near  content/   sorted_chunks, clustered
    phi(Q) (phi(K)^T V), a sum over the past of constant size    kernel/    features, attention
    softmax averages without queries (AFT), tables over places   averages/  running, banded, dense

Beside them: `projections` (into heads), `rows` (padding and packing undone), `ranges` (which sums
of exponentials stay finite), `operators` (a forward pass and its gradients by hand), `once` (what
has no second derivative), `flops` (counts of operations).
"""
