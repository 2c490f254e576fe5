#!/usr/bin/env bash
# transformers 5.23.0 (torch 2.13.0, safetensors 0.8.0, CPU).
# Guess: saving a small model into a folder that held a sharded one leaves a folder that describes one
#   model: either all of the old files go, or the new ones stand beside a complete old set.
# What happens: save_pretrained removes the old shards but leaves model.safetensors.index.json, which
#   still names them. The folder holds an index without its shards, and a model.safetensors that the
#   index does not know. from_pretrained reads model.safetensors and says nothing.
# Why a user cares: whoever reads the folder by its index (the documented way to find the shards; other
#   loaders, converters and upload checks do) fails on files that are not there, or takes the
#   description of another model. A reader must look whether the files of an index exist.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.13.0 transformers==5.23.0 safetensors==0.8.0 numpy==2.4.6
cd "$folder"
HF_HUB_OFFLINE=1 "$folder/venv/bin/python" - <<'PY'
import json
import pathlib
import sys

import torch
import transformers
from transformers import LlamaConfig, LlamaForCausalLM

sizes = {"vocab_size": 64, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}


def model(seed):
    torch.manual_seed(seed)
    return LlamaForCausalLM(LlamaConfig(**sizes, num_attention_heads=4)).eval()


model(0).save_pretrained("saved", max_shard_size="100KB")
first = sorted(path.name for path in pathlib.Path("saved").iterdir())
second = model(1)
second.save_pretrained("saved")
then = sorted(path.name for path in pathlib.Path("saved").iterdir())
index = pathlib.Path("saved/model.safetensors.index.json")
named = sorted(set(json.loads(index.read_text())["weight_map"].values())) if index.exists() else []
missing = [name for name in named if name not in then]
read = LlamaForCausalLM.from_pretrained("saved")
same = torch.equal(read.lm_head.weight, second.lm_head.weight)
print("transformers", transformers.__version__)
print("after the sharded save:", *first)
print("after the second save: ", *then)
print("the index still names: ", *named)
print("of these are missing:  ", *missing)
print("from_pretrained reads the second model:", same)
sys.exit(not (missing and same))
PY
echo "as described"
