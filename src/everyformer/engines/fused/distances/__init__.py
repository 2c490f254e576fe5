"""Softmax attention that sees distances: `call` runs the kernels of `averages` and `gradients`.

Column c of the tables is that of pairs (i, j) with c = L - 1 - i + j. A tile of R queries and R
keys meets 2 R - 1 columns side by side: it is multiplied with all of them at once, and every row of
the product moved to the left by its own number of places (`tiles`). Nothing of size L x S is made.
"""
