"""Summaries: global tokens that stand for parts of a text, given to it before the first layer.

    tokens      g_1 .. g_G, x_1 .. x_L     all g_s the same learned vector
    sentences   1 .. G,     s(1) .. s(L)   s(i): which part x_i is in

A part is ``every`` real tokens of a document, or a sentence: up to a run of tokens ``ends``, where
``mask.sentences`` does not tell. What tells one global token from another are labels alone (ETC),
so that they have no positions, and the norm of their own that embeddings of global tokens have in
ETC would make no difference here: it maps one vector to another. In packed rows the global tokens
of a document stand before its own text. Parts that a row has not are padding.

A masked language model may also be taught to foretell whole sentences (`contrast`):

    loss = - mean over hidden s of log softmax over all sentences s' of the batch of <g_s, t_s'> / T

g_s is the output of a global token whose sentence is hidden, t_s the same of the text in full.

Source: Ainslie et al. 2020, arXiv 2004.08483 (ETC), sections 2 and 3: a global token a sentence in
most of its tasks, one for so many tokens where there are none. Which sentences are hidden, and that
the hidden tokens are learned in the same pass, the text leaves open.
"""

import math
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from everyformer.core.mask import Mask, document_positions, runs_of
from everyformer.core.subset import gather_rows
from everyformer.engines.drawing import uniform_rows
from everyformer.genes.model_options import SummaryOptions

KNOWN = frozenset({"padding_mask", "documents", "sentences", "global_tokens"})
"""parts of a mask that a text with summaries may come with"""


class TextParts(NamedTuple):
    """The parts that texts are divided into."""

    number: Tensor
    """(B, L) the part of its row that a token is in; of padding any"""
    real: Tensor
    """(B, L) bool"""
    padding_mask: Tensor
    """(B, G) bool, which parts there are"""
    documents: Tensor | None
    """(B, L) int64, counted by `runs_of`; None: one a row"""


class WithGlobals(NamedTuple):
    """Texts with their global tokens."""

    x: Tensor
    """(B, G + L, width)"""
    mask: Mask
    positions: Tensor | None
    """(B, G + L) where the global tokens, and then those of the text, stand; None: in that order"""


class Summarised(NamedTuple):
    """Outputs of global tokens."""

    y: Tensor
    """(B, G, channels)"""
    padding_mask: Tensor
    """(B, G) bool"""


