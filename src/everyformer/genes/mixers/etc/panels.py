"""Picture of the pairs of ETC: global tokens in front, each for a sentence, and long ones."""

from __future__ import annotations

from collections.abc import Callable

import torch

from everyformer.core.mask import Mask
from everyformer.core.mixer import Mixer
from everyformer.core.panels import Panel, Panels
from everyformer.core.trace import trace
from everyformer.engines.sparse.panels import SHADES

SENTENCES, WORDS, RADIUS, WIDTH = 4, 12, 3, 8


def global_local(build: Callable[[bool], Mixer], own: bool) -> Panels:
    """A column for open and one for hard g2l, which ``build`` makes; the model is one or the other.

    ``build`` gives mixers of `WIDTH` channels and `RADIUS`.
    """
    sentence = torch.arange(SENTENCES)
    sentences = torch.cat((sentence, sentence.repeat_interleave(WORDS)))
    chosen = torch.arange(len(sentences)) < SENTENCES
    mask = Mask(global_tokens=chosen[None], sentences=sentences[None])
    panels = []
    for hard in (False, True):
        small = build(hard)
        with torch.no_grad(), trace(small) as traced:
            small(torch.zeros(1, len(sentences), WIDTH), mask=mask)
        seen = traced[""]["weights"][0][0, 0] > 0
        shades = torch.where(chosen | chosen[:, None], SHADES[1], SHADES[0]) * seen
        shades.fill_diagonal_(1.0)
        title = "hard g2l" if hard else "open g2l"
        panels.append(Panel(title, shades.numpy(), ("is read", "reads")))
    caption = (
        f"Who may read whom: {SENTENCES} global tokens, one a sentence, in front of {WORDS} long "
        f"ones of each. This model is the {'second' if own else 'first'}, drawn "
        f"with radius {RADIUS}."
    )
    return Panels([panels], caption, None)
