"""`draw_influence`: how much what stands at one position matters at another, of any member.

Layers of random weights read random vectors x. Then the one at position s alone is replaced, and
the change of the output at t is measured,

    A[t, s] = || y_t(x with another x_s) - y_t(x) ||,    s != t

No member's own account of what it sees is used, so a leak would show. Those that remember read
segments, and a change in one reaches later ones by what is carried.
"""

import matplotlib
import torch
from matplotlib.figure import Figure
from torch import Tensor

from everyformer.core.member import Member
from everyformer.lab.show.style import new_figure, styled
from everyformer.models.build import configure_layers
from everyformer.models.layers import build_stack

LENGTH, SEGMENT, WIDTH, LAYERS, DRAWS = 48, 16, 32, 2, 4
"""positions, of a segment; channels; layers; models that are averaged"""


def influence(member: Member, seed: int = 0) -> Tensor:
    """(L, L) of one random model, rows the output's positions."""
    torch.manual_seed(seed)
    causal = member.can("causal")
    sizes = {"width": WIDTH, "heads": 4, "layers": LAYERS}
    config = configure_layers(member.name, causal, LENGTH, **sizes)
    stack = build_stack(config).eval()
    x = torch.randn(1, LENGTH, WIDTH).repeat(LENGTH + 1, 1, 1)
    x[torch.arange(LENGTH), torch.arange(LENGTH)] = torch.randn(LENGTH, WIDTH)
    with torch.no_grad():
        if config.genes["memory"].name is None:
            y = stack(x).y
        else:
            parts, state = [], stack.init_state(LENGTH + 1)
            for segment in x.split(SEGMENT, dim=1):
                y, state = (out := stack(segment, state=state)).y, out.state
                parts.append(y)
            y = torch.cat(parts, 1)
    change = (y[:-1] - y[-1:]).norm(dim=-1).T
    # what a position passes on to itself, by the residual, would hide all else
    return change.fill_diagonal_(0.0)


@styled
def draw_influence(member: Member) -> Figure:
    """Mean of several models as a picture; its label says what it shows."""
    mean = torch.stack([influence(member, seed) for seed in range(DRAWS)]).mean(0)
    shown = (mean / mean.amax(1, keepdim=True).clamp(min=1e-12)).sqrt().fill_diagonal_(torch.nan)
    figure, axes = new_figure(3.6)
    colours = matplotlib.colormaps["Blues"].with_extremes(bad="0.85")
    axes.imshow(shown.numpy(), cmap=colours, vmin=0, vmax=1, interpolation="none")
    axes.grid(visible=False)
    axes.set(xlabel="position that is changed", ylabel="position where it shows")
    remembers = f", in segments of {SEGMENT}" if member.genes["memory"].name is not None else ""
    figure.set_label(
        f"How much the output of {LAYERS} layers of random weights changes at each position (rows) "
        f"when one other vector of its input (columns) does{remembers}; dark: most of its row."
    )
    return figure
