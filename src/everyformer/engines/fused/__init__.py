"""Triton kernels that compute operators of the engines on CUDA devices.

Every module holds those of one operator, whose equations are in its engine; `cuda.on_cuda` puts
them in the place of torch's. They give what the operator's fake says, to shape and dtype. Under
``TRITON_INTERPRET=1`` the same functions run on a CPU.
"""
