"""
Attention-free weights
======================

In an AFT every channel has weights of its own, exp(k + w) divided by their sum, whoever asks. Drawn
is their mean over channels, at random weights and with larger w than at the start (Zhai et al.
2021).
"""

import matplotlib.pyplot as plt
import torch

import everyformer as ef

cases = {
    "aft-full": {"max_length": 48},
    "aft-local": {"max_length": 48, "window": 8},
    "aft-simple": {},
    "aft-conv": {"kernel": 9},
}
x = torch.randn(1, 48, 32, generator=torch.Generator().manual_seed(0))
figure, panels = plt.subplots(1, 4, figsize=(13, 3.6), layout="constrained")
for axes, (name, options) in zip(panels, cases.items(), strict=True):
    torch.manual_seed(0)
    mixer = ef.create_mixer(name, width=32, heads=1, causal=True, **options)
    for name_of, parameter in mixer.named_parameters():
        if name_of.startswith("position"):
            parameter.data.normal_(std=0.3)
        elif name_of == "gamma":
            parameter.data.fill_(2.0)
    with torch.no_grad(), ef.trace(mixer) as trace:
        mixer(x)
    [weights] = trace.find("weights").values()
    axes.imshow(weights[0, 0].sqrt().numpy(), cmap="Blues")
    axes.set(title=name, xlabel="read", ylabel="written")
plt.show()
