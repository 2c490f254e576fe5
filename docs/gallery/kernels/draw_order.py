"""
The order of products
=====================

With a feature map in place of softmax, keys meet values first: what grows with the square of the
length then grows with the length, counted here in operations, and what was
read fits into a state of constant size (Katharopoulos et al. 2020; Peng et al. 2021).
"""

from functools import partial

import matplotlib.pyplot as plt
import torch

import everyformer as ef
from sequence_laws.flops import count_flops

lengths = [128, 256, 512, 1024, 2048]
figure, (left, right) = plt.subplots(1, 2, figsize=(10, 3.4), layout="constrained")
for name, marker in (("attention", "o"), ("linear", "s"), ("rfa", "^"), ("performer", "D")):
    mixer = ef.create_mixer(name, width=64, heads=2, causal=True).eval()
    counts, sizes = [], []
    for length in lengths:
        x = torch.randn(1, length, 64)
        with torch.no_grad():
            counts.append(count_flops(partial(mixer, x)) / length)
            sizes.append(mixer(x, state=mixer.init_state(1)).state.nbytes)
    left.loglog(lengths, counts, marker=marker, label=name)
    right.loglog(lengths, sizes, marker=marker, label=name)
left.set(xlabel="length", ylabel="operations a token")
right.set(xlabel="tokens read", ylabel="bytes of the state")
right.legend()
for axes in (left, right):
    axes.set_xticks(lengths, lengths)
    axes.minorticks_off()
plt.show()
