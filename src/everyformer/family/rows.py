"""The family: every member, its paper, its genes, what it can do and what it claims.

A reader who opens only this file sees the whole family. A member is a named choice of genes (mixer,
position, memory, block, model); each builds with `create_model`, those whose mixer bears their name
also with `create_mixer`. Where something is not supported, the reason is in place of True.
`BASELINES` are no members, but rows of the same form, so that they are trained and compared alike.
Other packages add rows through the entry-point group ``everyformer.members``, each under its name
(``my-member = "module:ROW"``); so that listing costs nothing, their modules import no torch.
"""

from typing import Any

from everyformer.core.config import Choice
from everyformer.core.member import Cost, Genes, Member
from everyformer.core.tasks import (
    ALL_TASKS,
    DECISION,
    ENLARGE,
    IMAGE,
    IMAGE_NUMBER,
    LM,
    MLM,
    PIXELS,
    SEQ2SEQ,
    SERIES,
    SERIES_NUMBER,
    TEXT,
    TEXT_NUMBER,
)  # fmt: skip
from everyformer.genes import GENES, plain_genes
from everyformer.genes.gene import plain_choice

_TEXT, _IMAGE, _SERIES = (TEXT, TEXT_NUMBER), (IMAGE, IMAGE_NUMBER), (SERIES, SERIES_NUMBER)
"""what says one thing of a text, a picture, a series"""
_SOFTMAX = Cost(2, 1, "O(L^2 d) time, O(L d) memory when fused", "2 t d")
_NO_CROSS_DISTANCE = "distances are defined between tokens of one sequence"
_KERNEL = ("O(L M d) time, O(L (M + d)) memory; M features a head", "M (d + h), constant")
_BY_CHOICE = "what a step keeps and reads follows from a choice: another number after each text"
_MOVING_CHUNKS = (
    "later tokens move the borders of the chunks, and so which earlier ones a token sees (their "
    "content never enters)"
)
_NO_CROSS_AFT = "published with w over one sequence; a cross form would need a table of its own"
_NO_PAST = "what is carried from segment to segment is the past of a text read in order"
_NO_CROSS_SGU = "the spatial matrix mixes the tokens of one sequence"

_BIASED = Choice("attention", {"bias": ("query", "key", "value", "output")})


def _genes(**chosen: Any) -> Genes:
    """Genes by name, and fields of `Genes`; what is not said is plain attention's."""
    genes = {name: plain_choice(chosen.pop(name)) for name in GENES if name in chosen}
    return Genes(plain_genes() | genes, **chosen)


_UNDROPPED: dict[str, Any] = {"feedforward_dropout": 0.0}
"""of a feed-forward whose output alone is dropped"""
_ACTING: dict[str, Any] = {
    "position": None,
    "mixer": Choice("attention", {**_BIASED.options, "attention_dropout": 0.1}),
    "feedforward": Choice("relu", _UNDROPPED),
    "block": {"dropout": 0.1},
    "model": {"layers": 3, "heads": 1, "init": "gpt2", "embedding_dropout": 0.1},
}
_FROM_THE_PAST = "what is done follows from the past alone"
_ONE_EPISODE = "it reads one episode"
_WINDOW = "it reads its last states anew at every step"

