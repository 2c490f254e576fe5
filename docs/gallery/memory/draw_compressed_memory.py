"""
Compressed memory
=================

What the slots of a layer hold after five segments of six tokens, found by changing one token at a
time: the last six as they are, of older ones three in a slot, the oldest nothing. Beside it what a
row of each part is read after training, oldest to newest: recorded numbers of
``everyformer reproduce regions`` (Rae et al. 2020).
"""

import json
from pathlib import Path

import matplotlib.pyplot as plt
import torch

import everyformer as ef

torch.manual_seed(0)
sizes = {"width": 16, "layers": 1, "heads": 2, "slots": 6, "compressed": 4, "rate": 3}
body, state = ef.create_body("compressive", **sizes).eval(), None
x = torch.randn(1, 30, 16).repeat(31, 1, 1)
x[range(30), range(30)] = torch.randn(30, 16)  # row s has another token s
with torch.no_grad():
    for segment in x.split(6, dim=1):
        _, state = body(segment, state)
held = torch.cat([state.layers[0].packed.x, state.layers[0].rows.keys[:, 0]], 1)
changed = (held[:-1] - held[-1]).norm(dim=-1).T > 0

recorded = json.loads(Path("../../results/regions.json").read_text("utf-8"))["numbers"]
figure, (left, right) = plt.subplots(1, 2, figsize=(12, 3.6), layout="constrained")
left.imshow(changed.numpy(), cmap="Blues", vmax=1.5, aspect="auto")
left.axhline(3.5, color="0.5", linestyle=":")
left.set(xlabel="token", ylabel="slot: compressed, then memory")
for at, region in enumerate(("compressed memory", "memory", "sequence")):
    parts = [100 * recorded[f"{region}, part {n}"]["mean"] for n in range(1, 7)]
    right.bar([n + 6 * at for n in range(6)], parts, label=region)
right.set(yscale="log", xticks=[], xlabel="oldest to newest", ylabel="% of the attention, a row")
right.legend()
plt.show()
