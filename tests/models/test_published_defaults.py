"""Defaults in plain numbers: a row a mixer, position, memory and member.

The first column is what the paper, or the code that its authors left, fixes; the second is this
library's own choice. Together they are all options, so that a new one, or another default, needs a
row that says where it comes from.

Not as published: GPT-2 and BERT also drop 0.1 of their attention weights.
"""

import math
from typing import Any

import pytest
import torch

import everyformer as ef
from everyformer.core.config import to_dict
from everyformer.family import FAMILY
from everyformer.genes.config import Architecture
from everyformer.genes.depth import DEPTHS
from everyformer.genes.feedforward import DENSE, FEEDFORWARDS
from everyformer.genes.memory import MEMORIES
from everyformer.genes.mixers import MIXERS
from everyformer.genes.positions import POSITIONS
from everyformer.genes.residuals import RESIDUALS
from everyformer.genes.retrieval import RETRIEVALS
from everyformer.models.build import configure

Values = dict[str, Any]
WEIGHTS: Values = {"bias": [], "attention_dropout": 0.0}
SPARSE: Values = {**WEIGHTS, "backend": "auto"}
SGU: Values = {"sgu_heads": 1, "mlp_ratio": 4.0}
AFT: Values = {"bias": True}

MIXER_ROWS: dict[str, tuple[Values, Values]] = {
    # mixer: published, own
    "attention": (
        {"scale": None, "kv_heads": None, "window": None, "bias": [], "attention_dropout": 0.0},
        {"widths": dict.fromkeys(("query", "key", "value", "output", "key_dim", "value_dim")),
         "qk_norm": False, "softcap": None, "sink": False}),
    # of the authors' small model of enwik8
    "adaptive-span": (
        {"window": 1024, "ramp": 32, "start": 0.0, "penalty": 2e-6, "attention_dropout": 0.0,
         "dynamic": False},
        {"span_lr": 1.0}),
    "aft-full": ({"gate": "sigmoid", "rank": 128}, AFT),
    "aft-local": ({"gate": "sigmoid", "rank": 128, "window": 32}, AFT),
    "aft-simple": ({"gate": "sigmoid"}, AFT),
    "aft-conv": (
        {"gate": "sigmoid", "kernel": 11}, {**AFT, "dims": 1}),
    "gmlp": ({"gate": "split", "spatial": "dense", "spatial_init": "normal"}, SGU),
    "amlp": (
        {"gate": "split", "spatial": "dense", "spatial_init": "normal", "attention_dim": 64}, SGU),
    "linear": ({}, {"bias": [], "eps": 0.0}),
    "performer": (
        {"feature_map": "positive", "draw": "orthogonal", "redraw": 1000},
        {"bias": [], "features": None, "eps": None}),
    "rfa": (
        {"feature_map": "fourier", "features": 64, "temperature": 1.0, "draw": "iid", "redraw": 1,
         "bias": ["query", "key", "value", "output"]},
        {"gate": False, "pool": 0}),
    "routing": (
        {"decay": 0.999, "update": "ema", "clusters": None, "window": None, "local_heads": None},
        {"routing": "strict", "attention_dropout": 0.0}),
    "reformer": (
        {"chunk": 64, "buckets": None, "attention_dropout": 0.0},
        {"rounds": 4, "evaluation_rounds": None, "wrap": "none", "once": False,
         "decode": "exact"}),
    "sinkhorn": (
        {"tau": 0.75, "sort_net": "linear", "iterations": None, "mixture": False,
         "sortcut": None},
        {**WEIGHTS, "block_size": 64, "combine": "concat"}),
    "linformer": (
        {"sharing": "headwise"},
        {**WEIGHTS, "k": None, "causal_chunk": None}),
    "image-transformer": (
        {"block_size": 256, "memory_size": None},
        {**SPARSE, "dims": 1, "tile": None, "flange": [4, 12], "grid": None}),
    "sparse-transformer": (
        {"pattern": "strided", "stride": None, "attention_dropout": 0.0},
        {"bias": [], "backend": "auto", "mode": "merged", "sets": ["first", "second"],
         "columns": None, "groups": 1, "key_dim": None}),
    "longformer": (
        {"window": 512, "dilation": 1, "global_projections": None},
        {**SPARSE, "global_tokens": 0}),
    "bigbird": (
        {"block_size": 64, "window_blocks": 3, "random_blocks": 3, "global_blocks": None,
         "form": "itc", "attention_dropout": 0.0},
        {"bias": [], "backend": "auto", "extra_tokens": 64, "random": "uniform", "seed": 0,
         "dense_blocks": 0}),
    "blockwise": (
        {"blocks": 2, "groups": None},
        {**SPARSE, "block_size": None}),
    "etc": (
        {"radius": 84, "clip": 12, "ordered": True, "sharing": "all",
         "hard_g2l": True},
        WEIGHTS),
    "by-head": ({}, {"mixers": [], "own": {}}),
}  # fmt: skip

