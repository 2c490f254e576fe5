"""
Return, state, action
=====================

A Decision Transformer reads three tokens a step. Which of them the action of each step depends on,
found by changing one at a time: its own return and state and all steps before, but no action of
its own step or later (Chen et al. 2021).
"""

import matplotlib.pyplot as plt
import torch

import everyformer as ef

steps = 6
torch.manual_seed(0)
sizes = {"width": 32, "layers": 2, "heads": 2}
episodes = {"state": (3,), "actions": 4, "context": steps}
model = ef.create_model("decision-transformer", "decision", episodes=episodes, **sizes).eval()


@torch.no_grad()
def logits(returns, states, actions):
    """(steps, 4) of the actions that are chosen in one episode."""
    timesteps = torch.arange(steps)[None]
    return model(states, returns=returns, actions=actions, timesteps=timesteps).logits[0]


read = [torch.randn(1, steps), torch.randn(1, steps, 3), torch.randint(4, (1, steps))]
plain, changes = logits(*read), torch.zeros(steps, 3 * steps)
for step in range(steps):
    for kind in range(3):
        other = [tensor.clone() for tensor in read]
        other[kind][0, step] = (other[kind][0, step] + 1) % 4
        changes[:, 3 * step + kind] = (logits(*other) - plain).norm(dim=-1)

figure, axes = plt.subplots(figsize=(9, 3.4), layout="constrained")
drawn = axes.imshow(changes.log10().masked_fill(changes == 0, torch.nan).numpy(), cmap="Blues")
figure.colorbar(drawn, label="log10 of the change", shrink=0.6)
names = [f"{kind}{step}" for step in range(1, steps + 1) for kind in "Rsa"]
axes.set_xticks(range(3 * steps), names)
axes.set_yticks(range(steps), [f"action {step}" for step in range(1, steps + 1)])
axes.set_xlabel("return-to-go R, state s or action a that is changed")
plt.show()
