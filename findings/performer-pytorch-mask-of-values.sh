#!/usr/bin/env bash
# performer-pytorch 1.1.4, torch 2.13.0 (CPU).
# Guess: mask hides padding, as in attention by softmax: what stands there changes nothing, on whichever side; and with
#   causal=True no output moves by later tokens.
# What happens: the mask sets the values of padding to zero and leaves its keys, so that padding counts in the sum by
#   which each output is divided. A causal model with padding on the left, and a bidirectional one with padding on
#   either side, answer by what lies there. Besides, features of keys are exp(x - m) + 1e-4 with m the largest of the
#   whole row, so that in a causal model each output moves a little by later tokens.
# Why a user cares: a batch's longest row decides the answers to the others, and a score of a text depends on what
#   follows it. Nothing warns, and nothing is large enough to be seen in a loss.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.13.0 numpy==2.4.6 performer-pytorch==1.1.4
cd "$folder"
"$folder/venv/bin/python" - <<'PY' 2> warnings.txt
import importlib.metadata
import sys

import torch
from performer_pytorch import PerformerLM

ids = torch.randint(0, 32, (1, 12), generator=torch.Generator().manual_seed(0))


def moved(causal, hidden, seen, masked=True):
    """By how much outputs at some places move when other ids stand at hidden ones."""
    torch.manual_seed(0)
    sizes = {"num_tokens": 32, "max_seq_len": 12, "dim": 32, "depth": 2, "heads": 4, "dim_head": 8}
    model = PerformerLM(**sizes, causal=causal, nb_features=16).double().eval()
    mask = torch.ones_like(ids).bool()
    mask[:, hidden] = False
    other = torch.where(mask, ids, (ids + 10) % 32)
    with torch.no_grad():
        both = [model(x, mask=mask) if masked else model(x) for x in (ids, other)]
    return float((both[0] - both[1])[:, seen].abs().max())


print("performer-pytorch", importlib.metadata.version("performer-pytorch"), "torch", torch.__version__)
found = {
    "bidirectional, padding on the right": moved(False, slice(9, 12), slice(0, 9)),
    "causal, padding on the left": moved(True, slice(0, 3), slice(3, 12)),
    "causal, later tokens are others": moved(True, slice(9, 12), slice(0, 9), masked=False),
}
for name, size in found.items():
    print(f"{name}: outputs move by {size:.1e}")
sys.exit([size > floor for size, floor in zip(found.values(), (1e-3, 1e-3, 1e-9))] != [True] * 3)
PY
echo "as described"