SCALING: Values = {
    "kind": "none", "factor": None, "original_length": None, "attention_factor": None,
    "beta_fast": 32.0, "beta_slow": 1.0, "truncate": True, "low_frequency": 1.0,
    "high_frequency": 4.0, "short": [], "long": [],
}  # fmt: skip
POSITION_ROWS: dict[str, tuple[Values, Values]] = {
    "sinusoidal": ({"layout": "interleaved", "base": 10000.0}, {}),
    "learned": ({"std": 0.02}, {}),
    "learned-per-layer": ({}, {"std": 0.02}),
    "rope": (
        {"base": 10000.0, "fraction": 1.0, "scaling": SCALING}, {"layout": "half"}
    ),
    "alibi": ({"slopes": "alibi"}, {}),
    "t5-relative": ({"buckets": 32, "max_distance": 128, "shared": True, "std": None}, {}),
    "shaw": (
        {"clip": 16, "keys": True, "values": True}, {"per_head": False, "std": None}),
    "xl-relative": (
        {"distances": "waves", "start_std": 0.02, "clamp": None},
        {"reach": None}),
    "da-transformer": ({}, {"spread": 0.1, "distance_scale": 1.0}),
    "axial": ({"combine": "concat"}, {"shape": None, "dims": None, "std": None}),
}  # fmt: skip

MEMORY_ROWS: dict[str, tuple[Values, Values]] = {
    "segment": ({"same_length": "evaluation"}, {"slots": 128, "store": "auto"}),
    "compressive": (
        {"rate": 4, "function": "conv", "reconstruction": "attention", "gradient": "none"},
        {"slots": 128, "compressed": 128, "distance": "index"}),
    "memorizing": (
        {"size": 8192, "neighbours": 32, "combine": "gate", "gate": 0.0,
         "normalize": True, "unit_scale": 1.0, "keep_position": False, "written": "segment"},
        {"slots": 128}),
}  # fmt: skip

RESIDUAL_ROWS: dict[str, tuple[Values, Values]] = {
    "pre": ({}, {}),
    "post": ({}, {}),
    "reversible": ({}, {"reversible_output": "concat"}),
    "gated": ({"gate": "gru", "gate_bias": 2.0, "relu": True}, {}),
}

STORED = {"size": 65536, "context": None, "tap": "ffn-input:-1"}
RETRIEVAL_ROWS: dict[str, tuple[Values, Values]] = {
    "knn": (
        {"distance": "squared"},
        {"k": None, "weight": None, "temperature": None, "tune": 8192, **STORED}),
    "spalm": ({"k": 4, "gate_bias": None}, {"model": None, "share": 0.25, "near": 8, **STORED}),
}  # fmt: skip

DEPTH_ROWS: dict[str, tuple[Values, Values]] = {
    "plain": ({}, {}),
    "repeat": ({}, {"times": 2}),
    # epsilon, tau and the bias are those of the authors' code; forced halting is Graves'
    "universal": (
        {"halting": "act", "combine": "accumulated", "epsilon": 0.01, "tau": 0.01,
         "halting_bias": 1.0, "signal": "sinusoid", "steps": 6},
        {"order": None, "start": 0}),
    "calm": (
        {"confidence": "softmax-difference", "heads": "tied", "classifier_loss": "balanced",
         "every": 1},
        {"threshold": 0.9, "decay": None, "longest": 512, "learns": "layers", "first_exit": 1,
         "scale_gradients": False}),
    "depth-adaptive": (
        {"heads": "tied", "training": "aligned", "weighting": "uniform", "every": 1},
        {"exits": "geometric", "threshold": None, "thresholds": [], "layer": 1, "samples": 1,
         "oracle": "correctness", "sigma": 5.0, "penalty": 0.01, "alpha": 0.1,
         "first_exit": 1, "scale_gradients": False}),
}  # fmt: skip

