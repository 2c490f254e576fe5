"""`ModelConfig`: the complete description of a model, as plain data."""

import dataclasses
import math
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal, Self

from everyformer.blocks.options import BlockOptions
from everyformer.core.bounds import (
    Affects,
    Amount,
    Count,
    Dropout,
    Layers,
    Positive,
    Real,
    Share,
    Whole,
)  # fmt: skip
from everyformer.core.config import Choice, Options, from_dict, to_dict
from everyformer.core.tasks import TASKS, Task
from everyformer.genes.model_options import (
    STEPS,
    DecisionOptions,
    EpisodeShape,
    PixelOptions,
    SummaryOptions,
)  # fmt: skip

EMBEDDING_STD = 0.02
"""of token embeddings at the start, where they are not scaled"""
DEFAULT_LENGTH = 1024
"""longest text of a model by default"""
USUAL_SIDE = 4
"""of patches, where it divides the picture"""

DEEP_TABLE = 0.01
"""of the same with init=sparse-transformer (see `everyformer.models.base`)"""


def _usual_genes() -> dict[str, Choice]:
    # late: genes read a model's description
    from everyformer.genes import plain_genes

    return plain_genes()


@dataclass(frozen=True)
class Architecture(Options):
    """Options of a model, whatever the data."""

    gone: ClassVar[dict[str, Any]] = {
        "horizon": 1,
        "quantiles": [0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99],
        "policy": {
            "horizon": 128, "segment": 32, "epochs": 4, "gamma": 0.99, "gae_lambda": 0.95,
            "clip": 0.2, "value_weight": 0.5, "value_clip": None, "entropy": 0.001,
            "recompute_memory": False,
        },
    }  # fmt: skip

    width: Count = 128
    """channels of the residual stream"""
    layers: Layers = 4
    """number of blocks"""
    heads: Count = 4
    """heads of each mixer that has heads"""
    max_length: Count | None = None
    """longest sequence of text; only tables over positions cost anything for it (default: 1024,
    in a run what the data needs)"""
    patch: Count | None = None
    """side of the square patches that an image is cut into (classify-image, regress-image; default:
    4, or the largest number below that divides its sides)"""
    pooling: Literal["mean", "class", "first", "last", "globals"] = "mean"
    """what a classifier reads: mean of real tokens, a class token of its own, the first or last
    real token (first: BERT's, whose texts begin with one for that), or the mean of the global
    tokens that summaries give"""
    head_hidden: Count | None = None
    """hidden channels of a two-layer classification head (default: one linear layer)"""
    head_activation: Literal["gelu", "gelu-tanh", "tanh", "relu", "silu"] = "gelu"
    """between its two layers (tanh with as many channels as width: BERT's pooler)"""
    block: BlockOptions = field(default_factory=BlockOptions)
    """norms and dropout of the layers"""
    causal: bool | None = None
    """whether tokens see the past only (default: by task and member)"""
    tie: bool = True
    """whether the output layer shares the token embedding's matrix"""
    init: Annotated[
        Literal["member", "bert", "gpt2", "sparse-transformer", "image-transformer"],
        Affects("nothing"),
    ] = "member"
    """linear layers and tables at the start: their own rule; N(0, 0.02^2); that with residual
    outputs divided by sqrt(2 layers); N(0, 0.125 / inputs), those outputs smaller, small tables and
    an output layer of 0; or even ones of variance 0.04 / inputs, and biases of 0 (tensor2tensor's
    image models)"""
    embedding_dropout: Dropout = 0.0
    """dropout on the sum of embeddings and positions"""
    scale_embedding: bool | None = None
    """token embeddings times sqrt(width) (default: with sinusoidal positions, as in 2017, and
    wherever one stack reads text with init=member: before layers of usual size small embeddings
    learn late)"""
    embedding_norm: bool = False
    """a norm over the sum of embeddings and positions (BERT)"""
    token_types: Whole = 0
    """kinds of segments that have vectors of their own (BERT: 2; 0: none)"""
    head_transform: bool = False
    """a linear layer, an activation and a norm before the output layer (mlm)"""
    transform_activation: Literal["gelu", "gelu-tanh", "gelu-sigmoid", "relu", "silu"] = "gelu"
    """between that layer and its norm"""
    head_bias: bool = False
    """a learned bias for each token, or intensity, in the output layer"""
    label_smoothing: Annotated[Share, Affects("nothing")] = 0.0
    """part of the target that is spread evenly over classes or tokens"""
    smoothing_over: Annotated[Literal["all", "others"], Affects("nothing")] = "all"
    """over all classes (torch) or over all but the true one (tensor2tensor)"""
    loss_chunk: Annotated[Count | None, Affects("speed")] = None
    """tokens whose logits are made at a time in training, and again in its backward pass: only the
    loss comes out, with logits of no token (default: all)"""
    layer_losses: Annotated[bool, Affects("nothing")] = False
    """while training, inner layers predict the targets too, layer l of N until l / 2N of it is over
    (lm)"""
    lookahead: Amount = 0.0
    """weight of a second output layer that predicts the token after the next, while training (lm;
    Al-Rfou et al. 2018: 0.5; 0: there is none)"""
    decoder_layers: Layers | None = None
    """blocks of the decoder (seq2seq, super-resolution; default: as many as the encoder has)"""
    pixels: PixelOptions = field(default_factory=PixelOptions)
    """how pictures are drawn (pixels, super-resolution)"""
    summaries: SummaryOptions = field(default_factory=SummaryOptions)
    """global tokens that stand for parts of a text (mlm, classify-text, regress-text)"""
    decision: DecisionOptions = field(default_factory=DecisionOptions)
    """how episodes are read, and actions chosen (decision)"""


