"""What is refused for its size: exactly what is more than is free, with both numbers."""

import pytest

from everyformer.core.errors import ResourceError
from sequence_laws.memory import check_memory, size

GIB = 1 << 30


def test_a_byte_more_than_is_free_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    free = 0
    monkeypatch.setattr("sequence_laws.memory.free_memory", lambda: free)
    # less than 64 MiB is not worth a look
    check_memory((64 << 20) - 1, "a table", "choose less")
    with pytest.raises(ResourceError):
        check_memory(64 << 20, "a table", "choose less")
    for free in (GIB // 8, GIB, 5 * GIB):
        check_memory(free, "a table", "choose less")
        with pytest.raises(ResourceError, match=r"a table needs at least .*free: choose less"):
            check_memory(free + 1, "a table", "choose less")
    free = 3 * GIB // 2
    said = "^a table needs at least 2.5 GiB of memory, but 1.5 GiB are free: choose less$"
    with pytest.raises(ResourceError, match=said):
        check_memory(2.5 * GIB, "a table", "choose less")


@pytest.mark.parametrize(
    ("count", "words"),
    [
        (None, "-"),
        (0, "0 B"),
        (1023, "1,023 B"),
        (1024, "1.0 KiB"),
        (1536 << 20, "1.5 GiB"),
        (1 << 40, "1.0 TiB"),
        (5000 << 40, "5,000.0 TiB"),
    ],
)
def test_bytes_are_read_in_steps_of_1024(count: int | None, words: str) -> None:
    assert size(count) == words