FAMILY: tuple[Member, ...] = (
    Member(
        "attention", "Multi-head softmax attention", "Vaswani et al.", 2017, "1706.03762",
        _genes(), ALL_TASKS, _SOFTMAX,
        "without the factor 1/sqrt(D) softmax saturates as D grows, with it entropy and gradients "
        "stay flat; and attention solves associative recall where an LSTM of equal size fails",
        group="attention",
    ),
    Member(
        "gpt", "GPT-2: decoder-only language model", "Radford et al.", 2019, None,
        _genes(position="learned", mixer=_BIASED,
              feedforward=Choice("gelu-tanh", _UNDROPPED), block={"dropout": 0.1},
              model={"init": "gpt2", "embedding_dropout": 0.1}),
        (LM,), _SOFTMAX,
        "bytes of real text: bits per byte clearly under a 5-gram baseline",
        bidirectional="decoder-only by definition: use 'attention' without causal masking",
        group="attention",
    ),
    Member(
        "transformer", "The Transformer: encoder-decoder", "Vaswani et al.", 2017, "1706.03762",
        _genes(wiring="post", feedforward=Choice("relu", _UNDROPPED),
              block={"norm_eps": 1e-6, "dropout": 0.1},
              model={"embedding_dropout": 0.1, "label_smoothing": 0.1, "smoothing_over": "others"}),
        (SEQ2SEQ,), _SOFTMAX,
        "copies, reverses and sorts sequences of 10 to 20 symbols exactly; post-norm, as "
        "published, it needs a warm-up, where pre-norm does not",
        group="attention",
    ),
    Member(
        "bert", "BERT: masked language model", "Devlin et al.", 2018, "1810.04805",
        _genes(position="learned", mixer=_BIASED, wiring="post",
              feedforward=Choice("gelu", _UNDROPPED), block={"norm_eps": 1e-12, "dropout": 0.1},
              model={"init": "bert", "embedding_dropout": 0.1, "embedding_norm": True,
                     "token_types": 2, "head_transform": True, "head_bias": True}),
        (MLM, *_TEXT), _SOFTMAX,
        "reading both sides of a hidden token guesses it better than reading the left side alone",
        causal="an encoder: it reads both sides", streaming="an encoder reads the whole text",
        group="attention",
    ),
    Member(
        "vit", "Vision Transformer", "Dosovitskiy et al.", 2020, "2010.11929",
        _genes(position="learned", mixer=_BIASED,
              block={"norm_eps": 1e-6}, model={"pooling": "class"}),
        _IMAGE, _SOFTMAX,
        "on CIFAR-10 (JPEG) attention, gMLP and AFT-conv of equal size are comparable",
        causal="an encoder of image patches", streaming="an encoder reads the whole image",
        group="attention",
    ),
    Member(
        "sinusoidal", "Sinusoidal positions", "Vaswani et al.", 2017, "1706.03762",
        _genes(position="sinusoidal"), ALL_TASKS, _SOFTMAX,
        "PE[p+k] is PE[p] turned by a rotation that depends on k alone",
        gene="position", group="positions",
    ),
    Member(
        "learned", "Learned absolute positions", "Gehring et al.", 2017, "1705.03122",
        _genes(position="learned"), ALL_TASKS, _SOFTMAX,
        "as good as sinusoids inside the table, undefined beyond it",
        gene="position", group="positions",
    ),
    Member(
        "rope", "Rotary positions (RoFormer)", "Su et al.", 2021, "2104.09864",
        _genes(position="rope"), ALL_TASKS, _SOFTMAX,
        "scores depend on distances alone: shifting every position changes nothing",
        cross="rotations are defined between tokens of one sequence",
        gene="position", group="positions",
    ),
    Member(
        "alibi", "ALiBi: attention with linear biases", "Press et al.", 2022, "2108.12409",
        _genes(position="alibi"), ALL_TASKS, _SOFTMAX,
        "trained on short texts it reads long ones at no loss, where waves and rotations fail",
        cross=_NO_CROSS_DISTANCE,
        gene="position", group="positions",
    ),
    Member(
        "t5-relative", "T5's relative position biases", "Raffel et al.", 2020, "1910.10683",
        _genes(position="t5-relative"), ALL_TASKS,
        Cost(2, 1, "O(L^2 d) time, O(L d) memory and blocks of scores", "2 t d"),
        "learned biases of buckets of distances stand longer texts than those of the training",
        cross=_NO_CROSS_DISTANCE,
        gene="position", group="positions",
    ),
    Member(
        "shaw", "Relative position vectors", "Shaw et al.", 2018, "1803.02155",
        _genes(position="shaw"), ALL_TASKS,
        Cost(2, 1, "O(L^2 d) time, O(L d) memory and blocks of scores", "2 t d"),
        "the token n places back is found once vectors tell it from all others, and those of keys "
        "are enough",
        cross=_NO_CROSS_DISTANCE,
        gene="position", group="positions",
    ),
    Member(
        "xl-relative", "Transformer-XL's relative positions", "Dai et al.", 2019, "1901.02860",
        _genes(position="xl-relative"), ALL_TASKS,
        Cost(2, 1, "O(L^2 d) time, its scores twice; O(L d) memory and blocks of scores", "2 t d"),
        "order enters by two of its four terms: without them a trained model loses over half a bit "
        "a byte",
        cross=_NO_CROSS_DISTANCE,
        gene="position", group="positions",
    ),
    Member(
        "da-transformer", "Distance-aware Transformer", "Wu, Wu, Huang", 2021, "2010.06925",
        _genes(position="da-transformer"), ALL_TASKS,
        Cost(2, 1, "O(L^2 d) time, O(L d) memory and blocks of scores", "2 t d"),
        "heads part by the sign of alpha where near order and far matches both matter",
        cross=_NO_CROSS_DISTANCE,
        gene="position", group="positions",
    ),
    Member(
        "learned-per-layer", "Learned positions before every layer", "Al-Rfou et al.", 2018,
        "1808.04444",
        _genes(position="learned-per-layer", model={"layer_losses": True, "lookahead": 0.5}),
        ALL_TASKS, _SOFTMAX,
        "with losses of its inner layers a deep model of characters learns faster",
        gene="position", group="positions",
    ),
    Member(
        "transformer-xl", "Transformer-XL: a memory of segments", "Dai et al.", 2019, "1901.02860",
        _genes(position="xl-relative", memory="segment", wiring="post", block={"dropout": 0.1},
              model={"embedding_dropout": 0.1, "scale_embedding": True}),
        (LM,),
        Cost(2, 2, "O(L (L + M) d) time a segment of L with M remembered, L (L + M) flags",
             "2 M d, constant; M d in training", {"M": 128}),
        "the loss falls with a longer memory in evaluation than in training, and the first tokens "
        "of a segment lose no more than the others",
        bidirectional=_NO_PAST, cross=_NO_CROSS_DISTANCE,
        gene="memory", group="memory of the past",
    ),
    Member(
        "compressive", "Compressive Transformer", "Rae et al.", 2020, "1911.05507",
        _genes(position="xl-relative", memory="compressive",
              wiring="post", block={"dropout": 0.1},
              model={"embedding_dropout": 0.1, "scale_embedding": True}),
        (LM,),
        Cost(2, 1, "O(L (L + m + n) d) time a segment, m rows remembered and n compressed",
             "(m + n) d, constant", {"m": 128, "n": 128}),
        "recalls what lies further back than Transformer-XL with as many rows of memory reaches",
        bidirectional=_NO_PAST, cross=_NO_CROSS_DISTANCE,
        exempt={"streaming": "what is compressed when depends on where segments begin; equal "
                "segments give equal results, and at rate 1 any do"},
        gene="memory", group="memory of the past",
    ),
    Member(
        "gtrxl", "GTrXL: gated Transformer-XL", "Parisotto et al.", 2020, "1910.06764",
        _genes(position=Choice("xl-relative", {"start_std": 0.0}),
               memory=Choice("segment", {"same_length": "always"}),
               wiring="gated", feedforward="relu"),
        (LM,),
        Cost(2, 2, "O(L (L + M) d) time a segment of L with M remembered, 12 L d^2 for the gates",
             "2 M d, constant; M d in training", {"M": 128}),
        "at the start an output depends on its own token, no less than without gates and more "
        "than in post-norm layers",
        bidirectional=_NO_PAST, cross=_NO_CROSS_DISTANCE,
        gene="wiring", group="memory of the past",
    ),
    Member(
        "memorizing", "Memorizing Transformer: a layer that looks up", "Wu et al.", 2022,
        "2203.08913",
        _genes(position="t5-relative", memory="memorizing"), (LM,),
        Cost(2, 2, "O(L (L + n) d) time a segment with a window of n, O(L M d) to look M keys up; "
             "L (L + n) flags, blocks of products",
             "2 n d + 3 M d / N, constant: one of N layers stores M, half as many to spare",
             {"n": 128, "M": 8192}),
        "where definitions lie far back the loss falls with every growth of the store, and a model "
        "trained without one learns to use it in a few steps",
        bidirectional=_NO_PAST, cross=_NO_CROSS_DISTANCE,
        gene="memory", group="memory of the past",
    ),
    Member(
        "knn-lm", "kNN-LM: a store beside the model", "Khandelwal et al.", 2020, "1911.00172",
        _genes(retrieval="knn"), (LM,),
        Cost(2, 1, "O(L^2 d) time, O(n d) a token to search n keys exactly; O(L d) memory",
             "2 t d, and the store, n d on the disk"),
        "the loss falls with the size of the store alone, nothing is trained; the best lambda lies "
        "inside (0, 1) and is larger on another domain than on the model's own",
        bidirectional=_NO_PAST, cross=_NO_CROSS_DISTANCE,
        gene="retrieval", group="memory of the past",
    ),
    Member(
        "spalm", "SPALM: neighbours gated into the state", "Yogatama et al.", 2021, "2102.02557",
        _genes(position="xl-relative", memory="segment", retrieval="spalm", wiring="post",
              block={"dropout": 0.1}, model={"embedding_dropout": 0.1, "scale_embedding": True}),
        (LM,),
        Cost(2, 2, "O(L (L + M) d) time, O(k d) a token for k neighbours, and their search; blocks "
             "of scores", "2 M d, constant; M d in training; and the store, n d on the disk",
             {"M": 128}),
        "where rare facts come back it loses less than Transformer-XL, and its gate opens to "
        "neighbours on what they know",
        bidirectional=_NO_PAST, cross=_NO_CROSS_DISTANCE,
        gene="retrieval", group="memory of the past",
    ),
    Member(
        "universal", "Universal Transformer: one layer until every token halts", "Dehghani et al.",
        2018, "1807.03819",
        _genes(position=None, depth=Choice("universal", {"steps": 12}),
              wiring="post",
              feedforward="relu", block={"norm_eps": 1e-6, "dropout": 0.1},
              model={"layers": 1, "embedding_dropout": 0.1, "scale_embedding": True},
              tasks={SEQ2SEQ: {"label_smoothing": 0.1, "smoothing_over": "others"}}),
        (LM, MLM, *_TEXT, *_SERIES, *_IMAGE, SEQ2SEQ),
        Cost(2, 1, "O(N L^2 d) time, O(N L d) memory when fused; N steps of a token on average",
             "2 T t d; T steps at most", {"T": 12}),
        "tokens that need more hops along a chain of pointers take more steps, and all take fewer "
        "as steps cost more",
        gene="depth", group="depth",
    ),
    Member(
        "depth-adaptive", "Depth-Adaptive Transformer: exits that are learned", "Elbayad et al.",
        2019, "1910.10073",
        _genes(depth="depth-adaptive", wiring="post",
              feedforward="relu", block={"dropout": 0.1},
              model={"embedding_dropout": 0.1},
              tasks={SEQ2SEQ: {"label_smoothing": 0.1}}),
        (LM, SEQ2SEQ),
        Cost(2, 1, "O(L^2 d) time, O(L d) memory when fused; of a token that left a layer makes "
             "keys and values alone", "2 t d"),
        "where easy and hard tokens are mixed, the easy ones leave earlier, and at equal depth on "
        "average more are right than where all leave at one layer",
        gene="depth", group="depth",
    ),
    Member(
        "calm", "CALM: exits by confidence, with a guarantee", "Schuster et al.", 2022,
        "2207.07061",
        _genes(position="t5-relative", depth="calm",
              feedforward=Choice("geglu", {"feedforward_bias": False}),
              block={"norm": "rmsnorm", "norm_eps": 1e-6, "dropout": 0.1},
              model={"embedding_dropout": 0.1}),
        (LM, SEQ2SEQ),
        Cost(2, 1, "O(L^2 d) time, O(L d) memory and blocks of scores; of a token that left a "
             "layer makes keys and values alone", "2 t d"),
        "most tokens leave early with what the last layer would have said, and a calibrated "
        "threshold keeps its promise on fresh texts",
        cross=_NO_CROSS_DISTANCE, group="depth",
        gene="depth",
    ),
    Member(
        "adaptive-span", "Adaptive attention span", "Sukhbaatar et al.", 2019, "1905.07799",
        _genes(mixer="adaptive-span", position=None, wiring="post", feedforward="relu"),
        ALL_TASKS,
        Cost(1, 1, "O(L (R + z) d) time, O(L d) memory; z the learned spans, R their ramp",
             "2 (R + z) d, constant", {"R": 32, "z": 0}),
        "one head finds out that something far back comes again and looks that far, while the mean "
        "span stays small",
        cross=_NO_CROSS_DISTANCE,
        group="sparse patterns",
    ),
    Member(
        "aft-full", "Attention-free Transformer, full", "Zhai et al.", 2021, "2105.14103",
        _genes(mixer="aft-full"), ALL_TASKS,
        Cost(2, 2, "O(L^2 d) time, O(L d) memory and exp(w), kept up to 64 MB", "2 t d"),
        "a learned position bias addresses tokens that AFT-simple cannot",
        cross=_NO_CROSS_AFT,
        exempt={"traffic": "every channel has weights of its own, which a step makes of all keys: "
                "it moves four times what is held, and the factor of w"},
        group="attention-free",
    ),
    Member(
        "aft-local", "Attention-free Transformer, local", "Zhai et al.", 2021, "2105.14103",
        _genes(mixer="aft-local"), ALL_TASKS,
        Cost(1, 1, "O(L s d) time, O(L d) memory", "2 s d, constant", {"s": 32}),
        "a local position bias addresses tokens that AFT-simple cannot, at linear cost",
        cross=_NO_CROSS_AFT,
        group="attention-free",
    ),
    Member(
        "aft-simple", "Attention-free Transformer, simple", "Zhai et al.", 2021, "2105.14103",
        _genes(mixer="aft-simple"), ALL_TASKS,
        Cost(1, 1, "O(L d) time and memory", "2 d, constant"),
        "global pooling: cheapest of all, and blind to where a token stands",
        cross=_NO_CROSS_AFT,
        group="attention-free",
    ),
    Member(
        "aft-conv", "Attention-free Transformer, convolutional", "Zhai et al.", 2021, "2105.14103",
        _genes(mixer="aft-conv"), ALL_TASKS,
        Cost(1, 1, "O(L s d) time, O(L d) memory", "s (d + h), constant", {"s": 11}),
        "one shared kernel a head keeps the local bias at any length",
        cross=_NO_CROSS_AFT,
        group="attention-free",
    ),
    Member(
        "linear", "Linear attention", "Katharopoulos et al.", 2020, "2006.16236",
        _genes(mixer="linear"), ALL_TASKS, Cost(1, 1, *_KERNEL, {"M": "d / h"}),
        "copies a sequence that it has read into a state of constant size, at a cost for each "
        "token that does not grow with what was read",
        group="low rank and kernels",
    ),
    Member(
        "performer", "Performer: softmax attention by FAVOR+", "Choromanski et al.", 2021,
        "2009.14794", _genes(mixer="performer"), ALL_TASKS,
        Cost(1, 1, *_KERNEL, {"M": "d / h log(d / h)"}),
        "positive features estimate softmax attention better than trigonometric ones, orthogonal "
        "rows better than independent ones where norms are small, with an error like 1/M",
        group="low rank and kernels",
    ),
    Member(
        "rfa", "Random feature attention", "Peng et al.", 2021, "2103.02143",
        _genes(mixer="rfa"), ALL_TASKS,
        Cost(1, 1, *_KERNEL, {"M": 128}),
        "a language model with the gate needs fewer bits than without it and than linear attention "
        "with elu features; a token costs the same after any number of tokens",
        group="low rank and kernels",
    ),
    Member(
        "routing", "Routing Transformer", "Roy et al.", 2020, "2003.05997",
        _genes(mixer="routing"), (LM, MLM, *_TEXT, *_SERIES, *_IMAGE, PIXELS, ENLARGE, DECISION),
        Cost(1.5, 1.5, "O(L K d + L w d) time and memory, K clusters of w: O(L^1.5 d)",
             "K w d + w d; half of the heads local, K w is L unless it is said",
             {"K": "sqrt(L)", "w": "sqrt(L)"}),
        "finds what lies outside the windows of local heads, at O(L^1.5) operations",
        cross="a token's clusters are chosen among all queries, which a writing decoder has not",
        group="content-based",
    ),
    Member(
        "sinkhorn", "Sparse Sinkhorn attention", "Tay et al.", 2020, "2002.11296",
        _genes(mixer="sinkhorn"), ALL_TASKS,
        Cost(2, 1, "O(L s d + L^2 d / s) time, O(L (s h + d) + (L / s)^2 h) memory; blocks of s",
             "2 (t + s) d + n t h / s, n steps of balancing", {"n": 1, "s": 64}),
        "copies from a far block, where local attention of the same cost cannot; its sort matrices "
        "sharpen",
        cross="blocks of one sequence are sorted for blocks of the same",
        group="content-based",
    ),
    Member(
        "image-transformer", "Image Transformer", "Parmar et al.", 2018, "1802.05751",
        _genes(mixer="image-transformer",
              wiring="post", feedforward="relu", block={"dropout": 0.1},
              model={"pixels": {"tables": "channel", "places": "sinusoids"}, "head_bias": True,
                     "scale_embedding": True},
              tasks={PIXELS: {"position": None}, ENLARGE: {"position": None}}),
        (LM, MLM, *_TEXT, *_SERIES, *_IMAGE, PIXELS, ENLARGE, DECISION),
        Cost(1, 1, "O(L (q + m) d) time, O(L d) memory; blocks of q with a memory of m",
             "2 (q + m) d, constant; 2-D: of q_h + m_h rows", {"q": 256, "m": 256}),
        "the more pixels a block remembers, the fewer bits a dimension; of equal memory, "
        "rectangles beat stretches of the raster where pictures have vertical structure",
        cross="blocks are of one picture; in super-resolution plain attention reads the small one",
        group="sparse patterns",
    ),
    Member(
        "sparse-transformer", "Sparse Transformer", "Child, Gray, Radford, Sutskever", 2019,
        "1904.10509",
        _genes(mixer="sparse-transformer", position=Choice("axial", {"combine": "sum"}),
              feedforward=Choice("gelu-sigmoid", _UNDROPPED),
              block={"final_norm_eps": 1e-6},
              model={"tie": False},
              tasks={PIXELS: {"position": None}}),
        (LM, MLM, *_TEXT, *_SERIES, *_IMAGE, PIXELS, DECISION),
        Cost(1.5, 1, "O(L s d + L^2 d / s) time, O(L^1.5 d) with s = sqrt(L); O(L d) memory",
             "2 t d; fixed: 2 (s + t c / s) d, c summary columns"),
        "strided sets beat fixed ones on images, fixed ones beat strided ones on text",
        cross="the sets are of places in one sequence",
        group="sparse patterns",
    ),
    Member(
        "longformer", "Longformer", "Beltagy, Peters, Cohan", 2020, "2004.05150",
        _genes(mixer="longformer"), (LM, MLM, *_TEXT, *_SERIES, SEQ2SEQ, DECISION),
        Cost(1, 1, "O(L (w + g) d) time and O(L d) memory; window w, g global tokens",
             "2 (w + g) d, constant; global tokens in a causal one are this library's extension",
             {"w": 256, "g": 0}),
        "windows that grow from layer to layer model text better than windows of one size or that "
        "shrink; a position table that is repeated begins far better than one with fresh rows",
        cross="a window is of one sequence",
        group="sparse patterns",
    ),
    Member(
        "bigbird", "BigBird", "Zaheer et al.", 2020, "2007.14062",
        _genes(mixer="bigbird"), (LM, MLM, *_TEXT, *_SERIES, SEQ2SEQ, DECISION),
        Cost(1, 1, "O(L (w + r + g) s d) time, O(L (r s + d)) memory; w, r and g blocks of s "
             "tokens in the window, at random and for all",
             "2 n s d, n blocks that a later one may read, any of L / s; the causal form is this "
             "library's extension", {"s": 64, "n": "L / s"}),
        "a needle anywhere in a text is found through random and global blocks, and not through a "
        "window of as many keys; paths between blocks are that much shorter",
        cross="blocks of one sequence read blocks of the same",
        exempt={"traffic": f"{_BY_CHOICE}, of random blocks"},
        group="sparse patterns",
    ),
    Member(
        "etc", "Extended Transformer Construction", "Ainslie et al.", 2020, "2004.08483",
        _genes(mixer="etc", position=None, wiring="post",
              model={"summaries": {"per": "tokens"}}), (MLM, *_TEXT),
        Cost(1, 1, "O(L (r + g) d) time, O(L (r + g)) memory; radius r, g global tokens",
             "none: it reads both sides"),
        "global tokens carry what lies beyond the radius: a task of two levels is solved with them "
        "and not without",
        causal="global tokens, which all read, would show later text to earlier",
        cross="it reads one text, and tokens that stand for its sentences",
        streaming="an encoder reads the whole text",
        group="sparse patterns",
    ),
    Member(
        "blockwise", "Blockwise self-attention (BlockBERT)", "Qiu et al.", 2019, "1911.02972",
        _genes(mixer="blockwise"), (LM, MLM, *_TEXT, *_SERIES, *_IMAGE, PIXELS, DECISION),
        Cost(2, 1, "O(L^2 d / n) time, O(L d) memory; n blocks",
             "2 (s + 1) d L / n; shifts to s", {"s": 1, "n": 2}),
        "scores fall to 1 / n of attention's; heads that read other blocks copy across them, which "
        "local heads alone cannot",
        cross="blocks of one sequence read blocks of the same",
        group="sparse patterns",
    ),
    Member(
        "linformer", "Linformer", "Wang et al.", 2020, "2006.04768",
        _genes(mixer="linformer"), (MLM, *_TEXT, *_SERIES, *_IMAGE),
        Cost(1, 1, "O(L k d) time, O(L (k + d)) memory; k slots", "none: it reads both sides"),
        "time grows like L; attention matrices of a trained model have low rank, and the loss of a "
        "masked language model nears that of full attention as k grows",
        causal="the paper has no causal form, since every slot mixes all positions; "
               "'linformer-chunked' is an extension that has one",
        streaming="an encoder reads the whole text",
        group="low rank and kernels",
    ),
    Member(
        "linformer-chunked", "Linformer in causal segments (our extension)", "Wang et al.", 2020,
        "2006.04768", _genes(mixer=Choice("linformer", {"causal_chunk": 64})),
        (LM, *_TEXT, *_SERIES, PIXELS, ENLARGE, DECISION),
        Cost(2, 1, "O(L (c + L k / c) d) time; segments of c tokens, k slots each",
             "d (2 t k / c + 3 c)", {"k": 16, "c": 64}),
        "an extension of ours: exactly causal, with slots for segments that are complete",
        bidirectional="segments are for the causal form: use 'linformer'",
        cross="a text that is cut into segments reads no other",
        group="low rank and kernels",
    ),
    Member(
        "gmlp", "gMLP: MLPs with a spatial gating unit", "Liu, Dai, So, Le", 2021, "2105.08050",
        _genes(mixer="gmlp", position=None), ALL_TASKS,
        Cost(2, 2, "O(L^2 f) time, O(L f + L^2) memory; f hidden channels", "t f / 2",
             {"f": "4 d"}, "L L"),
        "the learned spatial matrix becomes Toeplitz on a shift-invariant task (R^2 > 0.85)",
        cross=_NO_CROSS_SGU,
        group="attention-free",
    ),
    Member(
        "amlp", "aMLP: gMLP with a tiny attention", "Liu, Dai, So, Le", 2021, "2105.08050",
        _genes(mixer="amlp", position=None), ALL_TASKS,
        Cost(2, 2, "O(L^2 (f + a)) time; a channels of the tiny attention", "t (f / 2 + 2 a)",
             {"f": "4 d", "a": 64}, "L L"),
        "one small head makes up for what a static matrix cannot align",
        cross=_NO_CROSS_SGU,
        group="attention-free",
    ),
    Member(
        "axial", "Axial positions", "Kitaev et al.", 2020, "2001.04451",
        _genes(position="axial"), ALL_TASKS, _SOFTMAX,
        "two short tables serve as well as one with a row for every position",
        gene="position", group="positions",
    ),
    Member(
        "reformer", "Reformer: attention among tokens of like hash", "Kitaev et al.", 2020,
        "2001.04451",
        _genes(mixer="reformer", position="axial",
              wiring="reversible", feedforward="relu",
              model={"tie": False, "scale_embedding": True}),
        (LM, MLM, *_TEXT, *_SERIES, *_IMAGE, PIXELS, ENLARGE, DECISION),
        Cost(1, 1, "O(n L C d) time and, n rounds of chunks of C, O(n L d) memory; reversible: at "
             "any depth", "2 t d + n h t, the last of them buckets", {"n": 4}),
        "more rounds of hashing come nearer to dense attention; depth costs no activations",
        cross="queries are keys too, so both come from one sequence",
        streaming=f"not exactly: {_MOVING_CHUNKS}; a state gives new tokens what a pass over those "
        "so far gives the last of them (decode='exact'), or nearly that (decode='bucket')",
        exempt={
            "causality": _MOVING_CHUNKS + "; its first half, no gradient to the future, is tested",
            "numbers": "a bucket is an argmax, which rounding turns: low precision sees other keys",
        },
        group="content-based",
    ),
    Member(
        "decision-transformer", "Decision Transformer", "Chen et al.", 2021, "2106.01345",
        _genes(**_ACTING), (DECISION,), _SOFTMAX,
        "asked for a high return it joins pieces of poor walks into shorter paths than the data "
        "hold, which a copy of those walks does not",
        bidirectional=_FROM_THE_PAST,
        cross=_ONE_EPISODE,
        group="reinforcement learning",
    ),
)  # fmt: skip

