"""
Looking the past up
===================

A text of 64 random letters comes eight times. Where queries and keys are projected alike, a token
looks up the same letters of earlier rounds, beyond its window of 32; and the learned gate of a head
says how much of what was found is taken (Wu et al. 2022).
"""

import matplotlib.pyplot as plt
import torch

import everyformer as ef

torch.manual_seed(0)
text = torch.randint(256, (1, 64)).repeat(1, 8)
sizes = {"width": 32, "layers": 1, "heads": 1, "vocabulary": 256, "max_length": 512}
model = ef.create_model("memorizing", "lm", position=None, slots=32, neighbours=2, **sizes).eval()
mixer = model.stack.blocks[0].mixer
projections = mixer.project.weights[0].data  # of queries, keys and values
projections[:32] = projections[32:64]


def output(bias):
    """What the layer gives, and what was looked up, with this b of the gate."""
    mixer.memory.gate.data.fill_(bias)
    with torch.no_grad(), ef.trace(model) as trace:
        logits = model(text).logits
    return logits, next(iter(trace.find("looked-up").values()))[0, 0]


near, back = output(-30.0)
far, _ = output(30.0)
token = torch.arange(512)[:, None].expand_as(back)
figure, (left, right) = plt.subplots(1, 2, figsize=(10, 3.6), layout="constrained")
left.scatter(token[back >= 0], (token - back)[back >= 0], s=2)
left.plot([0, 512], [0, 512], color="0.7", linewidth=0.8)
left.set(xlabel="token that asks", ylabel="token that is found")
gates = torch.linspace(-6, 6, 25)
share = [((output(b)[0] - near).norm() / (far - near).norm()).item() for b in gates.tolist()]
right.plot(gates, share, marker="o", markersize=3)
right.set(xlabel="b of the gate", ylabel="way from the window to the store")
plt.show()