_FED: Values = {"expansion": 4.0, "feedforward_bias": True, "feedforward_dropout": None}
FEEDFORWARD_ROWS: dict[str, tuple[Values, Values]] = {
    **dict.fromkeys(DENSE, (_FED, {"feedforward_chunk": None})),
    "sepconv": (_FED, {}),
}

ARCHITECTURE: Values = {
    "width": 128, "layers": 4, "heads": 4, "max_length": None, "patch": None, "pooling": "mean",
    "head_hidden": None, "head_activation": "gelu", "causal": None,
    "tie": True, "init": "member", "embedding_dropout": 0.0, "scale_embedding": None,
    "embedding_norm": False, "token_types": 0, "head_transform": False,
    "transform_activation": "gelu", "head_bias": False, "label_smoothing": 0.0,
    "smoothing_over": "all", "loss_chunk": None, "layer_losses": False, "lookahead": 0.0,
    "decoder_layers": None,
    "block": {
        "norm": "layernorm", "norm_eps": 1e-5,
        "final_norm_eps": None, "dropout": 0.0, "drop_path": 0.0,
    },
    "pixels": {
        "order": "raster", "tile": [4, 12], "shift": "order", "output": "categorical",
        "mixtures": 10, "tables": "shared", "places": "learned",
    },
    "summaries": {
        "per": None, "every": 16, "ends": [], "cpc": 0.0, "cpc_share": 0.15,
        "cpc_temperature": 1.0, "cpc_stop": False, "mask_token": None,
    },
    "decision": {
        "body": "layers", "variant": "gym", "return_to_go": True, "tanh": None, "table": None,
        "state_weight": None, "return_weight": None,
    },
}  # fmt: skip
"""what a member has where its own row says nothing"""
ALL_BIASES = {"bias": ["query", "key", "value", "output"]}
RECURRENT: Values = {
    "position": "xl-relative", "residual": "post", "block": {"dropout": 0.1},
    "embedding_dropout": 0.1, "scale_embedding": True,
}  # fmt: skip
NAMED_BY_MIXER = (
    "aft-full", "aft-local", "aft-simple", "aft-conv", "linear", "performer", "rfa",
    "routing", "sinkhorn", "longformer", "bigbird", "blockwise", "linformer",
)  # fmt: skip
NAMED_BY_POSITION = (
    "learned", "rope", "alibi", "t5-relative", "shaw", "xl-relative", "da-transformer",
    "axial",
)  # fmt: skip
"""members of which nothing else is special"""
MEMBER_ROWS: dict[str, Values] = {
    **{name: {"mixer": name} for name in NAMED_BY_MIXER},
    **{name: {"position": name} for name in NAMED_BY_POSITION},
    # member: what its preset changes; the mixer is attention where none is named
    "attention": {},
    "gpt": {"position": "learned", "feedforward": "gelu-tanh", "block": {"dropout": 0.1},
            "feedforward_options": {"feedforward_dropout": 0.0},
            "init": "gpt2", "embedding_dropout": 0.1, "mixer_options": ALL_BIASES},
    "transformer": {"residual": "post", "feedforward": "relu",
                    "feedforward_options": {"feedforward_dropout": 0.0},
                    "block": {"norm_eps": 1e-6, "dropout": 0.1},
                    "embedding_dropout": 0.1, "label_smoothing": 0.1, "smoothing_over": "others"},
    "bert": {"position": "learned", "residual": "post",
             "block": {"norm_eps": 1e-12, "dropout": 0.1},
             "feedforward_options": {"feedforward_dropout": 0.0},
             "init": "bert", "embedding_dropout": 0.1, "embedding_norm": True, "token_types": 2,
             "head_transform": True, "head_bias": True, "mixer_options": ALL_BIASES},
    "vit": {"position": "learned", "block": {"norm_eps": 1e-6}, "pooling": "class",
            "mixer_options": ALL_BIASES},
    "sinusoidal": {},
    "learned-per-layer": {"position": "learned-per-layer", "layer_losses": True, "lookahead": 0.5},
    "transformer-xl": {**RECURRENT, "memory": "segment"},
    "compressive": {**RECURRENT, "memory": "compressive"},
    # rows of the memory are read by distance, u and v start at 0, acting is learning (our choice)
    "gtrxl": {"position": "xl-relative", "position_options": {"start_std": 0.0},
              "memory": "segment", "memory_options": {"same_length": "always"},
              "residual": "gated", "feedforward": "relu", "scale_embedding": True},
    "memorizing": {"position": "t5-relative", "memory": "memorizing"},
    "knn-lm": {"retrieval": "knn"},
    "spalm": {**RECURRENT, "memory": "segment", "retrieval": "spalm"},
    # halting at twice the 6 steps of the base model
    "universal": {"position": None, "depth": "universal", "depth_options": {"steps": 12},
                  "layers": 1, "residual": "post", "scale_embedding": True,
                  "embedding_dropout": 0.1, "feedforward": "relu",
                  "block": {"norm_eps": 1e-6, "dropout": 0.1}},
    "depth-adaptive": {"depth": "depth-adaptive", "residual": "post", "embedding_dropout": 0.1,
                       "feedforward": "relu", "block": {"dropout": 0.1}},
    "calm": {"position": "t5-relative", "depth": "calm", "embedding_dropout": 0.1,
             "feedforward": "geglu",
             "feedforward_options": {"feedforward_bias": False},
             "block": {"norm": "rmsnorm", "norm_eps": 1e-6, "dropout": 0.1}},
    "adaptive-span": {"mixer": "adaptive-span", "position": None, "residual": "post",
                      "feedforward": "relu"},
    "image-transformer": {"mixer": "image-transformer", "scale_embedding": True, "head_bias": True,
                          "residual": "post", "feedforward": "relu", "block": {"dropout": 0.1},
                          "pixels": {"tables": "channel", "places": "sinusoids"}},
    "sparse-transformer": {"mixer": "sparse-transformer", "position": "axial", "tie": False,
                           "position_options": {"combine": "sum"},
                           "feedforward": "gelu-sigmoid",
                           "feedforward_options": {"feedforward_dropout": 0.0},
                           "block": {"final_norm_eps": 1e-6}},
    "etc": {"mixer": "etc", "position": None, "residual": "post",
            "summaries": {"per": "tokens"}},
    "linformer-chunked": {"mixer": "linformer", "mixer_options": {"causal_chunk": 64}},
    "gmlp": {"mixer": "gmlp", "position": None},
    "amlp": {"mixer": "amlp", "position": None},
    "reformer": {"mixer": "reformer", "position": "axial", "tie": False, "scale_embedding": True,
                 "residual": "reversible", "feedforward": "relu"},
    "decision-transformer": {
        "layers": 3, "heads": 1, "position": None, "init": "gpt2", "embedding_dropout": 0.1,
        "feedforward": "relu", "feedforward_options": {"feedforward_dropout": 0.0},
        "block": {"dropout": 0.1},
        "mixer_options": {**ALL_BIASES, "attention_dropout": 0.1}},
}  # fmt: skip
BY_TASK = {
    ("image-transformer", "pixels"): {"position": None},
    ("image-transformer", "super-resolution"): {"position": None},
    ("sparse-transformer", "pixels"): {"position": None},
    ("depth-adaptive", "seq2seq"): {"label_smoothing": 0.1},
    ("universal", "seq2seq"): {"label_smoothing": 0.1, "smoothing_over": "others"},
}
"""what it changes beside, in one task"""

