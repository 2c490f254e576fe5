"""
Neighbours from a datastore
===========================

A model that was trained on nothing keeps the contexts of one sentence and what followed them, and
reads "the ca". How near the stored contexts are to those it reads; what comes next as more weight
lambda goes to neighbours (kNN-LM, Khandelwal et al. 2020); and the likeliest letters of a SPALM,
whose gate mixes states, with random weights too (Yogatama et al. 2021).
"""

import matplotlib.pyplot as plt
import torch

import everyformer as ef
from everyformer.genes.retrieval import KnnOptions
from everyformer.models import knn_lm

stored, read = "the cat sat on the mat, the car ran, the cat ran.", "the ca"
letters = sorted(set(stored))
ids = torch.tensor([[letters.index(letter) for letter in stored]])
asked = torch.tensor([[letters.index(letter) for letter in read]])

torch.manual_seed(0)
sizes = {"width": 64, "layers": 1, "heads": 4, "vocabulary": len(letters), "max_length": 64}
model = ef.create_model("rope", "lm", **sizes).eval()
with torch.no_grad():
    keys = model(ids, taps=["ffn-input:-1"]).taps["ffn-input:-1"][0, :-1]
    out = model(asked, taps=["ffn-input:-1"])
distances = (out.taps["ffn-input:-1"][0, :, None] - keys).square().sum(-1)
near = distances.topk(4, largest=False)
found = knn_lm.Neighbours(near.values, ids[0, 1:][near.indices])
known = knn_lm.neighbour_probabilities(found, len(letters), KnnOptions(temperature=5.0))

figure, (left, middle, right) = plt.subplots(
    1, 3, figsize=(15, 3.4), width_ratios=(2, 1, 1), layout="constrained"
)
left.imshow((-distances / 5).softmax(-1).numpy(), cmap="Blues", aspect="auto")
left.set_xticks(range(len(keys)), stored[:-1])
left.set_yticks(range(len(read)), read)
left.set(xlabel="stored context ends in", ylabel="read", title="how near")
logs = knn_lm.log_probabilities(out.logits[0])
for at, weight in enumerate((0.0, 0.25, 0.75)):
    p = knn_lm.mix(logs, known, weight)[-1].exp().numpy()
    places = [n + 0.27 * at for n in range(len(letters))]
    middle.bar(places, p, width=0.25, label=f"lambda = {weight}")
middle.set_xticks([n + 0.27 for n in range(len(letters))], letters)
middle.set(xlabel="next letter", ylabel="probability")
middle.legend(fontsize=8)

gated = ef.create_model("spalm", "lm", gate_bias=0.0, **sizes).eval()
gates = torch.linspace(-6, 6, 25)
chances = []
for bias in gates:
    gated.gating.bias.data.fill_(bias)
    with torch.no_grad():
        logits = gated(asked, neighbours=found.values[None]).logits
    chances.append(logits[0, -1].softmax(-1))
curves = torch.stack(chances)
for letter in curves.amax(0).topk(3).indices.tolist():
    right.plot(gates.sigmoid(), curves[:, letter], label=repr(letters[letter]))
right.set(xlabel="gate g, the share of the model's own state", ylabel="probability")
right.legend(fontsize=8)
plt.show()
