"""Texts that a whole model writes, compared with third-party programs of the same weights.

So many tokens are written greedily by 4 layers after one token of each row; also by compiled steps
(`COMPILED`). Peers of `gpt` are `generate` of transformers with its usual cache and with a static
one, and llama.cpp, which reads the weights from a GGUF file; both in float32, llama.cpp's keys and
values too (its GELU is a table in half precision). How many of the tokens are the same is reported,
and the least time that they could take here, by a token in the middle
(`everyformer.lab.bench.limits`).

Weights are those of the start, but for a table of positions, which is made louder: else a text
would be one token, again and again.
"""

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from everyformer.core.errors import UnsupportedError
from everyformer.generation.config import Sampling
from everyformer.generation.sampling import generate, initial_state
from everyformer.lab.bench.limits import account, least_seconds
from everyformer.lab.bench.measure import in_turn
from everyformer.lab.bench.points import Point, Setting
from everyformer.lab.bench.timing import Call
from everyformer.lab.convert.checkpoint import export_checkpoint
from everyformer.lab.convert.gguf import export_gguf
from everyformer.models.base import Model
from everyformer.models.build import create_model
from sequence_laws.extras import extra_module
from sequence_laws.operations import Counter

COMPILED = "everyformer, compiled"
"""the source of tokens by compiled steps"""
WRITTEN: dict[str, tuple[str, ...]] = {
    "gpt": ("transformers", "transformers, static cache", "llama.cpp")
}
"""member -> what it is compared with"""
LAYERS, VOCABULARY, SEED = 4, 256, 0
LOUDER = 20.0
"""factor on the table of positions"""
GREEDY = Sampling(temperature=0.0)


def measured(points: Sequence[Point], setting: Setting) -> list[Point]:
    """``points``, which differ in their source alone, with their times and peaks."""
    texts: dict[str, Tensor] = {}
    with tempfile.TemporaryDirectory() as folder:

        def make(point: Point) -> Call:
            if setting.precision != "float32" or setting.device != "cpu":
                raise UnsupportedError(
                    "texts are written on the CPU in float32: leave out --device and --precision"
                )
            model, first = model_of(point, setting)
            write = WRITERS[point.source](model, first, point.length, Path(folder))
            texts[point.source] = write()
            return write

        result = in_turn(points, setting, make)
    token = token_of(points[0], setting) if result[0].status == "ok" else None
    if token is not None:
        with torch.inference_mode(), Counter() as counter:
            token()
        least = points[0].length * least_seconds(counter, setting.device)
        result = [replace(point, limit=least) for point in result]
    ours = texts.get("everyformer")
    details = {s: [same(text, ours)] for s, text in texts.items() if ours is not None}
    for point in result:
        if token is not None and point.seconds and point.source in ("everyformer", COMPILED):
            compiled, each = point.source == COMPILED, point.seconds / point.length
            details[point.source].append(account(token, each, compiled=compiled))
    details.get("everyformer", [""]).pop(0)
    return [
        p if p.detail else replace(p, detail="; ".join(details.get(p.source, ()))) for p in result
    ]


def token_of(point: Point, setting: Setting) -> Call | None:
    """A token in the middle of the text, read; None for a member that has no state and reads the
    whole text again for each."""
    model, first = model_of(point, setting)
    with torch.inference_mode():
        state = initial_state(model, len(first))
        if state is None:
            return None
        text = first.expand(-1, max(1, point.length // 2))
        state = model(text, state=state, last=1).state
    return lambda: model(first, state=state, last=1)


def same(text: Tensor, ours: Tensor) -> str:
    """The part of a text (B, n) that is ``ours``, in words."""
    return f"{int((text == ours).sum())} of {ours.numel()} tokens are the same"


@torch.no_grad()
def model_of(point: Point, setting: Setting) -> tuple[Model, Tensor]:
    """The model, and the token (B, 1) that each row begins with."""
    torch.manual_seed(SEED)
    model = create_model(
        point.member, "lm", width=setting.width, heads=setting.heads, layers=LAYERS,
        vocabulary=VOCABULARY, max_length=point.length + 1,
    ).eval()  # fmt: skip
    for name, parameter in model.named_parameters():
        if name == "position.table":
            parameter.mul_(LOUDER)
    return model, torch.randint(VOCABULARY, (setting.batch, 1))


def _ours(
    model: Model, first: Tensor, tokens: int, folder: Path, compile: bool = False
) -> Callable[[], Tensor]:
    return lambda: generate(model, first, tokens=tokens, sampling=GREEDY, compile=compile)


def _transformers(
    model: Model, first: Tensor, tokens: int, folder: Path, cache: str | None = None
) -> Callable[[], Tensor]:
    folder = folder / (cache or "usual")
    theirs = extra_module("transformers", "hf", "this comparison")
    # it tells of tokens that this vocabulary has not, and of its progress
    theirs.utils.logging.set_verbosity_error()
    theirs.utils.logging.disable_progress_bar()
    export_checkpoint(model, folder, "gpt2")
    loaded: Any = theirs.AutoModelForCausalLM.from_pretrained(folder).eval()
    real = torch.ones_like(first)
    options: dict[str, Any] = {"max_new_tokens": tokens, "do_sample": False, "pad_token_id": 0}
    options |= {"eos_token_id": None} | ({} if cache is None else {"cache_implementation": cache})

    def write() -> Tensor:
        with torch.inference_mode():
            text: Tensor = loaded.generate(first, attention_mask=real, **options)
        return text[:, 1:]

    return write


def _llama(model: Model, first: Tensor, tokens: int, folder: Path) -> Callable[[], Tensor]:
    llama = extra_module("llama_cpp", "llama", "this comparison", package="llama-cpp-python")
    if len(first) > 1:
        raise UnsupportedError("llama-cpp-python writes one text at a time: leave out --batch")
    path = folder / "model.gguf"
    export_gguf(model, path)
    threads = torch.get_num_threads()
    loaded = llama.Llama(
        str(path), n_ctx=tokens + 1, n_threads=threads, n_threads_batch=threads, verbose=False,
        type_k=llama.GGML_TYPE_F32, type_v=llama.GGML_TYPE_F32,
    )  # fmt: skip

    def write() -> Tensor:
        text = loaded.generate(first[0].tolist(), temp=0.0, repeat_penalty=1.0)
        return torch.tensor([[next(text) for _ in range(tokens)]])

    return write


WRITERS: dict[str, Callable[[Model, Tensor, int, Path], Callable[[], Tensor]]] = {
    "everyformer": _ours,
    COMPILED: partial(_ours, compile=True),
    "transformers": _transformers,
    "transformers, static cache": partial(_transformers, cache="static"),
    "llama.cpp": _llama,
}
"""source -> of a model, first tokens, how many more and a folder what writes them"""
