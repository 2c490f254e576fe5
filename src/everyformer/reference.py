"""The literal equations: slow, float64-able, the definition that the fast functions must equal."""

# ruff: noqa: F401

from everyformer.engines.content.hashing import lsh_buckets_reference as lsh_buckets
from everyformer.engines.softmax.pairs import relative_shift_reference as relative_shift
from everyformer.engines.sparse.attention import sparse_attention_reference as sparse_attention
from everyformer.genes.mixers.aft_conv import aft_conv_reference as aft_conv
from everyformer.genes.mixers.aft_full import aft_full_reference as aft_full
from everyformer.genes.mixers.aft_local import aft_local_reference as aft_local
from everyformer.genes.mixers.aft_simple import aft_simple_reference as aft_simple
from everyformer.genes.mixers.attention.reference import attention_reference as attention
from everyformer.genes.mixers.gmlp import spatial_gate_reference as spatial_gate
from everyformer.genes.mixers.linear import linear_attention_reference as linear_attention
from everyformer.genes.mixers.performer import positive_features_reference as positive_features
from everyformer.genes.mixers.reformer.function import lsh_attention_reference as lsh_attention
from everyformer.genes.mixers.rfa import fourier_features_reference as fourier_features
from everyformer.genes.mixers.routing.function import (
    routing_attention_reference as routing_attention,
)
from everyformer.genes.positions.alibi import alibi_slopes_reference as alibi_slopes
from everyformer.genes.positions.rope import rotate_reference as rotate
from everyformer.genes.positions.sinusoidal import sinusoid_reference as sinusoid
