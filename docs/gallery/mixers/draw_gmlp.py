"""
Spatial weights of a gMLP
=========================

W mixes tokens, the same for all channels. It begins near zero, so that nothing is mixed; after 300
steps of learning x(t - 1) + x(t + 3) its rows are shifted copies of one filter, though nothing made
them so (Liu et al. 2021).
"""

import matplotlib.pyplot as plt
import torch

import everyformer as ef

torch.manual_seed(0)
mixer = ef.create_mixer("gmlp", width=16, heads=1, max_length=24)
before = mixer.matrix(24)[0].detach().clone()
optimizer = torch.optim.AdamW(mixer.parameters(), lr=5e-3)
for _ in range(300):
    x = torch.randn(64, 24, 16)
    wanted = x.roll(1, 1) + x.roll(-3, 1)
    loss = (mixer(x).y - wanted)[:, 1:-3].square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
print(loss)
after = mixer.matrix(24)[0].detach()
figure, panels = plt.subplots(1, 2, figsize=(8.5, 3.6), layout="constrained")
for axes, matrix, name in zip(panels, (before, after), ("at the start", "learned"), strict=True):
    most = matrix.abs().max().item()
    drawn = axes.imshow(matrix.numpy(), cmap="RdBu_r", vmin=-most, vmax=most)
    axes.set(title=name, xlabel="read", ylabel="written")
    figure.colorbar(drawn, ax=axes)
plt.show()
