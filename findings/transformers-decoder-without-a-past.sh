#!/usr/bin/env bash
# transformers 5.23.0 and 5.24.0, torch 2.13.0 (CPU).
# Guess: a BigBird decoder with cross-attention (is_decoder, add_cross_attention) reads the tokens before each
#   position and, next to them, the states of an encoder, as Bert made a decoder in the same way does.
# What happens: where encoder_hidden_states are given, its layers hand them to self-attention too, which takes them
#   for its keys and values. So each output depends on its own token and the encoder, and on no other token.
#   As called by default, with a cache, cross-attention moreover takes the keys that self-attention made.
# Why a user cares: an encoder-decoder is trained and decodes without an error, and writes each token without
#   knowing which it wrote before.
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
sizes |= {"vocab_size": 128, "max_position_embeddings": 64, "is_decoder": True, "add_cross_attention": True}
x = torch.randint(3, 128, (1, 12), generator=torch.Generator().manual_seed(0))
other = x.clone()
other[0, :4] = (x[0, :4] + 40) % 120 + 3  # the first four tokens are others
states = torch.randn(1, 7, 32, generator=torch.Generator().manual_seed(1))


def moves(kind, config, **more):
    """By how much the outputs of the last eight tokens move with the first four."""
    torch.manual_seed(0)
    model = kind(config).eval()
    with torch.no_grad():
        return float((model(x, **more).logits - model(other, **more).logits)[:, 4:].abs().max())


print("transformers", transformers.__version__, "torch", torch.__version__)
bird = transformers.BigBirdForCausalLM, transformers.BigBirdConfig(**sizes, attention_type="original_full")
bert = transformers.BertLMHeadModel, transformers.BertConfig(**sizes)
found = {
    "BigBird alone": moves(*bird),
    "BigBird with an encoder": moves(*bird, encoder_hidden_states=states),
    "the same, use_cache=False": moves(*bird, encoder_hidden_states=states, use_cache=False),
    "Bert with an encoder": moves(*bert, encoder_hidden_states=states),
}
for name, size in found.items():
    print(f"{name}: later outputs move by {size:.1e}")
sys.exit([size > 1e-6 for size in found.values()] != [True, False, False, True])
PY
done
echo "as described"
