"""Lengths, order and determinism: what a model does with what it may be given."""

import torch
from torch import Tensor

from sequence_laws.foreign import FAILURES, cut, describe
from sequence_laws.inputs import seed
from sequence_laws.limits import beyond as beyond_limits
from sequence_laws.processes import processes
from sequence_laws.subject import TRIED, Subject
from sequence_laws.verdict import Inapplicable, LawBroken, OutputsError, ShortError

RUNS = 3
"""with the same random numbers; two may draw the same from a generator that nobody seeds"""


def lengths(subject: Subject) -> str:
    """One input, odd lengths and one beyond the longest: a right answer or a clear error.

    An answer is right if it is finite, has an output for each input (what a causal model answers to
    fewer inputs is looked at by causality), and tells the order of inputs beyond a limit where it
    does within. An error is clear if it names a length, a limit or a multiple.

    Raises:
        LawBroken: an error that says nothing, or an answer that is not right.
        Inapplicable: positions beyond a limit repeat others: that is reported.
    """
    taken, longest = subject.lengths(), subject.max_length()
    if not taken:
        raise Inapplicable("it takes no length from 1 to 65", "undecided")
    beyond = [longest + 1] if longest is not None and longest <= 128 else []
    beyond += [length for length in TRIED if length > taken[-1]][:1]
    refused = []
    for length in sorted({1, 2, 3, 5, 9, 17, 33, *beyond}):
        x = subject.inputs.draw(1, length)
        try:
            y = subject.again().exact(x)  # of one that has seen no other length
        except ShortError as error:
            raise LawBroken(
                f"gives {error.outputs} outputs for {length} inputs, without a word",
                subject.code(
                    subject.inputs.code(1, length),
                    f"print({length} - {subject.call_code('x')}.shape[1])  # not 0",
                ),
            ) from error
        except OutputsError as error:  # which is no word of the model's
            raise LawBroken(
                f"at length {length}: {error}",
                subject.code(
                    subject.inputs.code(1, length),
                    f"print(tuple({subject.call_code('x')}.shape))  # not (1, {length}, ...)",
                ),
            ) from error
        except Exception as error:  # whatever a model says of a length
            refused.append(length)
            if not clear(error, length):
                says = f"{type(error).__name__}: {cut(str(error))[:150]}"
                limit = f" (its limit: {longest})" if longest and length > longest else ""
                raise LawBroken(
                    f"length {length}{limit} ends in an error that names no length: {says}",
                    subject.code(subject.inputs.code(1, length), subject.call_code("x")),
                ) from error
            continue
        if not torch.isfinite(y).all():
            raise LawBroken(
                f"outputs at length {length} are not finite",
                subject.code(
                    subject.inputs.code(1, length), f"print({subject.call_code('x')}.isfinite())"
                ),
            )
    some = f"takes {taken[0]} to {taken[-1]}"
    some += " of those tried" * any(length > taken[-1] for length in refused)
    which = (f"{length}{' (its limit)' * (length == longest)}" for length in refused)
    some += f"; refuses {', '.join(which)} clearly" if refused else ""
    repeats = beyond_limits(subject) if subject.doubles else ""
    if repeats:  # an answer that is neither right nor lost
        raise Inapplicable(some + repeats, "reported")
    return some


def clear(error: Exception, length: int) -> bool:
    """True if an error tells a user that the length is at fault."""
    text = str(error).lower()
    words = ["length", "sequence", "position", "multiple", "divisible", "context", "too long"]
    words += [str(length)] if length > 9 else []  # smaller numbers stand in any message
    return not isinstance(error, IndexError) and any(word in text for word in words)


def order(subject: Subject) -> str:
    """Part that the order of inputs has: reported, not judged."""
    length = subject.usual()
    x, turned = subject.inputs.draw(1, length), torch.arange(length).roll(2).flip(0)
    if subject.pools:
        off = (subject.exact(x[:, turned]) - subject.exact(x)).abs().max()
    elif subject.causal:  # the last output has seen all
        turned = torch.cat((turned[turned != length - 1], torch.tensor([length - 1])))
        off = (subject.exact(x[:, turned]) - subject.exact(x))[:, -1].abs().max()
    else:
        off = (subject.exact(x[:, turned]) - subject.exact(x)[:, turned]).abs().max()
    sees = float(off) > subject.bound(x)
    detail = "it sees the order of its inputs" if sees else "it sees no order: inputs are a set"
    raise Inapplicable(detail, "reported")


