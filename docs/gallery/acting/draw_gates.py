"""
Gates and the order of norms
============================

How much of the input is left in the stream (their cosine) behind each of twelve layers of random
weights, with norms after the sum, before the layer, and with GRU gates of three biases: the larger
the bias, the nearer is a layer to passing its input on (Parisotto et al. 2020).
"""

import matplotlib.pyplot as plt
import torch

import everyformer as ef

cases = {
    "post-norm": {"residual": "post"},
    "pre-norm": {"residual": "pre"},
    "gates, b = 0": {"residual": "gated", "gate_bias": 0.0},
    "gates, b = 2": {"residual": "gated", "gate_bias": 2.0},
    "gates, b = 4": {"residual": "gated", "gate_bias": 4.0},
}
taps = [f"block-output:{n}" for n in range(13)]
figure, axes = plt.subplots(figsize=(8, 3.6), layout="constrained")
for name, options in cases.items():
    torch.manual_seed(0)
    sizes = {"width": 64, "layers": 12, "heads": 4, "vocabulary": 64, "max_length": 32}
    model = ef.create_model("gtrxl", "lm", **sizes, **options).eval()
    with torch.no_grad():
        streams = list(model(torch.randint(64, (4, 32)), taps=taps).taps.values())
    alike = [torch.cosine_similarity(streams[0], h, dim=-1).mean().item() for h in streams]
    axes.plot(alike, marker="o", label=name)
axes.set(xlabel="layer", ylabel="cosine of stream and input")
axes.legend(fontsize=8)
plt.show()