class Summaries(nn.Module):
    """Global tokens of texts: divides texts, puts the tokens in and takes them out.

    Args:
        width: channels of embeddings.
        options: `SummaryOptions`.
        sentences: whether the layers read which part a token is in.
    """

    def __init__(self, width: int, options: SummaryOptions, sentences: bool) -> None:
        super().__init__()
        self.options, self.sentences = options, sentences
        self.vector = nn.Embedding(1, width)

    def divide(self, tokens: Tensor, mask: Mask | None) -> TextParts:
        """The parts of texts of ``tokens`` (B, L)."""
        known = mask or Mask()
        known.require("a model with summaries", KNOWN)
        positions = torch.arange(tokens.shape[1], device=tokens.device).expand_as(tokens)
        real = (
            torch.ones_like(positions, dtype=torch.bool)
            if known.padding_mask is None
            else known.padding_mask
        )
        # the last real token up to this one, and the one before that
        last = torch.where(real, positions, -1).cummax(1).values
        before = F.pad(last[:, :-1], (1, 0), value=-1)
        documents = None if known.documents is None else runs_of(known.documents, real)
        starts = before < 0
        if known.sentences is not None:
            starts = starts | _moved(known.sentences, before)
        elif self.options.per == "tokens":
            single = torch.zeros_like(positions) if documents is None else documents
            starts = document_positions(single, real) % self.options.every == 0
        else:
            ends = torch.tensor(self.options.ends, device=tokens.device)
            ending = torch.isin(tokens, ends)
            starts = starts | (ending.gather(1, before.clamp(min=0)) & ~ending)
        if documents is not None:
            starts = starts | _moved(documents, before)
        counted = (starts & real).long().cumsum(1)
        result = counted[:, -1:]
        if self.options.per == "tokens" and documents is None and known.sentences is None:
            most = self.options.most(tokens.shape[1])
        else:
            most = max(int(result.max()), 1)
        padding_mask = torch.arange(most, device=tokens.device) < result
        return TextParts((counted - 1).clamp(min=0), real, padding_mask, documents)

    def open(self, x: Tensor, first: Tensor, parts: TextParts, mask: Mask | None) -> WithGlobals:
        """Global tokens ``first`` (B, G, width) and the text ``x`` (B, L, width), with a mask."""
        count = parts.padding_mask.shape[1]
        marked = None if mask is None else mask.global_tokens
        chosen = torch.zeros_like(parts.real) if marked is None else marked
        numbers = torch.arange(count, device=x.device).expand_as(parts.padding_mask)
        parts_of: dict[str, Any] = {
            "padding_mask": torch.cat([parts.padding_mask, parts.real], 1),
            "global_tokens": torch.cat([torch.ones_like(parts.padding_mask), chosen], 1),
        }
        if self.sentences:
            parts_of["sentences"] = torch.cat([numbers, parts.number], 1)
        both = torch.cat([first.to(x.dtype), x], 1)
        if mask is None or mask.documents is None or parts.documents is None:
            return WithGlobals(
                both, Mask(**parts_of, prefix=count if marked is None else None), None
            )
        documents = torch.zeros_like(numbers).scatter(1, parts.number, parts.documents)
        parts_of["documents"] = torch.cat([documents, parts.documents], 1)
        # how many documents begin up to a token, or to the part that a global token stands for
        initial = F.pad(parts.documents[:, 1:] != parts.documents[:, :-1], (1, 0)).long().cumsum(1)
        rank = torch.zeros_like(numbers).scatter(1, parts.number, initial)
        rank = rank.masked_fill(~parts.padding_mask, x.shape[1])
        order = torch.cat([2 * rank, 2 * initial + 1], 1).argsort(dim=1, stable=True)
        slots = torch.arange(order.shape[1], device=x.device).expand_as(order)
        positions = torch.empty_like(order).scatter(1, order, slots)
        moved = {name: part.gather(1, order) for name, part in parts_of.items()}
        return WithGlobals(gather_rows(both, order), Mask(**moved), positions)

    def close(self, y: Tensor, opened: WithGlobals, parts: TextParts) -> tuple[Tensor, Summarised]:
        """Outputs of the text (B, L, channels), and of its global tokens."""
        if opened.positions is not None:
            y = gather_rows(y, opened.positions)
        count = parts.padding_mask.shape[1]
        return y[:, count:], Summarised(y[:, :count], parts.padding_mask)

    def choose(self, parts: TextParts) -> Tensor:
        """(B, G) bool: the parts that are hidden in this step of a training."""
        drawn = uniform_rows(parts.padding_mask.shape, parts.padding_mask.device)
        return parts.padding_mask & (drawn < self.options.cpc_share)

    def hide(self, tokens: Tensor, parts: TextParts, chosen: Tensor, mask_token: int) -> Tensor:
        """``tokens`` (B, L) with those of chosen parts hidden."""
        hidden = chosen.gather(1, parts.number) & parts.real
        return tokens.masked_fill(hidden, mask_token)

    def contrast(self, guess: Tensor, full: Summarised, chosen: Tensor) -> Tensor:
        """The loss above, with its weight: of ``guess`` and ``full.y`` (B, G, channels)."""
        wide = torch.promote_types(guess.dtype, torch.float32)
        target = (full.y.detach() if self.options.cpc_stop else full.y).flatten(0, 1).to(wide)
        scores = guess.flatten(0, 1).to(wide) @ target.T / self.options.cpc_temperature
        scores = scores.masked_fill(~full.padding_mask.flatten(), -math.inf)
        queries = chosen.flatten()
        # rows without a query have finite numbers, so that their gradients are zero
        scores = scores.masked_fill(~queries[:, None], 0.0)
        each = scores.logsumexp(1) - scores.diagonal()
        return self.options.cpc * (each * queries).sum() / queries.sum().clamp(min=1)


def _moved(ids: Tensor, before: Tensor) -> Tensor:
    """True where a token has another id than the real one before it."""
    return ids != ids.gather(1, before.clamp(min=0))