def determinism(subject: Subject) -> str:
    """Equal inputs and random numbers give equal outputs, in evaluation and in training, in
    evaluation also after inputs of another length; of a `strict` subject a training that is saved
    and resumed has the losses of one that is not; of a deep look the same in other processes.

    Raises:
        LawBroken: they do not.
    """
    for training in (False, True) if subject.doubles else (False,):
        x = subject.inputs.draw(2, subject.usual(training))
        first, *others = (subject.exact(x, training=training) for _ in range(RUNS))
        if not all(torch.equal(first, y) for y in others):
            mode = "training" if training else "evaluation"
            off = max(float((first - y).abs().max()) for y in others)
            raise LawBroken(
                f"two runs in {mode} with the same random numbers differ by {off:.2g}",
                subject.code(
                    subject.inputs.code(2, x.shape[1]),
                    "def run():",
                    "    torch.manual_seed(0)",
                    f"    return {subject.call_code('x')}.detach()",
                    "y = run()",
                    f"off = [float((run() - y).abs().max()) for _ in range({RUNS - 1})]",
                    "print(max(off))  # not 0",
                    training=training,
                ),
            )
    after = remembers(subject) if subject.doubles else ""
    x = subject.inputs.draw(2, subject.usual())
    resumed = f"; {resumes(subject, x)}" if subject.strict and subject.doubles else ""
    draws = subject.doubles and random(subject, x)
    drawn = " (it draws random numbers in evaluation)" if draws else ""
    deep = subject.depth == "deep" and subject.doubles
    elsewhere = processes(subject, x) if deep else ""
    said = "same inputs and random numbers, same outputs"
    return said + after + drawn + resumed + elsewhere


def remembers(subject: Subject) -> str:
    """What a model gives in evaluation is the same whether it is the first that it sees, or comes
    after shorter or longer inputs, from which it may have kept a mask, a table or a scale.

    Raises:
        LawBroken: it is not, or fails then.
    """
    every = [length for length in subject.lengths() if 1 < length <= TRIED[-1]]
    if len(every) < 2:
        return ""
    short, long = every[0], every[-1]
    for before, length in ((short, long), (long, short)):
        x, model = subject.inputs.draw(2, length), subject.copy()
        with torch.no_grad(), subject.exactly():
            alone = subject.run(subject.copy(), subject.widened(x))
        try:
            with torch.no_grad(), subject.exactly():
                subject.run(model, subject.widened(subject.inputs.draw(2, before)))
                y = subject.run(model, subject.widened(x))
        except FAILURES as error:
            what = f"fails after inputs of length {before}: {describe(error)}"
        else:
            off = float((y - alone).abs().max())
            if torch.equal(y, alone) or off <= subject.bound(x):
                continue
            what = f"are off by {off:.2g} after inputs of length {before}"
        fails = what.startswith("fails")
        raise LawBroken(
            f"{'a model that takes' if fails else 'outputs of'} length {length} {what}: what it "
            "sees first is kept",
            subject.code(
                "import copy",
                subject.inputs.code(2, before).replace("x =", "before =", 1),
                subject.inputs.code(2, length),
                "first = copy.deepcopy(model)",
                subject.call_code("before"),
                f"y = {subject.call_code('x')}{'  # fails' * fails}",
                "model = first",
                f"print((y - {subject.call_code('x')}).abs().max())  # not 0",
            ),
        )
    return f", also after other lengths ({short}, {long})"


def resumes(subject: Subject, x: Tensor) -> str:
    """Losses of four steps are equal, also where weights and optimiser come from files after two.

    Raises:
        LawBroken: they are not.
    """
    whole = losses(subject, x, stop=None)
    for stop, run in ((None, "two equal runs"), (2, "a run and one that was resumed")):
        off = float((losses(subject, x, stop) - whole).abs().max())
        if not off <= subject.bound(x):
            raise LawBroken(f"losses of {run} differ by {off:.2g}")
    return "a training resumes as it was"


def losses(subject: Subject, x: Tensor, stop: int | None) -> Tensor:
    """Of four steps of a training, which is stored and read before step ``stop``."""
    model, wide, found = subject.copy(training=True), subject.widened(x), []
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for step in range(4):
        if step == stop:
            moments = optimiser.state_dict()
            model = subject.stored(model, subject.copy(training=True)).train()
            optimiser = torch.optim.AdamW(model.parameters(), lr=1e-2)
            optimiser.load_state_dict(moments)
        subject.seed(step)
        with subject.exactly():
            loss = subject.objective(model, wide)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        found.append(loss.detach())
    return torch.stack(found)


def random(subject: Subject, x: Tensor) -> bool:
    """True if outputs in evaluation depend on random numbers."""
    ys = []
    for number in (0, 1):
        with torch.no_grad(), subject.exactly():
            model, wide = subject.copy(), subject.widened(x)
            seed(number)
            ys.append(subject.called(model, wide))
    return not torch.equal(*ys)
