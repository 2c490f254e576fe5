"""Names of tokenizers, as the option is written; no torch and no numpy."""

from everyformer.core.errors import ConfigError, nearest

SMALLEST_BPE = 257
"""All 256 bytes and one merge."""
LARGEST_BPE = 1_000_000
"""Several times the largest vocabulary in use; what trains them claims room for all at once."""


def tokenizer_parts(spec: str) -> tuple[str, int]:
    """``"bpe:8000"`` -> ``("bpe", 8000)``; the size is 0 for bytes (auto), chars and hub."""
    kind, colon, size = spec.partition(":")
    if kind not in ("auto", "bytes", "chars", "bpe", "hub"):
        known = ("bytes", "chars", "bpe:8000")
        raise ConfigError(f"unknown tokenizer '{spec}'; {nearest(kind, known)}")
    if kind != "bpe":
        if colon:
            raise ConfigError(f"tokenizer '{kind}' takes no size; write '{kind}', not '{spec}'")
        return "bytes" if kind == "auto" else kind, 0
    if not size.isdecimal():
        raise ConfigError(f"tokenizer '{spec}' needs a vocabulary size, for example bpe:8000")
    if not size.isascii() or len(size) > 9 or int(size) > LARGEST_BPE:
        raise ConfigError(f"tokenizer '{spec}': a vocabulary has at most {LARGEST_BPE:,} tokens")
    if int(size) < SMALLEST_BPE:
        raise ConfigError(
            f"tokenizer '{spec}': a byte-level vocabulary has at least {SMALLEST_BPE} tokens "
            "(256 bytes and a merge); take a larger one, or `data.tokenizer=bytes`"
        )
    return kind, int(size)
