#!/usr/bin/env bash
# transformers 5.23.0 and 5.24.0, torch 2.13.0 (CPU).
# Guess: a MegatronBert decoder with cross-attention (is_decoder, add_cross_attention) reads the states of an encoder
#   of any length, as Bert made a decoder in the same way does.
# What happens: keys and values of the encoder's states are reshaped by the length of the decoder's tokens. Where the
#   two lengths are equal all is well; where they differ the pass ends in an error about a view.
# Why a user cares: a test with equal lengths passes, and the first real pair of texts fails in the middle of a
#   training, with an error that names neither the encoder nor its length.
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
x = torch.randint(3, 128, (2, 12), generator=torch.Generator().manual_seed(0))


def says(kind, config, length):
    """The shape of the logits next to so many states of an encoder, or the kind of error."""
    torch.manual_seed(0)
    model, states = kind(config).eval(), torch.randn(2, length, 32)
    try:
        with torch.no_grad():
            return str(tuple(model(x, encoder_hidden_states=states, use_cache=False).logits.shape))
    except RuntimeError as error:
        return f"RuntimeError: {error}"


print("transformers", transformers.__version__, "torch", torch.__version__)
megatron = transformers.MegatronBertForCausalLM, transformers.MegatronBertConfig(**sizes)
bert = transformers.BertLMHeadModel, transformers.BertConfig(**sizes)
found = [says(*kind, length) for kind in (megatron, bert) for length in (12, 7)]
for name, words in zip(("MegatronBert, 12 states", "MegatronBert, 7 states", "Bert, 12", "Bert, 7"), found):
    print(f"{name}: {words}")
shape = "(2, 12, 128)"
sys.exit([words == shape for words in found] != [True, False, True, True] or "shape '[2, 12, -1, 8]'" not in found[1])
PY
done
echo "as described"
