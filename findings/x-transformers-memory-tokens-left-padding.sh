#!/usr/bin/env bash
# x-transformers 2.31.10, torch 2.13.0 (CPU).
# Guess: with num_memory_tokens, rows padded on the left are told as without them: mask says what is real, and
#   seq_start_pos where each row begins, so that positions start there.
# What happens: memory tokens are put in front of the row, mask grows by them, and seq_start_pos does not. The first
#   tokens behind the start are then hidden by it, memory tokens among them, and it stands in place of the mask: what
#   lies in padding is attended to, and moves the outputs of real tokens. Nothing warns. A mask alone hides padding.
# Why a user cares: batches of prompts are padded on the left, and registers are switched on by one argument; what was
#   in the padding (another prompt's end, any id) is then read.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.13.0 numpy==2.4.6 x-transformers==2.31.10
cd "$folder"
"$folder/venv/bin/python" - <<'PY' 2> warnings.txt
import importlib.metadata
import sys

import torch
from x_transformers import Encoder, TransformerWrapper

ids = torch.randint(0, 64, (1, 9), generator=torch.Generator().manual_seed(0))
mask = torch.tensor([[False, False, True, True, True, True, True, True, True]])
other = torch.where(mask, ids, (ids + 21) % 64)  # the same text, and something else in its padding


def moved(memories, **start):
    """By how much real outputs move when other ids stand in padding."""
    torch.manual_seed(0)
    layers = Encoder(dim=32, depth=2, heads=2, attn_dim_head=16)
    sizes = {"num_tokens": 64, "max_seq_len": 64, "num_memory_tokens": memories}
    model = TransformerWrapper(**sizes, attn_layers=layers).double().eval()
    with torch.no_grad():
        both = [model(x, mask=mask, **start)[mask] for x in (ids, other)]
    return float((both[0] - both[1]).abs().max())


print("x-transformers", importlib.metadata.version("x-transformers"), "torch", torch.__version__)
found = {
    "3 memory tokens, mask and seq_start_pos": moved(3, seq_start_pos=torch.tensor([2])),
    "3 memory tokens, mask alone": moved(3),
    "no memory tokens, mask and seq_start_pos": moved(0, seq_start_pos=torch.tensor([2])),
}
for name, size in found.items():
    print(f"{name}: outputs of real tokens move by {size:.1e}")
sys.exit([size > 1e-6 for size in found.values()] != [True, False, False])
PY
echo "as described"
