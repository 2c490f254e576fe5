"""The joint softmax against the attention of a public package, which is installed by hand.

    pip install --no-deps memorizing-transformers-pytorch einops-exts

Its window grows over a segment where ours does not, so texts are read token by token. Its index
is replaced by a list: only its arithmetic is asked, the index loses values when it is full.
"""

from typing import Any

import pytest
import torch
from torch import Tensor

import everyformer as ef

package = pytest.importorskip("memorizing_transformers_pytorch.memorizing_transformers_pytorch")

WIDTH, HEADS, WINDOW, FOUND = 12, 3, 3, 2


class Listed:
    """Keys and values in order; a search looks at all of them."""

    def __init__(self) -> None:
        self.rows = torch.zeros(1, 0, 2, WIDTH // HEADS)

    def search(self, queries: Tensor, k: int) -> tuple[Tensor, Tensor]:
        rows = torch.cat((self.rows, torch.zeros(1, k, 2, WIDTH // HEADS)), 1)
        scores = torch.einsum("bhid,bjd->bhij", queries, rows[:, :, 0])
        scores[..., -k:] = -torch.inf
        best = scores.topk(k, -1)
        return rows[0, best.indices[0]][None], best.values > -torch.inf

    def add(self, rows: Tensor) -> None:
        self.rows = torch.cat((self.rows, rows.view(1, -1, 2, WIDTH // HEADS)), 1)


def test_a_joint_softmax_is_that_of_the_package() -> None:
    torch.manual_seed(0)
    theirs: Any = package.KNNAttention(
        dim=WIDTH, heads=HEADS, dim_head=WIDTH // HEADS, num_retrieved_memories=FOUND,
        xl_max_memories=WINDOW - 1, attn_scale_init=20,
    )  # fmt: skip
    ours = ef.create_mixer(
        "attention", width=WIDTH, heads=HEADS, causal=True, memory="memorizing", kv_heads=1,
        memory_options={
            "slots": WINDOW, "size": 64, "neighbours": FOUND, "combine": "joint",
            "written": "leaving", "unit_scale": 20.0,
        },
    ).eval()  # fmt: skip
    with torch.no_grad():
        rows = dict(ours.named_parameters())
        rows["project.weights.0"].copy_(torch.cat((theirs.to_q.weight, theirs.to_kv.weight)))
        rows["out.weight"].copy_(theirs.to_out.weight)
    x = torch.randn(1, 17, WIDTH)
    index, window, state = Listed(), None, ours.init_state(1)
    with torch.no_grad():
        for n in range(17):
            token = x[:, n : n + 1]
            expected, window = theirs(token, knn_memory=index, xl_memory=window)
            got, state, _ = ours(token, state=state)
            torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)
