"""The command line: `everyformer VERB ...`, one file a verb, each a function with typed options.

Nothing heavy is imported before a verb is known, so that `everyformer --help` answers at once.
Exit codes: 0 done, 1 the job ran and a check failed, 2 wrong usage or configuration, 130 and 143
stopped by Ctrl-C or SIGTERM. Errors are one sentence on stderr; `--debug` shows the traceback.
"""

import contextlib
import importlib
import io
import os
import signal
import sys
import warnings
from collections.abc import Sequence
from typing import Any

from everyformer.cli.ranks import spoken, tell
from everyformer.core.errors import (
    EveryformerError,
    PluginError,
    refused_by_system,
    unknown,
)
from everyformer.system.process import keep_freed_memory, wait_briefly
from everyformer.system.signals import Stopped, stoppable
from everyformer.system.status import show, status
from sequence_laws.foreign import FAILURES, describe, place
from sequence_laws.memory import is_out_of_memory, out_of_memory

VERBS: dict[str, str] = {
    "list": "see what exists, filtered by what you need",
    "info": "one member: paper, genes, options, cost, claim; several side by side",
    "train": "train a member on your data",
    "eval": "measure a trained run, on its own or on other data",
    "predict": "what a trained run answers to texts, tables, pictures, series",
    "generate": "continue a prompt with a trained language model",
    "index": "texts as a datastore that a language model reads with its context",
    "calibrate": "the threshold of early exits that keeps a promise on your texts",
    "convert": "third-party checkpoints in, models out: transformers, ONNX, torch.export",
    "compare": "compare several members on your data, on equal footing",
    "verify": "check every law on this machine, in a dtype of your choice",
    "bench": "time and memory against length, compared with plain attention and peers",
    "show": "draw what a run has learned, or what a member starts from",
    "suite": "what members can do: recall, copying, memory, states, on probes",
    "reproduce": "run the signature experiment of a member",
    "doctor": "what is installed and what this machine can do",
}

HELP = """usage: everyformer VERB ... [--help]

Every member of the Transformer family under one interface, proven on your own machine.

verbs:
{verbs}

examples:
  everyformer compare attention aft-conv gmlp --data mytext.txt --budget-seconds 60
  everyformer train aft-local --data mytext.txt --steps 2000 --out runs/mine

`everyformer VERB --help` explains each, `--help all` every option; `--version` the version;
`everyformer --print-completion bash|zsh|fish` is a script for Tab (docs/command-line.md)."""


COMPLETION = "--print-completion"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one verb; returns the exit code."""
    # not list(...): once the verb of that name is imported, it stands in this module as `list`
    words = [*(sys.argv[1:] if arguments is None else arguments)]
    debug = "--debug" in words
    if arguments is None:
        _require_streams()
    words = [word for word in words if word != "--debug"]
    try:
        with stoppable(), warnings.catch_warnings(), spoken():
            if arguments is None:
                wait_briefly()
                show()
            warnings.showwarning = _warn
            code = _run(words)
            # what cannot be written is found out here, not when the interpreter ends
            sys.stdout.flush()
        return code
    except BrokenPipeError:
        # the reader of our output has gone (| head); nothing is left to say
        _drop_output()
        return 0
    except (KeyboardInterrupt, *FAILURES) as error:
        if debug and isinstance(error, SystemExit):
            raise PluginError(describe(error)) from error
        if debug:
            raise
        sentence, code = _explained(error)
        tell(sentence)
        return code


def _explained(error: BaseException) -> tuple[str, int]:
    """Sentence about an error, and the exit code."""
    if isinstance(error, KeyboardInterrupt):
        number = error.number if isinstance(error, Stopped) else signal.SIGINT
        return str(Stopped(number)), 128 + number
    if isinstance(error, EveryformerError):
        from everyformer.cli.parsing import answer

        # a plug-in's text is its own
        plain = isinstance(error, PluginError)
        return str(error) if plain else answer(str(error)), error.exit_code
    where = place(error)
    if isinstance(error, OSError):
        _drop_output()
        return str(refused_by_system(error)) + ("" if where is None else f" ({where})"), 1
    if is_out_of_memory(error):
        return str(out_of_memory("what this needs", error)), 1
    whose = "a fault of everyformer or of this machine" if where is None else "not of everyformer"
    return f"{describe(error)} ({whose}; --debug shows where)", 1


def _run(words: Sequence[str]) -> int:
    if not words or words[0] in ("-h", "--help"):
        rows = [f"  {name:<10} {what}" for name, what in VERBS.items()]
        print(HELP.format(verbs="\n".join(rows)))
        return 0 if words else 2
    if words[0] == "--version":
        from everyformer import __version__

        print(f"everyformer {__version__}")
        return 0
    if words[0] == COMPLETION:
        from everyformer.cli.completion import script

        print(script(words[1] if len(words) > 1 else "", VERBS))
        return 0
    if words[0] not in VERBS:
        raise unknown("verb", words[0], VERBS)
    keep_freed_memory()
    from everyformer.cli.parsing import Finished, take
    from everyformer.family import register_spec

    spec, words = take(words, "--plugin", "a class, as module:Class or path/file.py:Class")
    while spec is not None:
        with status(f"still importing {spec.rpartition(':')[0]}, Ctrl-C stops"):
            register_spec(spec)
        spec, words = take(words, "--plugin")
    verb = importlib.import_module(f"everyformer.cli.verbs.{words[0]}")

    try:
        code: int = verb.run(words[1:])
    except Finished:
        return 0
    return code


def _require_streams() -> None:
    """Streams that were closed (`>&-`) lead nowhere, lest the next file that is opened takes their
    place, and a character that the terminal cannot show ends nothing."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.dup2(os.open(os.devnull, os.O_RDWR), number)
        if getattr(sys, name) is None:
            mode = "w" if number else "r"
            setattr(sys, name, os.fdopen(number, mode, encoding="utf-8", closefd=False))
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.errors == "strict":
            stream.reconfigure(errors="backslashreplace")


def _drop_output() -> None:
    """Output still to be written to stdout goes nowhere, lest the interpreter fail on it again."""
    with contextlib.suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _warn(message: Warning | str, *source: Any, **rest: Any) -> None:
    """One sentence, without the line of the library that gave it."""
    print(f"everyformer: {message}", file=sys.stderr)
