"""Attention over chosen keys: its equation, its gradients, and nothing where nothing was chosen."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from everyformer.engines.content import nearest as module
from everyformer.engines.content.chosen import chosen_attention
from everyformer.engines.content.nearest import nearest


def normal(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.double)


def by_loops(q: Any, k: Any, v: Any, chosen: Any, seen: Any) -> tuple[Tensor, Tensor]:
    o, sums = [], []
    for n in range(q.shape[0]):
        for i in range(q.shape[1]):
            keys = [int(c) for c, s in zip(chosen[n, i], seen[n, i], strict=True) if s]
            if not keys:
                o.append(torch.zeros(v.shape[-1], dtype=q.dtype))
                sums.append(torch.tensor(-math.inf, dtype=q.dtype))
                continue
            logits = torch.stack([(q[n, i] * k[n, c]).sum() for c in keys])
            total = logits.exp().sum()
            o.append(sum(e / total * v[n, c] for e, c in zip(logits.exp(), keys, strict=True)))
            sums.append(total.log())
    return torch.stack(o).view(*q.shape[:2], -1), torch.stack(sums).view(q.shape[:2])


@pytest.mark.parametrize("budget", [1 << 22, 40, 1])
@pytest.mark.parametrize("which", ["outputs", "sums", "both"])
def test_outputs_and_gradients_are_those_of_the_equation(budget, which, monkeypatch) -> None:
    monkeypatch.setattr(module, "BUDGET", budget)
    q = normal(3, 5, 4).requires_grad_()
    k, v = normal(3, 17, 4), normal(3, 17, 6)
    places = torch.arange(17).expand(3, -1)
    # the first query sees nothing, the second two keys, fewer than are asked for
    high = torch.tensor([0, 2, 9, 17, 17]).expand(3, -1)
    found = nearest(q, k, 4, places=places, within=(torch.zeros_like(high), high))
    o, sums = chosen_attention(q, k, v, found.keys, found.scores)
    expected = by_loops(q, k, v, found.keys, found.scores > -math.inf)
    torch.testing.assert_close((o, sums), expected)
    assert (o[:, 0] == 0).all()
    parts = {"outputs": [(o, expected[0])], "sums": [(sums, expected[1])]}
    chosen = [p for name, pairs in parts.items() if which in (name, "both") for p in pairs]
    grads = []
    for side in (0, 1):
        real = [pair[side][:, 1:] for pair in chosen]
        loss = sum((t * torch.linspace(-1, 2, t.numel()).view(t.shape)).sum() for t in real)
        grads.append(torch.autograd.grad(loss, q, retain_graph=True)[0])
    torch.testing.assert_close(grads[0], grads[1])
    assert (grads[0][:, 0] == 0).all()


def test_what_was_chosen_gets_no_gradient() -> None:
    q, k, v = (normal(1, 6, 4).requires_grad_() for _ in range(3))
    found = nearest(q, k, 3)
    o, _ = chosen_attention(q, k, v, found.keys, found.scores)
    o.square().sum().backward()
    assert [t.grad is None for t in (q, k, v)] == [False, True, True]


def test_keys_in_half_precision_are_read_in_the_dtype_of_the_queries() -> None:
    q, k, v = normal(1, 3, 4), normal(1, 9, 4).half(), normal(1, 9, 2).half()
    found = nearest(q, k, 2)
    o, _ = chosen_attention(q, k, v, found.keys, found.scores)
    expected, _ = by_loops(q, k.double(), v.double(), found.keys, found.scores > -math.inf)
    torch.testing.assert_close(o, expected)


def test_it_is_captured_as_one_graph() -> None:
    q, k, v = normal(2, 5, 4).requires_grad_(), normal(2, 30, 4), normal(2, 30, 3)

    def run(q: Tensor) -> Tensor:
        found = nearest(q, k, 3)
        return chosen_attention(q, k, v, found.keys, found.scores)[0]

    compiled = torch.compile(run, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(q), run(q))
    gradients = [torch.autograd.grad(f(q).square().sum(), q)[0] for f in (compiled, run)]
    torch.testing.assert_close(*gradients)