@dataclass(frozen=True)
class ModelConfig(Architecture):
    """A member with every choice made; `build_model` makes the module of it."""

    choices_in: ClassVar[str | None] = "genes"

    member: Annotated[str, Affects("nothing")] = "attention"
    """name in the family table that this started from"""
    outside: Annotated[str | None, Affects("nothing")] = None
    """a third-party model that this is, as file.py:factory, module:factory or hf:NAME
    (default: a member of the family)"""
    task: str = "lm"
    """what goes in and what comes out"""
    vocabulary: Count = 256
    """number of tokens (lm, mlm, classify-text, regress-text, seq2seq)"""
    source_vocabulary: Count | None = None
    """number of source tokens, where they have embeddings of their own (seq2seq)"""
    start_token: Whole = 0
    """what a target begins with (seq2seq)"""
    end_token: Whole = 0
    """what a target ends with (seq2seq)"""
    classes: Count = 2
    """number of classes (classify-text, classify-image, classify-series)"""
    target_mean: tuple[Real, ...] = (0.0,)
    """mean of each number that is predicted, over the training data; as many as there are numbers
    (regress-text, regress-image, regress-series)"""
    target_std: tuple[Positive, ...] = (1.0,)
    """standard deviations of the same"""
    series: Count | None = None
    """numbers at each step (classify-series, regress-series)"""
    series_mean: tuple[Real, ...] = ()
    """mean of each of them over the training data (default: 0)"""
    series_std: tuple[Positive, ...] = ()
    """standard deviations of the same (default: 1)"""
    image: tuple[Count, Count, Count] | None = None
    """channels, height and width of the images (classify-image, regress-image, pixels,
    super-resolution)"""
    source_image: tuple[Count, Count, Count] | None = None
    """the same of the small images that are enlarged (super-resolution)"""
    class_names: tuple[str, ...] = ()
    """classes that a class-conditional model draws images of (pixels, super-resolution; (): it is
    not conditioned on classes)"""
    task_options: dict[str, Any] = field(default_factory=dict)
    """what a task of another package must know of the data"""
    episodes: EpisodeShape = field(default_factory=EpisodeShape)
    """what the states and actions of the data are (decision)"""
    genes: dict[str, Choice] = field(default_factory=_usual_genes)
    """choice for every gene, with the options that were given"""
    schedule: dict[str, tuple[Any, ...]] = field(default_factory=dict)
    """options of the mixer that differ by layer: name -> one value a layer ('mixer' itself too)"""

    @property
    def does(self) -> Task:
        """The task."""
        return TASKS[self.task]

    @classmethod
    def settled(cls, values: dict[str, Any]) -> dict[str, Any]:
        from everyformer.genes import GENES

        config = from_dict(cls, values)
        genes = {name: GENES[name].filled(choice) for name, choice in config.genes.items()}
        return to_dict(config.with_genes(**genes))

    def with_genes(self, **chosen: Choice) -> Self:
        """The same model with other choices for some genes."""
        return dataclasses.replace(self, genes=self.genes | chosen)

    @property
    def outputs(self) -> int:
        """Numbers that are predicted of a row: a score for each class, or what is predicted."""
        return len(self.target_mean) if self.does.measures else self.classes

    @property
    def embedding_scale(self) -> float:
        """Factor of the token embeddings: sqrt(width), or 1.

        A config that was not made by `configure` scales with waves alone.
        """
        scaled = self.scale_embedding
        if scaled is None:
            scaled = self.genes["position"].name == "sinusoidal"
        return math.sqrt(self.width) if scaled else 1.0

    @property
    def embedding_std(self) -> float:
        """Standard deviation of token embeddings at the start, before they are scaled."""
        if self.init == "sparse-transformer":
            return DEEP_TABLE
        return EMBEDDING_STD if self.embedding_scale == 1.0 else self.width**-0.5

    @property
    def embedding_spread(self) -> float:
        """The same of scaled ones."""
        return self.embedding_std * self.embedding_scale

    @property
    def tokens(self) -> int:
        """Tokens that the mixers see at most: patches plus class token, pixels, those of a window
        of steps (and of one more, for rows of a stream that are over and stand still), or
        max_length."""
        if self.does.acts:
            return self.step_tokens * (self.episodes.context + 1)
        if self.image is None:
            return (self.max_length or DEFAULT_LENGTH) + (self.pooling == "class")
        channels, height, width = self.image
        if self.does.draws:
            return height * width * (1 if self.pixels.output == "mixture" else channels)
        return (height // self.side) * (width // self.side) + (self.pooling == "class")

    @property
    def side(self) -> int:
        """Side of the patches of a picture."""
        _, height, width = self.image or (0, USUAL_SIDE, USUAL_SIDE)
        fitting = (p for p in range(USUAL_SIDE, 0, -1) if not (height % p or width % p))
        return self.patch or next(fitting)

    @property
    def step_tokens(self) -> int:
        """Tokens that a step of an episode is: the return-to-go, the state, the action."""
        return 2 + self.decision.return_to_go

    @property
    def timesteps(self) -> int:
        """Steps that an episode has at most."""
        return self.decision.table or max(STEPS, self.episodes.longest)