MADE: list[tuple[str, Values, Any, Any]] = [
    # mixer, what it is built with, what is asked of it, the number
    ("attention", {"width": 128}, lambda m: m.scale, 0.1767767),  # 1 / sqrt(32)
    ("aft-full", {}, lambda m: m.position.u.shape, (1, 4096, 128)),
    ("gmlp", {"width": 128}, lambda m: m.up.out_features, 512),
    ("gmlp", {"width": 128}, lambda m: m.norm.eps, 1e-5),
    ("linformer", {}, lambda m: m.slots, 256),
    ("linformer", {"causal": True, "causal_chunk": 64}, lambda m: m.slots, 16),
    ("linformer", {}, lambda m: len(m.length_map), 2),
    ("performer", {"width": 256}, lambda m: m.random.projection.shape, (1, 266, 64)),  # 64 ln 64
    ("rfa", {}, lambda m: m.random.projection.shape[1], 64),
    ("routing", {}, lambda m: (m.clusters, m.window, m.local), (64, 64, 2)),
    ("reformer", {}, lambda m: math.prod(m.factors), 128),  # 2 max_length / 64
    ("reformer", {}, lambda m: (m.pattern.before, m.pattern.after), (1, 1)),
    ("reformer", {"causal": True}, lambda m: (m.pattern.before, m.pattern.after), (1, 0)),
    ("sinkhorn", {}, lambda m: m.iterations, 8),
    ("sinkhorn", {"causal": True}, lambda m: m.iterations, 1),
    ("sparse-transformer", {}, lambda m: (m.stride, m.columns), (64, 8)),  # sqrt(max_length)
    ("longformer", {}, lambda m: (m.project_global is None, m._halves[0]), (False, (256, 1))),
    ("longformer", {"causal": True}, lambda m: m.project_global is None, True),
    ("bigbird", {}, lambda m: m.rules.always, (0, -1)),
    ("bigbird", {"causal": True}, lambda m: m.rules.always, (0,)),
    ("blockwise", {"heads": 12, "width": 12}, lambda m: m._shifts(), [0] * 10 + [1] * 2),
    ("blockwise", {"heads": 12, "width": 12, "blocks": 3}, lambda m: m._shifts(),
     [0] * 8 + [1] * 2 + [2] * 2),
    ("etc", {}, lambda m: len(m.long_labels.vectors), 27),  # 2 12 + 1, and 2 of sentences
]  # fmt: skip

