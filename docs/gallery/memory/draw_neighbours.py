"""
Neighbours from a datastore
===========================

A model that was trained on nothing keeps the contexts of one sentence and what followed them, and
reads it again: the stored neighbours of each letter, and what comes next after "the ca" as more
weight lambda goes to the neighbours (kNN-LM, Khandelwal et al. 2020; SPALM mixes states instead).
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
found = knn_lm.Neighbours(near.values, ids[0, 1:][near.indices], near.indices)
known = knn_lm.neighbour_probabilities(found, len(letters), KnnOptions(temperature=5.0))

figure, (left, right) = plt.subplots(
    1, 2, figsize=(13, 3.6), width_ratios=(2.2, 1), layout="constrained"
)
left.imshow((-distances / 5).softmax(-1).numpy(), cmap="Blues", aspect="auto")
left.set_xticks(range(len(keys)), stored[:-1])
left.set_yticks(range(len(read)), read)
left.set(xlabel="stored context ends in", ylabel="read", title="how near")
logs = knn_lm.log_probabilities(out.logits[0])
for at, weight in enumerate((0.0, 0.25, 0.75)):
    p = knn_lm.mix(logs, known, weight)[-1].exp().numpy()
    places = [n + 0.27 * at for n in range(len(letters))]
    right.bar(places, p, width=0.25, label=f"lambda = {weight}")
right.set_xticks([n + 0.27 for n in range(len(letters))], letters)
right.set(xlabel="next letter", ylabel="probability")
right.legend(fontsize=8)
plt.show()
