"""The fixture ``sequence_laws``: a model keeps every law, or the test fails with the evidence.

def test_my_model(sequence_laws):
    sequence_laws(MyModel(), causal=True)

@pytest.mark.exempt_laws(padding="it reads full rows alone")
def test_my_other_model(sequence_laws):
    sequence_laws(MyOtherModel())
"""

import logging
import warnings
from collections.abc import Callable
from typing import Any

import pytest

from sequence_laws.errors import ConfigError

LINES = 30
"""of a failure, of which each broken law has one, and the first its program"""


def pytest_configure(config: pytest.Config) -> None:
    """Make the mark known."""
    config.addinivalue_line(
        "markers", "exempt_laws(LAW=reason, ...): laws that ``sequence_laws`` does not try"
    )


@pytest.fixture
def sequence_laws(request: pytest.FixtureRequest) -> Callable[..., Any]:
    """A function of a module, and of what `sequence_laws.check` takes: it fails where a law is
    broken, and gives the verdicts."""
    reasons: dict[str, str] = {}
    for mark in request.node.iter_markers("exempt_laws"):
        reasons |= mark.kwargs
    for law, reason in reasons.items():
        if not isinstance(reason, str) or not reason.strip():
            raise ConfigError(f"exempt_laws({law}=...) has no reason: say why that is not tried")

    def keeps(model: Any, **known: Any) -> Any:
        from sequence_laws.foreign import FAILURES, describe
        from sequence_laws.judging import LAWS, check, known_laws
        from sequence_laws.verdict import BROKEN

        trace = logging.getLogger("torch.__trace")  # all that torch notes of its compiler
        disabled, trace.disabled = trace.disabled, True
        try:
            left_out = known_laws([*reasons]) if reasons else ()
            tried = [law for law in known.pop("laws", ()) or LAWS if law not in left_out]
            verdicts = check(model, laws=tried, **known)
        except FAILURES as error:
            raise pytest.fail.Exception(describe(error), pytrace=False) from None
        finally:
            trace.disabled = disabled
        broken = [one for one in verdicts if one.status in BROKEN]
        if broken:
            lines = [f"{one.member} breaks {one.law}: {one.detail}" for one in broken]
            shown = next((one for one in broken if one.reproduction), broken[0])
            lines += ["", f"# {shown.law}", *shown.reproduction.splitlines()]
            if len(lines) > LINES:
                lines[LINES - 1 :] = ["... (all of it: print(sequence_laws.check(model)))"]
            pytest.fail("\n".join(lines), pytrace=False)
        return verdicts

    return keeps


@pytest.fixture
def everyformer_laws(sequence_laws: Callable[..., Any]) -> Callable[..., Any]:
    """Its name of before, for one version."""
    warnings.warn("the fixture everyformer_laws is now sequence_laws", DeprecationWarning, 2)
    return sequence_laws
