"""The mathematics of the members as functions, without parameters.

Heads' tensors are (batch, heads, length, head_dim); AFT and the spatial gate take (batch, length,
width). Each function has a twin of the same name, the literal equation, in `everyformer.reference`.
"""

from everyformer.engines.content.hashing import lsh_buckets
from everyformer.engines.kernel.features import fourier_features, positive_features
from everyformer.engines.softmax.attention import attention
from everyformer.engines.softmax.pairs import relative_shift
from everyformer.engines.sparse.attention import sparse_attention
from everyformer.mixers.aft_conv import aft_conv
from everyformer.mixers.aft_full import aft_full
from everyformer.mixers.aft_local import aft_local
from everyformer.mixers.aft_simple import aft_simple
from everyformer.mixers.gmlp import spatial_gate
from everyformer.mixers.linear import linear_attention
from everyformer.mixers.reformer.function import lsh_attention
from everyformer.mixers.routing.function import routing_attention
from everyformer.positions.alibi import alibi_slopes
from everyformer.positions.rope import rotate
from everyformer.positions.sinusoidal import sinusoid

__all__ = [
    "aft_conv",
    "aft_full",
    "aft_local",
    "aft_simple",
    "alibi_slopes",
    "attention",
    "fourier_features",
    "linear_attention",
    "lsh_attention",
    "lsh_buckets",
    "positive_features",
    "relative_shift",
    "rotate",
    "routing_attention",
    "sinusoid",
    "sparse_attention",
    "spatial_gate",
]
