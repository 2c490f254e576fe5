"""Kernel attention: `call` runs the kernels of `levels`, `states`, `answers` and `gradients`."""
