#!/usr/bin/env bash
# transformers 5.23.0 and 5.24.0, torch 2.13.0 (CPU).
# Guess: a model that is given inputs_embeds of its own table, model.get_input_embeddings()(ids), answers as it does to
#   the ids themselves. Bert, RoBERTa and Llama do.
# What happens: ESM, where inputs_embeds are given, passes by all that follows its table: learned positions, the norm
#   before the first layer, the scale by which ESM-2 makes up for masked tokens, and zeros at padding. Its answer is
#   another, without an error or a warning.
# Why a user cares: proteins are designed, and attributions computed, by gradients to embeddings; these are then of a
#   model that nobody trained.
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
sizes |= {"vocab_size": 33, "max_position_embeddings": 64, "pad_token_id": 1}
esm2 = {"position_embedding_type": "rotary", "token_dropout": True, "mask_token_id": 32}
ids = torch.randint(4, 24, (1, 12), generator=torch.Generator().manual_seed(0))


def off(kind, config):
    """By how much the logits of embeddings are off from those of their ids."""
    torch.manual_seed(0)
    model = kind(config).double().eval()
    with torch.no_grad():
        y = model(input_ids=ids).logits
        return float((model(inputs_embeds=model.get_input_embeddings()(ids)).logits - y).abs().max())


print("transformers", transformers.__version__, "torch", torch.__version__)
esm = transformers.EsmForMaskedLM
found = {
    "ESM with the switches of ESM-2": off(esm, transformers.EsmConfig(**sizes, **esm2)),
    "ESM with learned positions": off(esm, transformers.EsmConfig(**sizes)),
    "RoBERTa": off(transformers.RobertaForMaskedLM, transformers.RobertaConfig(**sizes)),
}
for name, size in found.items():
    print(f"{name}: off by {size:.1e}")
sys.exit([size > 1e-6 for size in found.values()] != [True, True, False])
PY
done
echo "as described"
