"""What kernels make is contiguous, and near what is expected."""

import torch


def agree(found, expected, tolerance):
    for a, b in zip(found, expected, strict=True):
        assert a.shape == b.shape
        assert a.is_contiguous()
        size = b[b.isfinite()].double().abs().max().item() if b.isfinite().any() else 1.0
        torch.testing.assert_close(
            a.double(), b.double(), rtol=tolerance, atol=tolerance * max(size, 1)
        )