GENES = {"mixer": "attention", "encoder": None, "cross": "attention", "position": "sinusoidal",
         "memory": None, "retrieval": None, "feedforward": "gelu", "residual": "pre",
         "depth": "plain"}  # fmt: skip
"""what stands for every gene unless a member's row says otherwise"""


@pytest.mark.parametrize(
    ("registry", "rows"),
    [
        (MIXERS, MIXER_ROWS),
        (POSITIONS, POSITION_ROWS),
        (MEMORIES, MEMORY_ROWS),
        (RETRIEVALS, RETRIEVAL_ROWS),
        (FEEDFORWARDS, FEEDFORWARD_ROWS),
        (RESIDUALS, RESIDUAL_ROWS),
        (DEPTHS, DEPTH_ROWS),
    ],
    ids=["mixers", "positions", "memories", "retrievals", "feedforwards", "residuals", "depths"],
)
def test_every_registered_part_has_a_row_of_all_its_options(registry, rows):
    assert set(rows) == set(registry.names())
    for name, (published, own) in rows.items():
        assert not published.keys() & own.keys()
        assert to_dict(registry.get(name).Options()) == {**published, **own}, name


def test_members_have_these_choices_unless_their_rows_say_otherwise() -> None:
    assert to_dict(Architecture()) == ARCHITECTURE


def test_every_member_has_a_row() -> None:
    assert set(MEMBER_ROWS) == {member.name for member in FAMILY}


@pytest.mark.parametrize("member", [member.name for member in FAMILY])
def test_the_presets_of_a_member_are_as_published(member: str) -> None:
    for task in ef.info(member).tasks:
        preset_is_as_published(member, task)


def preset_is_as_published(member: str, task: str) -> None:
    row = {**MEMBER_ROWS[member], **BY_TASK.get((member, task), {})}
    expected = {**GENES, "schedule": {}, **ARCHITECTURE, **row}
    if expected["scale_embedding"] is None:
        text = (
            task in ("lm", "mlm", "classify-text", "regress-text") and expected["init"] == "member"
        )
        expected["scale_embedding"] = text or expected["position"] == "sinusoidal"
    for gene in GENES:
        options = expected.pop(f"{gene}_options", {})
        expected[gene] = {"name": expected[gene], **(options if expected[gene] else {})}
    for part in ("block", "pixels", "summaries", "decision"):
        expected[part] = {**ARCHITECTURE[part], **row.get(part, {})}
    found = to_dict(configure(member, task))
    assert found.pop("causal") is not None
    del expected["causal"]
    assert {name: found[name] for name in expected} == expected


@pytest.mark.parametrize(("name", "given", "asked", "number"), MADE)
def test_defaults_that_follow_from_sizes(name: str, given: Values, asked: Any, number: Any) -> None:
    sizes = {"width": 16, "heads": 4, "causal": False, "max_length": 4096}
    found = asked(ef.create_mixer(name, **{**sizes, **given}))
    expected = pytest.approx(number) if isinstance(number, float) else number
    assert (tuple(found) if isinstance(found, torch.Size) else found) == expected
