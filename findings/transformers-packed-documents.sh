#!/usr/bin/env bash
# transformers 5.23.0 and 5.24.0, torch 2.13.0 (CPU).
# Guess: a batch of DataCollatorWithFlattening (documents in one row, position_ids that start over, no mask) keeps
#   documents apart in a causal model with attention "sdpa" or "eager", as it does with flash attention.
# What happens: it does when use_cache=False is passed. As called by default, also in training mode, the model
#   makes a cache first, and where there is one, documents are not looked for in position_ids: each reads those
#   before it, without a word. The same where a mask of ones is passed.
# Why a user cares: that is how rows are packed for training. Trainer switches the cache off in the configuration,
#   so that it is right there and wrong in a loop of one's own or an evaluation by model(**batch): the loss falls a
#   little too well, and the model learns to read what will never stand before its text. Pass use_cache=False,
#   and no attention_mask.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.13.0 numpy==2.4.6
for release in 5.23.0 5.24.0; do
"$folder/venv/bin/pip" install --quiet "transformers==$release"
cd "$folder"
TRANSFORMERS_VERBOSITY=error "$folder/venv/bin/python" - <<'PY' 2> warnings.txt
import sys

import torch
import transformers

sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
config = transformers.LlamaConfig(vocab_size=128, max_position_embeddings=64, **sizes)
one, two = list(range(10, 18)), list(range(30, 40))
collate = transformers.DataCollatorWithFlattening(return_tensors="pt")
batch = collate([{"input_ids": one}, {"input_ids": two}])
batch = {name: batch[name] for name in ("input_ids", "position_ids")}


def off(training, way, **more):
    """By how much the second document differs from itself alone."""
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(config).train(training)  # it has no dropout
    model.set_attn_implementation(way)
    with torch.no_grad():
        alone = model(torch.tensor([two])).logits
        packed = model(**batch, **more).logits[:, len(one) :]
    return float((packed - alone).abs().max())


print("transformers", transformers.__version__, "torch", torch.__version__)
print("the collator gives", {name: value.tolist() for name, value in batch.items()})
as_said = True
for way in ("eager", "sdpa"):
    for training in (False, True):
        found = {
            "by default": off(training, way),
            "use_cache=False": off(training, way, use_cache=False),
            "use_cache=False, mask of ones": off(
                training, way, use_cache=False, attention_mask=torch.ones(1, 18, dtype=torch.long)
            ),
        }
        print(way, "training" if training else "evaluation", {k: f"{v:.1e}" for k, v in found.items()})
        apart = [value < 1e-5 for value in found.values()]
        as_said = as_said and apart == [False, True, False]
sys.exit(not as_said)
PY
done
echo "as described"
