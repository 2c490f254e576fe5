"""The mathematics of the members as functions, without parameters.

Heads' tensors are (batch, heads, length, head_dim); AFT and the spatial gate take (batch, length,
width). Each function has a twin of the same name, the literal equation, in `everyformer.reference`.
"""

from everyformer.engines.content.hashing import lsh_buckets as lsh_buckets
from everyformer.engines.kernel.features import fourier_features as fourier_features
from everyformer.engines.kernel.features import positive_features as positive_features
from everyformer.engines.softmax.attention import attention as attention
from everyformer.engines.softmax.pairs import relative_shift as relative_shift
from everyformer.engines.sparse.attention import sparse_attention as sparse_attention
from everyformer.genes.mixers.aft_conv import aft_conv as aft_conv
from everyformer.genes.mixers.aft_full import aft_full as aft_full
from everyformer.genes.mixers.aft_local import aft_local as aft_local
from everyformer.genes.mixers.aft_simple import aft_simple as aft_simple
from everyformer.genes.mixers.gmlp import spatial_gate as spatial_gate
from everyformer.genes.mixers.linear import linear_attention as linear_attention
from everyformer.genes.mixers.reformer.function import lsh_attention as lsh_attention
from everyformer.genes.mixers.routing.function import routing_attention as routing_attention
from everyformer.genes.positions.alibi import alibi_slopes as alibi_slopes
from everyformer.genes.positions.rope import rotate as rotate
from everyformer.genes.positions.sinusoidal import sinusoid as sinusoid
