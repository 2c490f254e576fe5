"""Kernels of which one compilation serves all lengths.

Triton compiles again for an integer that is 1, or a multiple of 16, where before it was not. Of the
numbers of channels and the steps from token to token it is worth it: rows are read in larger pieces
then. Of the counts below it is not: a second is spent for each kernel that meets another length.
"""

import functools

import triton

COUNTS = (
    *("batch", "heads", "length", "source", "rank", "offsets", "span", "each"),
    *("first", "start", "chunks", "chunks_in_all", "queries", "window"),
    *("blocks", "row_blocks", "key_blocks", "value_blocks"),
    # bands lie askew, so their pieces are no larger
    *("bias_head", "bias_step"),
)
"""arguments of kernels that are compiled as any number"""

kernel = functools.partial(triton.jit, do_not_specialize=COUNTS)
"""`triton.jit` for functions that are launched"""
