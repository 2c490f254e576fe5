"""
Attention by hashing
====================

Queries that point the same way fall into one bucket. The weights of all pairs, in order and sorted
by bucket; what is left of them where a token sees its bucket alone; and where a chunk of the sorted
tokens sees itself and the chunk before it, all of one size whatever the buckets are (Kitaev et al.
2020).
"""

import matplotlib.pyplot as plt
import torch

import everyformer as ef

torch.manual_seed(1)
kinds = torch.randn(6, 16)
qk = (kinds[torch.randint(6, (48,))] + 0.3 * torch.randn(48, 16))[None, None]
keys = qk / qk.norm(dim=-1, keepdim=True)
others = ~torch.eye(48, dtype=torch.bool)
weights = (qk @ keys.mT).masked_fill(~others, -torch.inf).softmax(-1)[0, 0]

rotations = torch.randn(1, 1, 16, 4)
buckets = ef.functional.lsh_buckets(qk, rotations, (8,))[0, 0, 0]
order = buckets.argsort(stable=True)
chunk = torch.arange(48) // 8
back = chunk[:, None] - chunk
seen = (back == 0) | (back == 1)
reads = (buckets[order][:, None] == buckets[order]) & others
cases = {
    "weights": weights,
    "sorted by bucket": weights[order][:, order],
    "of one bucket": (weights[order][:, order] * reads),
    "in two chunks of 8": weights[order][:, order] * seen,
}
figure, panels = plt.subplots(1, 5, figsize=(15, 3.3), layout="constrained")
for axes, (name, matrix) in zip(panels[1:], cases.items(), strict=True):
    axes.imshow(matrix.sqrt().numpy(), cmap="Blues")
    axes.set(title=f"{name}: {matrix.sum() / 48:.0%}", xticks=[], yticks=[])
    if name != "weights":
        for cut in (buckets[order].diff() != 0).nonzero().flatten().tolist():
            axes.axhline(cut + 0.5, color="C1", linewidth=0.5)
panels[0].imshow(torch.stack([buckets, buckets[order]]).numpy(), cmap="tab10", aspect="auto")
panels[0].set_yticks(range(2), ("in order", "sorted"))
panels[0].set(title="buckets of 48 tokens", xlabel="token")
plt.show()
