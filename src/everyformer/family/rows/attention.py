"""Attention, positions, memories of the past, depths."""

from everyformer.core.config import Choice
from everyformer.core.member import Cost, Member
from everyformer.core.tasks import (
    ALL_TASKS,
    LM,
    MLM,
    SEQ2SEQ,
)  # fmt: skip
from everyformer.family.rows.terms import (
    BIASED,
    IMAGES,
    NO_CROSS_DISTANCE,
    NO_PAST,
    SERIES_TASKS,
    SOFTMAX,
    TEXTS,
    UNDROPPED,
    genes,
)

ROWS: tuple[Member, ...] = (
    Member(
        "attention", "Multi-head softmax attention", "Vaswani et al.", 2017, "1706.03762",
        genes(), ALL_TASKS, SOFTMAX,
        "without the factor 1/sqrt(D) softmax saturates as D grows, with it entropy and gradients "
        "stay flat; and attention solves associative recall where an LSTM of equal size fails",
        group="attention",
    ),
    Member(
        "gpt", "GPT-2: decoder-only language model", "Radford et al.", 2019, None,
        genes(position="learned", mixer=BIASED,
              feedforward=Choice("gelu-tanh", UNDROPPED), block={"dropout": 0.1},
              model={"init": "gpt2", "embedding_dropout": 0.1}),
        (LM,), SOFTMAX,
        "bytes of real text: bits per byte clearly under a 5-gram baseline",
        bidirectional="decoder-only by definition: use 'attention' without causal masking",
        group="attention",
    ),
    Member(
        "transformer", "The Transformer: encoder-decoder", "Vaswani et al.", 2017, "1706.03762",
        genes(residual="post", feedforward=Choice("relu", UNDROPPED),
              block={"norm_eps": 1e-6, "dropout": 0.1},
              model={"embedding_dropout": 0.1, "label_smoothing": 0.1, "smoothing_over": "others"}),
        (SEQ2SEQ,), SOFTMAX,
        "copies, reverses and sorts sequences of 10 to 20 symbols exactly; post-norm, as "
        "published, it needs a warm-up, where pre-norm does not",
        group="attention",
    ),
    Member(
        "bert", "BERT: masked language model", "Devlin et al.", 2018, "1810.04805",
        genes(position="learned", mixer=BIASED, residual="post",
              feedforward=Choice("gelu", UNDROPPED), block={"norm_eps": 1e-12, "dropout": 0.1},
              model={"init": "bert", "embedding_dropout": 0.1, "embedding_norm": True,
                     "token_types": 2, "head_transform": True, "head_bias": True}),
        (MLM, *TEXTS), SOFTMAX,
        "reading both sides of a hidden token guesses it better than reading the left side alone",
        causal="an encoder: it reads both sides", streaming="an encoder reads the whole text",
        group="attention",
    ),
    Member(
        "vit", "Vision Transformer", "Dosovitskiy et al.", 2020, "2010.11929",
        genes(position="learned", mixer=BIASED,
              block={"norm_eps": 1e-6}, model={"pooling": "class"}),
        IMAGES, SOFTMAX,
        "on CIFAR-10 (JPEG) attention, gMLP and AFT-conv of equal size are comparable",
        causal="an encoder of image patches", streaming="an encoder reads the whole image",
        group="attention",
    ),
    Member(
        "sinusoidal", "Sinusoidal positions", "Vaswani et al.", 2017, "1706.03762",
        genes(position="sinusoidal"), ALL_TASKS, SOFTMAX,
        "PE[p+k] is PE[p] turned by a rotation that depends on k alone",
        gene="position", group="positions",
    ),
    Member(
        "learned", "Learned absolute positions", "Gehring et al.", 2017, "1705.03122",
        genes(position="learned"), ALL_TASKS, SOFTMAX,
        "as good as sinusoids inside the table, undefined beyond it",
        gene="position", group="positions",
    ),
    Member(
        "rope", "Rotary positions (RoFormer)", "Su et al.", 2021, "2104.09864",
        genes(position="rope"), ALL_TASKS, SOFTMAX,
        "scores depend on distances alone: shifting every position changes nothing",
        cross="rotations are defined between tokens of one sequence",
        gene="position", group="positions",
    ),
    Member(
        "alibi", "ALiBi: attention with linear biases", "Press et al.", 2022, "2108.12409",
        genes(position="alibi"), ALL_TASKS, SOFTMAX,
        "trained on short texts it reads long ones at no loss, where waves and rotations fail",
        cross=NO_CROSS_DISTANCE,
        gene="position", group="positions",
    ),
    Member(
        "t5-relative", "T5's relative position biases", "Raffel et al.", 2020, "1910.10683",
        genes(position="t5-relative"), ALL_TASKS,
        Cost(2, 1, "O(L^2 d) time, O(L d) memory and blocks of scores", "2 t d"),
        "learned biases of buckets of distances stand longer texts than those of the training",
        cross=NO_CROSS_DISTANCE,
        gene="position", group="positions",
    ),
    Member(
        "shaw", "Relative position vectors", "Shaw et al.", 2018, "1803.02155",
        genes(position="shaw"), ALL_TASKS,
        Cost(2, 1, "O(L^2 d) time, O(L d) memory and blocks of scores", "2 t d"),
        "the token n places back is found once vectors tell it from all others, and those of keys "
        "are enough",
        cross=NO_CROSS_DISTANCE,
        gene="position", group="positions",
    ),
    Member(
        "xl-relative", "Transformer-XL's relative positions", "Dai et al.", 2019, "1901.02860",
        genes(position="xl-relative"), ALL_TASKS,
        Cost(2, 1, "O(L^2 d) time, its scores twice; O(L d) memory and blocks of scores", "2 t d"),
        "order enters by two of its four terms: without them a trained model loses over half a bit "
        "a byte",
        cross=NO_CROSS_DISTANCE,
        gene="position", group="positions",
    ),
    Member(
        "da-transformer", "Distance-aware Transformer", "Wu, Wu, Huang", 2021, "2010.06925",
        genes(position="da-transformer"), ALL_TASKS,
        Cost(2, 1, "O(L^2 d) time, O(L d) memory and blocks of scores", "2 t d"),
        "heads part by the sign of alpha where near order and far matches both matter",
        cross=NO_CROSS_DISTANCE,
        gene="position", group="positions",
    ),
    Member(
        "learned-per-layer", "Learned positions before every layer", "Al-Rfou et al.", 2018,
        "1808.04444",
        genes(position="learned-per-layer", model={"layer_losses": True, "lookahead": 0.5}),
        ALL_TASKS, SOFTMAX,
        "with losses of its inner layers a deep model of characters learns faster",
        gene="position", group="positions",
    ),
    Member(
        "transformer-xl", "Transformer-XL: a memory of segments", "Dai et al.", 2019, "1901.02860",
        genes(position="xl-relative", memory="segment", residual="post", block={"dropout": 0.1},
              model={"embedding_dropout": 0.1, "scale_embedding": True}),
        (LM,),
        Cost(2, 2, "O(L (L + M) d) time a segment of L with M remembered, L (L + M) flags",
             "2 M d, constant; M d in training", {"M": 128}),
        "the loss falls with a longer memory in evaluation than in training, and the first tokens "
        "of a segment lose no more than the others",
        bidirectional=NO_PAST, cross=NO_CROSS_DISTANCE,
        gene="memory", group="memory of the past",
    ),
    Member(
        "compressive", "Compressive Transformer", "Rae et al.", 2020, "1911.05507",
        genes(position="xl-relative", memory="compressive",
              residual="post", block={"dropout": 0.1},
              model={"embedding_dropout": 0.1, "scale_embedding": True}),
        (LM,),
        Cost(2, 1, "O(L (L + m + n) d) time a segment, m rows remembered and n compressed",
             "(m + n) d, constant", {"m": 128, "n": 128}),
        "recalls what lies further back than Transformer-XL with as many rows of memory reaches",
        bidirectional=NO_PAST, cross=NO_CROSS_DISTANCE,
        exempt={"streaming": "what is compressed when depends on where segments begin; equal "
                "segments give equal results, and at rate 1 any do"},
        gene="memory", group="memory of the past",
    ),
    Member(
        "gtrxl", "GTrXL: gated Transformer-XL", "Parisotto et al.", 2020, "1910.06764",
        genes(position=Choice("xl-relative", {"start_std": 0.0}),
               memory=Choice("segment", {"same_length": "always"}),
               residual="gated", feedforward="relu"),
        (LM,),
        Cost(2, 2, "O(L (L + M) d) time a segment of L with M remembered, 12 L d^2 for the gates",
             "2 M d, constant; M d in training", {"M": 128}),
        "at the start an output depends on its own token, no less than without gates and more "
        "than in post-norm layers",
        bidirectional=NO_PAST, cross=NO_CROSS_DISTANCE,
        gene="residual", group="memory of the past",
    ),
    Member(
        "memorizing", "Memorizing Transformer: a layer that looks up", "Wu et al.", 2022,
        "2203.08913",
        genes(position="t5-relative", memory="memorizing"), (LM,),
        Cost(2, 2, "O(L (L + n) d) time a segment with a window of n, O(L M d) to look M keys up; "
             "L (L + n) flags, blocks of products",
             "2 n d + 3 M d / N, constant: one of N layers stores M, half as many to spare",
             {"n": 128, "M": 8192}),
        "where definitions lie far back the loss falls with every growth of the store, and a model "
        "trained without one learns to use it in a few steps",
        bidirectional=NO_PAST, cross=NO_CROSS_DISTANCE,
        gene="memory", group="memory of the past",
    ),
    Member(
        "knn-lm", "kNN-LM: a store beside the model", "Khandelwal et al.", 2020, "1911.00172",
        genes(retrieval="knn"), (LM,),
        Cost(2, 1, "O(L^2 d) time, O(n d) a token to search n keys exactly; O(L d) memory",
             "2 t d, and the store, n d on the disk"),
        "the loss falls with the size of the store alone, nothing is trained; the best lambda lies "
        "inside (0, 1) and is larger on another domain than on the model's own",
        bidirectional=NO_PAST, cross=NO_CROSS_DISTANCE,
        gene="retrieval", group="memory of the past",
    ),
    Member(
        "spalm", "SPALM: neighbours gated into the state", "Yogatama et al.", 2021, "2102.02557",
        genes(position="xl-relative", memory="segment", retrieval="spalm", residual="post",
              block={"dropout": 0.1}, model={"embedding_dropout": 0.1, "scale_embedding": True}),
        (LM,),
        Cost(2, 2, "O(L (L + M) d) time, O(k d) a token for k neighbours, and their search; blocks "
             "of scores", "2 M d, constant; M d in training; and the store, n d on the disk",
             {"M": 128}),
        "where rare facts come back it loses less than Transformer-XL, and its gate opens to "
        "neighbours on what they know",
        bidirectional=NO_PAST, cross=NO_CROSS_DISTANCE,
        gene="retrieval", group="memory of the past",
    ),
    Member(
        "universal", "Universal Transformer: one layer until every token halts", "Dehghani et al.",
        2018, "1807.03819",
        genes(position=None, depth=Choice("universal", {"steps": 12}),
              residual="post",
              feedforward="relu", block={"norm_eps": 1e-6, "dropout": 0.1},
              model={"layers": 1, "embedding_dropout": 0.1, "scale_embedding": True},
              tasks={SEQ2SEQ: {"label_smoothing": 0.1, "smoothing_over": "others"}}),
        (LM, MLM, *TEXTS, *SERIES_TASKS, *IMAGES, SEQ2SEQ),
        Cost(2, 1, "O(N L^2 d) time, O(N L d) memory when fused; N steps of a token on average",
             "2 T t d; T steps at most", {"T": 12}),
        "tokens that need more hops along a chain of pointers take more steps, and all take fewer "
        "as steps cost more",
        gene="depth", group="depth",
    ),
    Member(
        "depth-adaptive", "Depth-Adaptive Transformer: exits that are learned", "Elbayad et al.",
        2019, "1910.10073",
        genes(depth="depth-adaptive", residual="post",
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
        genes(position="t5-relative", depth="calm",
              feedforward=Choice("geglu", {"feedforward_bias": False}),
              block={"norm": "rmsnorm", "norm_eps": 1e-6, "dropout": 0.1},
              model={"embedding_dropout": 0.1}),
        (LM, SEQ2SEQ),
        Cost(2, 1, "O(L^2 d) time, O(L d) memory and blocks of scores; of a token that left a "
             "layer makes keys and values alone", "2 t d"),
        "most tokens leave early with what the last layer would have said, and a calibrated "
        "threshold keeps its promise on fresh texts",
        cross=NO_CROSS_DISTANCE, group="depth",
        gene="depth",
    ),
)  # fmt: skip
