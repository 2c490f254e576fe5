#!/usr/bin/env bash
# torch 2.13.0 (CPU).
# Guess: nn.TransformerDecoder with a causal mask and tgt_key_padding_mask gives, in evaluation, the same numbers
#   at real tokens whether gradients are recorded or not, also for a row that is padded on the left.
# What happens: with batch_first=True and without gradients its self-attention is one fused kernel, in which a
#   query that may see nothing (the first padding tokens, under the causal mask) is NaN. The next layer reads
#   these as values with weight 0, and 0 * NaN is NaN: every output of that row is NaN, real tokens too. With
#   gradients, or with batch_first=False, all outputs are finite and right.
# Why a user cares: rows are padded on the left for decoding in a batch. Training, and a loss in evaluation that
#   records gradients, look well; torch.no_grad() turns whole rows into NaN. Pad on the right, or call
#   torch.backends.mha.set_fastpath_enabled(False).
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.13.0 numpy==2.4.6
cd "$folder"
"$folder/venv/bin/python" - <<'PY' 2> warnings.txt
import sys

import torch
from torch import nn

ROWS, LENGTH, WIDTH = 2, 6, 16
x, memory = torch.randn(ROWS, LENGTH, WIDTH), torch.randn(ROWS, 3, WIDTH)
padding = torch.zeros(ROWS, LENGTH, dtype=torch.bool)
padding[1, :2] = True
future = torch.ones(LENGTH, LENGTH, dtype=torch.bool).triu(1)


def outputs(batch_first, recorded, fast=True):
    torch.manual_seed(0)
    layer = nn.TransformerDecoderLayer(WIDTH, 4, 32, batch_first=batch_first)
    model = nn.TransformerDecoder(layer, 2).eval()
    turn = (lambda t: t) if batch_first else (lambda t: t.transpose(0, 1))
    torch.backends.mha.set_fastpath_enabled(fast)
    with torch.set_grad_enabled(recorded):
        y = model(turn(x), turn(memory), tgt_mask=future, tgt_key_padding_mask=padding)
    return turn(y).detach()


print("torch", torch.__version__)
right = outputs(True, recorded=True)
fused = outputs(True, recorded=False)
print("with gradients: NaN at", right.isnan().any(-1).nonzero().tolist())
print("without:        NaN at", fused.isnan().any(-1).nonzero().tolist())
print("without, batch_first=False: NaN at", outputs(False, False).isnan().any(-1).nonzero().tolist())
as_said = (
    not right.isnan().any()
    and bool(fused[1].isnan().all())
    and torch.allclose(fused[0], right[0], atol=1e-5)
    and torch.allclose(outputs(False, False), right, atol=1e-5)
    and torch.allclose(outputs(True, False, fast=False), right, atol=1e-5)
)
sys.exit(not as_said)
PY
echo "as described"
