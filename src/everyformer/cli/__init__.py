"""The command line: `everyformer VERB ...`, one file a verb, each a function with typed options.

Nothing heavy is imported before a verb is known, so that `everyformer --help` answers at once.
Exit codes: 0 done, 1 the job ran and a check failed, 2 wrong usage or configuration, 130 and 143
stopped by Ctrl-C or SIGTERM. Errors are one sentence on stderr; `--debug` shows the traceback.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence

from everyformer.core.errors import EveryformerError, unknown

VERBS: dict[str, str] = {
    "list": "see what exists, filtered by what you need",
    "info": "one member: paper, genes, options, cost, claim",
    "train": "train a member on your data",
    "eval": "measure a trained run, on its own or on other data",
    "generate": "continue a prompt with a trained language model",
    "compare": "compare several members on your data, on equal footing",
    "verify": "check every law on this machine, in a dtype of your choice",
    "bench": "time and memory against length, beside plain attention and peers",
    "show": "draw what a run has learned, or what a member starts from",
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

`everyformer VERB --help` explains each; `--debug` shows tracebacks; `--version` the version."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one verb; returns the exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in words
    words = [word for word in words if word != "--debug"]
    if not words or words[0] in ("-h", "--help"):
        rows = [f"  {name:<10} {what}" for name, what in VERBS.items()]
        print(HELP.format(verbs="\n".join(rows)))
        return 0 if words else 2
    if words[0] == "--version":
        from everyformer import __version__

        print(f"everyformer {__version__}")
        return 0
    try:
        if words[0] not in VERBS:
            raise unknown("verb", words[0], VERBS)
        verb = importlib.import_module(f"everyformer.cli.{words[0]}")
        return verb.run(words[1:])
    except EveryformerError as error:
        if debug:
            raise
        print(f"everyformer: {error}", file=sys.stderr)
        return error.exit_code
    except BrokenPipeError:
        # the reader of our output has gone (| head); nothing is left to say
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        if debug:
            raise
        print("everyformer: interrupted", file=sys.stderr)
        return 130
