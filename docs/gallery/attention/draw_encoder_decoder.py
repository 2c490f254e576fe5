"""
The three attentions of an encoder-decoder
==========================================

The encoder reads both ways, the decoder its own past, and every layer of the decoder the encoder.
Drawn after 150 steps of turning six letters around: what is written first is read last
(Vaswani et al. 2017).
"""

import matplotlib.pyplot as plt
import torch

import everyformer as ef

torch.manual_seed(0)
sizes = {"width": 32, "layers": 1, "heads": 1, "vocabulary": 16, "max_length": 16}
model = ef.create_model("transformer", "seq2seq", dropout=0.0, **sizes)
optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
for _ in range(150):
    source = torch.randint(4, 16, (64, 6))
    model(source, targets=source.flip(1)).losses["task"].backward()
    optimizer.step()
    optimizer.zero_grad()

with torch.no_grad(), ef.trace(model.eval()) as trace:
    model(source[:1], targets=source[:1].flip(1))
names = {
    "encoder.blocks.0.mixer": ("encoder, itself", "letter", "letter"),
    "stack.blocks.0.mixer": ("decoder, itself", "written", "to write"),
    "stack.blocks.0.cross": ("decoder, the encoder", "letter", "to write"),
}
weights = trace.find("weights")
figure, panels = plt.subplots(1, 3, figsize=(10, 3.5), layout="constrained")
for axes, (path, (title, read, reads)) in zip(panels, names.items(), strict=True):
    drawn = axes.imshow(weights[path][0, 0].numpy(), cmap="Blues", vmin=0, vmax=1)
    axes.set(title=title, xlabel=f"{read}, read", ylabel=f"{reads}, reads")
figure.colorbar(drawn, ax=panels, label="weight")
plt.show()