_CLONING = {**_ACTING, "model": {**_ACTING["model"], "decision": {"body": "mlp"}}}
_NETWORK = Cost(1, 1, "O(L K n d) time, K states of n numbers side by side", "K n")
BASELINES: tuple[Member, ...] = (
    Member(
        "bc", "Behaviour cloning (baseline)", "as in Chen et al.", 2021, "2106.01345",
        _genes(**_CLONING), (DECISION,), _NETWORK,
        "a plain network that does what the data did in the last states",
        bidirectional=_FROM_THE_PAST, cross=_ONE_EPISODE, streaming=_WINDOW,
        group="reinforcement learning",
    ),
    Member(
        "percent-bc", "Behaviour cloning of the best tenth (baseline)", "as in Chen et al.", 2021,
        "2106.01345", _genes(**_CLONING, data={"best": 0.1}), (DECISION,), _NETWORK,
        "the same of the episodes with the highest returns, up to a tenth of all steps",
        bidirectional=_FROM_THE_PAST, cross=_ONE_EPISODE, streaming=_WINDOW,
        group="reinforcement learning",
    ),
    Member(
        "no-return", "Decision Transformer without returns (baseline)", "as in Chen et al.", 2021,
        "2106.01345",
        _genes(**{**_ACTING, "model": {**_ACTING["model"], "decision": {"return_to_go": False}}}),
        (DECISION,), _SOFTMAX,
        "the same layers, to which no return is told: what they are asked for cannot matter",
        bidirectional=_FROM_THE_PAST, cross=_ONE_EPISODE,
        group="reinforcement learning",
    ),
)  # fmt: skip
