"""
Heads side by side
==================

What four heads of one layer weigh after 150 steps on eight short sentences, the word in the row
reading those in the columns (Vaswani et al. 2017).
"""

import matplotlib.pyplot as plt
import torch

import everyformer as ef

subjects, places = ("cat", "dog"), ("mat", "rug")
verbs = ("sat", "slept")
texts = [f"the {s} {v} on the {p} and it {v}" for s in subjects for v in verbs for p in places]
words = sorted({word for text in texts for word in text.split()})
ids = torch.tensor([[words.index(word) for word in text.split()] for text in texts])

torch.manual_seed(0)
sizes = {"width": 32, "layers": 1, "heads": 4, "vocabulary": len(words), "max_length": 16}
model = ef.create_model("attention", "lm", dropout=0.0, **sizes)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
for _ in range(150):
    model(ids[:, :-1], targets=ids[:, 1:]).losses["task"].backward()
    optimizer.step()
    optimizer.zero_grad()

with torch.no_grad(), ef.trace(model.eval()) as trace:
    model(ids[:1, :-1])
[weights] = trace.find("weights").values()
shown = texts[0].split()[:-1]
figure, panels = plt.subplots(1, 4, figsize=(13, 3.6), layout="constrained")
for head, axes in enumerate(panels):
    axes.imshow(weights[0, head].numpy(), cmap="Blues", vmin=0, vmax=1)
    axes.set_xticks(range(len(shown)), shown, rotation=90)
    axes.set_yticks(range(len(shown)), shown if head == 0 else [""] * len(shown))
    axes.set_title(f"head {head + 1}")
plt.show()
