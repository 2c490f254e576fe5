"""Seeds that follow from several numbers or words, so that no two uses share random numbers."""

import hashlib


def mixed(*parts: object) -> int:
    """A seed from 0 to 2^63 - 1 that ``parts`` give, in the order of them."""
    text = " ".join(str(part) for part in parts)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1
