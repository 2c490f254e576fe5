"""A package of an extra that is not there, and one that is there and fails, are told apart."""

import pytest

from everyformer.core.errors import MissingExtraError
from sequence_laws.extras import extra_module


@pytest.fixture
def broken(tmp_path, monkeypatch):
    (tmp_path / "theirs_broken.py").write_text("import theirs_missing")
    monkeypatch.syspath_prepend(tmp_path)


@pytest.mark.parametrize(
    ("module", "words"),
    [
        ("theirs_absent", "needs the package 'theirs_absent', which is not installed; install"),
        (
            "theirs_absent.part",
            "needs the package 'theirs_absent', which is not installed; install",
        ),
        ("theirs_broken", "cannot be imported .No module named 'theirs_missing'.; install it with"),
    ],
)
def test_what_is_missing_is_named(broken, module, words):
    with pytest.raises(MissingExtraError, match=words):
        extra_module(module, "hf", "a test")
