#!/usr/bin/env bash
# llama-cpp-python 0.3.36 (llama.cpp of its release), gguf 0.19.0. The first is built from source: some minutes.
# Guess: llama_detokenize gives back the bytes that were tokenised by a byte-level vocabulary of GPT-2's kind
#   (tokenizer.ggml.pre = "gpt-2"), since byte-level tokens lose nothing.
# What happens: it drops the space before a full stop, comma, question or exclamation mark and before 's. With
#   "trillion" in its place, which splits texts by the same rule, the same tokens give the text back. The
#   wrapper's own Llama.detokenize, which joins tokens one by one, gives it back for both.
# Why a user cares: source code, tables and tokenised corpora have such spaces. A model that was trained on them
#   and runs through this call seems to write them wrongly, and what it wrote, tokenised again, are other tokens
#   than it has read. Write another split into the file, or join single tokens.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet llama-cpp-python==0.3.36 gguf==0.19.0 numpy==2.4.6
cd "$folder"
"$folder/venv/bin/python" - <<'PY' 2> log.txt
import ctypes
import sys

import gguf
import llama_cpp
from llama_cpp import Llama

TEXT = b"one , two . three ? four ! it 's"


def letters():
    """How GPT-2 spells each byte."""
    known = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = iter(range(256, 512))
    return [chr(byte) if byte in known else chr(next(others)) for byte in range(256)]


def vocabulary(split):
    """A vocabulary of single bytes, and of a comma behind a space, in a file without a model."""
    space = letters()[32]
    writer = gguf.GGUFWriter(f"{split}.gguf", "gpt2")
    writer.add_vocab_size(257)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(split)
    writer.add_token_list([*letters(), f"{space},"])
    writer.add_token_types([gguf.TokenType.NORMAL] * 257)
    writer.add_token_merges([f"{space} ,"])
    writer.add_eos_token_id(0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return Llama(f"{split}.gguf", vocab_only=True, verbose=False)


def given_back(model, tokens):
    """The text by llama.cpp's own function."""
    room, ids = ctypes.create_string_buffer(200), (llama_cpp.llama_token * len(tokens))(*tokens)
    known = llama_cpp.llama_model_get_vocab(model.model)
    count = llama_cpp.llama_detokenize(known, ids, len(tokens), room, len(room), False, False)
    return room.raw[:count]


print("llama-cpp-python", llama_cpp.__version__)
models = {split: vocabulary(split) for split in ("gpt-2", "trillion")}
tokens = {split: model.tokenize(TEXT, add_bos=False) for split, model in models.items()}
whole = {split: given_back(model, tokens[split]) for split, model in models.items()}
for split, model in models.items():
    print(f"{split}: {len(tokens[split])} tokens; llama_detokenize {whole[split]}; "
          f"Llama.detokenize {model.detokenize(tokens[split])}")
as_said = tokens["gpt-2"] == tokens["trillion"] and whole["trillion"] == TEXT
as_said = as_said and whole["gpt-2"] == b"one, two. three? four! it's"
as_said = as_said and all(m.detokenize(tokens[s]) == TEXT for s, m in models.items())
sys.stdout.flush()
sys.exit(not as_said)
PY
echo "as described"
