"""Text to tokens and back: bytes, characters, byte-level BPE, or what a checkpoint came with.

U+0000 marks the end of a document in all of them (text with NUL bytes is refused as binary, so it
cannot be confused with content). Every tokenizer is saved as one `tokenizer.json`. BPE and those of
checkpoints are computed by the package `tokenizers`, Marian's by `sentencepiece`.
"""
