"""A causal model with a mask and a cache, and the ways to get it wrong, each by one word."""

import time

import torch
from torch import Tensor, nn

VOCABULARY, WIDTH = 32, 16


class Right(nn.Module):
    """Two layers of attention over (B, L) tokens; ``wrong`` names what goes wrong in it."""

    def __init__(self, wrong: str = "") -> None:
        super().__init__()
        self.wrong = wrong
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.ModuleList(Layer(wrong) for _ in range(2))
        self.head = nn.Linear(WIDTH, VOCABULARY)
        self.unused = nn.Linear(2, 2) if wrong == "a layer that nothing uses" else nn.Identity()
        self.many = [nn.Linear(WIDTH, WIDTH)] if wrong == "layers in a list" else []
        self.plain = torch.randn(WIDTH) if wrong == "a weight that is no parameter" else None
        kept = torch.randn(WIDTH) if wrong == "a buffer that is not saved" else None
        self.register_buffer("kept", kept, persistent=False)
        self.calls = 0

    def forward(
        self,
        x: Tensor,
        mask: Tensor | None = None,
        cache: list | None = None,
        labels: Tensor | None = None,
        documents: Tensor | None = None,
    ):
        self.calls += 1
        h = self.embed(x)
        caches = cache or [None] * len(self.layers)
        start = 0 if cache is None else caches[0][0].shape[1]
        seen = torch.arange(start, start + x.shape[1], device=x.device)
        if mask is not None and self.wrong != "places of padding":
            seen = (mask.cumsum(1) - 1).clamp(min=0)
        if documents is not None and self.wrong != "places that go on":
            seen = seen - torch.searchsorted(documents, documents)
        if self.wrong == "places in half":
            seen = 8 * seen.to(h)
        h = h + torch.sin(seen[..., None] / 7 + torch.arange(WIDTH)).to(h)
        if self.wrong == "positions start over" and start:
            h = self.embed(x) + torch.sin((seen - start)[:, None] / 7 + torch.arange(WIDTH)).to(h)
        if self.wrong == "a mean over the batch":
            h = h - h.mean(0, keepdim=True)
        if self.wrong == "the first row read by all":
            h = h + h[:1]
        if self.wrong == "the number of rows":
            h = h * len(x)
        if self.wrong == "tokens in the order of their scores":
            h = h + self.embed(x.sort(-1).values) * 0.1
        if self.wrong == "one token squeezed":
            h = h if x.shape[1] > 1 else h.squeeze(1)[:, :, None]
        if self.wrong == "pairs of tokens":
            h = h.unflatten(1, (-1, 2) if x.shape[1] % 2 == 0 else (x.shape[1] // 2, 2)).flatten(
                1, 2
            )
        if self.wrong == "a table that ends" and seen.max() > 40:
            raise IndexError("index out of range in self")
        if self.wrong == "a call counted":
            h = h + 0.01 * self.calls
        if self.wrong == "the time of day":
            h = h + 0.01 * time.perf_counter()
        if self.wrong == "noise of the process":
            noise = torch.rand(1, generator=torch.Generator().manual_seed(self.calls))
            h = h + 0.01 * noise.to(h)
        after = []
        for layer, before in zip(self.layers, caches, strict=True):
            h, kept = layer(h, mask, before, documents)
            if self.wrong == "documents of the first layer":
                documents = None
            after.append(kept)
        for extra in self.many:
            h = h + extra.to(h)(h)
        if self.plain is not None:
            h = h * self.plain.to(h)
        if self.kept is not None:
            h = h * self.kept
        if self.wrong == "detached":
            h = h.detach()
        if self.wrong == "a root at zero":
            h = h + (h - h.detach()).abs().sqrt()
        if self.wrong == "compiled otherwise" and torch.compiler.is_compiling():
            h = 2 * h
        if self.wrong == "dropped when compiled" and torch.compiler.is_compiling():
            h = h.clamp(min=0)
        if self.wrong == "compiled otherwise with a mask" and mask is not None:
            h = 2 * h if torch.compiler.is_compiling() else h
        if self.wrong == "scaled by a mask" and mask is not None:
            h = 2 * h
        if self.wrong == "another path without gradients" and not torch.is_grad_enabled():
            h = 2 * h
        if self.wrong == "gradients with a mask" and mask is not None:
            h = 2 * h if torch.is_grad_enabled() else h
        y = self.head(h)
        if self.wrong == "a sum over the number of tokens":
            y = y * 8 / x.shape[1]
        if self.wrong == "too large for half" and y.dtype is torch.bfloat16:
            y = y * 1e30 * 1e30
        if self.wrong == "no digit in half":
            y = (y + 1000) - 1000
        if labels is not None:
            return {"logits": y, "loss": self.loss(y, labels)}
        return y, Kept(after, self.wrong)

    def loss(self, y: Tensor, labels: Tensor) -> Tensor:
        each = nn.functional.cross_entropy(y[:, :-1].mT, labels[:, 1:], reduction="none")
        real = (labels[:, 1:] != -100).to(y)
        if self.wrong == "a loss over padding":
            return each.mean()
        if self.wrong == "a mean of means":
            return (each.sum(1) / real.sum(1)).mean()
        return each.sum() / real.sum()


class Kept(list):
    """A cache that can be cut."""

    def __init__(self, layers: list, wrong: str) -> None:
        super().__init__(layers)
        self.wrong = wrong

    def reorder_cache(self, rows: Tensor) -> None:
        if self.wrong != "rows that stay":
            self[:] = [(k[rows], v[rows]) for k, v in self]

    def crop(self, count: int) -> None:
        count += self.wrong == "cut one too few"
        rest = 1 if self.wrong == "only the first layer cut" else len(self)
        self[:rest] = [(k[:, :count], v[:, :count]) for k, v in self[:rest]]


class Bare(Right):
    """It without mask and cache, where what goes wrong would also be seen in these."""

    def forward(self, x: Tensor):
        return super().forward(x)[0]


class Layer(nn.Module):
    """Attention, with one head, and a norm in front."""

    def __init__(self, wrong: str) -> None:
        super().__init__()
        self.wrong = wrong
        self.norm = nn.LayerNorm(WIDTH)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)
        self.over_text = nn.BatchNorm1d(WIDTH) if wrong == "batch norm" else None

    def forward(self, h: Tensor, mask, cache: tuple | None, documents: Tensor | None = None):
        q, k, v = self.qkv(self.norm(h)).chunk(3, -1)
        if self.over_text is not None:
            v = self.over_text(v.mT).mT
        if cache is not None:
            k, v = torch.cat((cache[0], k), 1), torch.cat((cache[1], v), 1)
        kept = (k, v)
        if self.wrong == "the oldest forgotten" and k.shape[1] > 8:
            kept = (k[:, -8:], v[:, -8:])
        if self.wrong == "rows share a cache":
            kept = (k, v.mean(0, keepdim=True).expand_as(v))
        queries, keys = q.shape[1], k.shape[1]
        ahead = 1 if self.wrong == "a diagonal too far" else 0
        seen = torch.ones(queries, keys, dtype=torch.bool).tril(keys - queries + ahead)[None]
        if mask is not None and self.wrong != "mask ignored":
            of_queries = self.wrong == "mask of queries, not keys"
            seen = seen & (mask[:, :, None] if of_queries else mask[:, None, :])
        if documents is not None:
            before = documents[:, :, None] - documents[:, None, :]
            seen = seen & (before.abs() <= (self.wrong == "the document before it too"))
        scores = (q @ k.mT / WIDTH**0.5).masked_fill(~seen, -1e30)
        if self.wrong == "scores without their maximum":
            weights = scores.exp()
            weights = weights / weights.sum(-1, keepdim=True)
        else:
            weights = scores.softmax(-1)
        return h + self.out(weights @ v), kept
