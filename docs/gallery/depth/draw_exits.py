"""
Who decides where a token leaves
================================

Three depth-adaptive classifiers: one exit for the sequence, one for a token after the first layer,
or a yes or no after every layer. Shown are the probabilities of leaving at each of six layers, of
random weights; dots are the layers that are taken (Elbayad et al. 2020).
"""

import matplotlib.pyplot as plt
import torch

import everyformer as ef
from everyformer.genes.depth.exit_targets import geometric

sizes = {"width": 32, "layers": 6, "heads": 2, "vocabulary": 64, "max_length": 16}
taps = [f"block-output:{n}" for n in range(1, 7)]
torch.manual_seed(0)
text = torch.randint(4, 64, (1, 12))


@torch.no_grad()
def chances(exits):
    """(12, 6) probabilities of the tokens' exits, and the layers at which they leave."""
    model = ef.create_model("depth-adaptive", "lm", exits=exits, **sizes).eval()
    depth = model.stack.depth
    states = [model.stack.norm(h[0]) for h in model(text, taps=taps).taps.values()]
    if exits == "geometric":
        odds = [h @ w + b for h, w, b in zip(states, depth.weight, depth.bias, strict=False)]
        q = geometric(torch.stack(odds, -1)).exp()
    else:
        q = (states[0] @ depth.weight.T + depth.bias).softmax(-1)
    with ef.trace(model) as trace:
        model(text)
    return q, next(iter(trace.find("exits").values()))[0]


@torch.no_grad()
def chances_of_sequence():
    """The same of a decoder whose encoder has read the text: one exit for all tokens."""
    model = ef.create_model("depth-adaptive", "seq2seq", exits="sequence", **sizes).eval()
    q = model.encode(text, None)[0][-1].odds.softmax(-1).expand(12, 6)
    return q, q.argmax(-1) + 1


figure, panels = plt.subplots(1, 3, figsize=(12, 3.2), layout="constrained")
cases = {
    "the sequence": chances_of_sequence(),
    "a token, once": chances("multinomial"),
    "a token, after every layer": chances("geometric"),
}
for axes, (name, (q, layer)) in zip(panels, cases.items(), strict=True):
    drawn = axes.imshow(q.T.numpy(), cmap="Blues", vmin=0, aspect="auto")
    axes.plot(range(12), layer - 1, "o", color="C1", markersize=5)
    axes.set_yticks(range(6), range(1, 7))
    axes.set(title=name, xlabel="token", ylabel="layer")
    figure.colorbar(drawn, ax=axes)
plt.show()
