"""What is done with a cache between pieces: rows that change places or start over, inputs that are
taken back, branches, gradients, and padding on the left."""

import copy
import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from sequence_laws.calls import crop_of
from sequence_laws.foreign import FAILURES, describe
from sequence_laws.inputs import seed
from sequence_laws.padding import real
from sequence_laws.subject import Subject
from sequence_laws.verdict import Inapplicable, LawBroken


def between(subject: Subject, lengths: Sequence[int]) -> Iterator[str]:
    """What each look at a cache between pieces found, at the shortest of some lengths and, of
    inputs taken back, at the longest."""
    short = lengths[0]
    yield reordered(subject, short)
    yield again(subject, short)
    yield taken_back(subject, short, lengths[-1])
    yield branches(subject, short)
    yield gradients(subject, short)
    try:
        yield padded(subject)
    except Inapplicable as reason:
        yield str(reason)


def follow(
    subject: Subject,
    model: nn.Module,
    x: Tensor,
    cuts: Sequence[int],
    cache: Any = None,
    padding_mask: Tensor | None = None,
) -> tuple[Tensor, Any]:
    """Outputs (B, L, channels) of the inputs between ``cuts``, in pieces, and the cache behind."""
    outputs = []
    for start, end in itertools.pairwise(cuts):
        seed(0)
        part = x[:, start:end]
        if padding_mask is None:
            y, cache = subject.feed(model, part, cache)
        else:
            y, cache = subject.feed_masked(model, part, cache, padding_mask[:, :end])
        if y.shape[:2] != part.shape[:2]:
            raise LawBroken(
                f"{end - start} inputs behind {start} give outputs of {tuple(y.shape)}: "
                f"expected {end - start} of them for each of {len(x)} rows"
            )
        outputs.append(y.flatten(2) if y.dim() > 2 else y[..., None])
    return torch.cat(outputs, 1), cache


def two_code(y: str, x: str, cuts: Sequence[int], cache: str = "cache") -> list[str]:
    """The Python of two pieces, whose outputs are ``y``."""
    start, middle, _ = cuts
    return [
        f"{y}, {cache} = feed({x}[:, {start}:{middle}], {cache})",
        f"{y} = torch.cat(({y}, feed({x}[:, {middle}:], {cache})[0]), 1)",
    ]


def difference(y: Tensor, expected: Tensor, bound: float) -> tuple[int, float] | None:
    """The first position at which outputs differ by more than rounding, and by how much."""
    off = (y - expected).abs().amax((0, 2))
    wrong = (~(off <= bound)).nonzero()[:1, 0].tolist()
    return (wrong[0], float(off[wrong[0]])) if wrong else None


def reordered(subject: Subject, length: int) -> str:
    """Rows that change places half-way (as beams do) go on as the rows that they are now."""
    # as many as hardly any other dimension of a cache
    x, rows, half = subject.inputs.draw(5, length), torch.tensor([2, 0, 0, 4, 1]), length // 2
    wide, model, cuts = subject.widened(x), subject.copy(), (half, length - 1, length)
    with torch.no_grad(), subject.exactly():
        _, cache = follow(subject, model, wide, (0, half))
        try:
            cache = subject.rows_of(cache, rows)
        except Inapplicable as reason:
            return str(reason)
        y, _ = follow(subject, model, wide[rows], cuts, cache)
    expected = subject.exact(x[rows])[:, half:]
    if wrong := difference(y, expected, subject.bound(x[:2])):
        raise LawBroken(
            f"after its rows were put in the order {rows.tolist()} at {half} of {length} inputs, "
            f"the cache gives outputs that are off by {wrong[1]:.2g} at {half + wrong[0]}",
            subject.code(
                subject.inputs.code(5, length),
                f"rows = torch.tensor({rows.tolist()})",
                *subject.feed_code(),
                f"_, cache = feed(x[:, :{half}], None)",
                *subject.rows_code(cache),
                *two_code("y", "x[rows]", cuts),
                f"print((y - {subject.call_code('x[rows]')}[:, {half}:]).abs().max())  # not 0",
            ),
        )
    return "rows in another order half-way"


def again(subject: Subject, length: int) -> str:
    """A row that starts over forgets, its neighbour continues, and a cache counts what it saw."""
    x, half = subject.inputs.draw(2, length), length // 2
    wide, model, rows = subject.widened(x), subject.copy(), torch.tensor([True, False])
    with torch.no_grad(), subject.exactly():
        _, cache = follow(subject, model, wide, (0, half))
        seen = subject.counted(cache)
        if seen not in ([], [half, half]):
            raise LawBroken(f"after {half} inputs the cache has seen {seen}, as it says")
        try:
            cache = subject.reset(cache, rows)
        except Inapplicable:
            return ""
        y, _ = follow(subject, model, wide, (half, length), cache)
    expected = subject.exact(x[:1, half:]), subject.exact(x[1:])[:, half:]
    for row in (0, 1):
        if wrong := difference(y[row : row + 1], expected[row], subject.bound(x)):
            words = "continues next to one that starts over" if row else "starts over"
            raise LawBroken(f"a row that {words} behind {half} inputs is off by {wrong[1]:.2g}")
    return "rows that start over"


def taken_back(subject: Subject, short: int, long: int) -> str:
    """Inputs that are cut off again (as rejected drafts are) leave no trace in the cache; in the
    longer text rows then change places."""
    for length in (short, long):
        x, half, rows = subject.inputs.draw(2, length), length // 2, torch.tensor([1, 0])
        draft = subject.inputs.other(x)[:, half : half + 3]
        wide, model = subject.widened(x), subject.copy()
        cuts, moved = (half, length - 1 if length == short else half + 1, length), False
        with torch.no_grad(), subject.exactly():
            _, cache = follow(subject, model, wide, (0, half))
            try:
                cache = subject.take_back(model, subject.widened(draft), cache, half)
                if length > short:
                    cache = subject.rows_of(cache, rows)
                    moved = True
            except Inapplicable as reason:
                if length == short:
                    return str(reason)
            y, _ = follow(subject, model, wide[rows] if moved else wide, cuts, cache)
        expected = subject.exact(x)[rows if moved else slice(None), half:]
        if wrong := difference(y, expected, subject.bound(x)):
            order, text = (
                (f"rows = torch.tensor({rows.tolist()})", "x[rows]") if moved else ("", "x")
            )
            crop = f"crop({crop_of(cache, half, draft.shape[1])})"
            raise LawBroken(
                f"output {half + wrong[0]} is off by {wrong[1]:.2g} after {draft.shape[1]} inputs "
                f"behind {half} were taken back with {crop}{' and rows changed places' * moved} "
                f"(length {length})",
                subject.code(
                    subject.inputs.code(2, length),
                    f"other = {subject.inputs.other_code()}",
                    *subject.feed_code(),
                    f"_, cache = feed(x[:, :{half}], None)",
                    *subject.record_code(),
                    f"_, cache = feed(other[:, {half}:{half + 3}], cache)",
                    f"cache.{crop}",
                    *([order, *subject.rows_code(cache)] if moved else []),
                    *two_code("y", text, cuts),
                    f"y = y - {subject.call_code(text)}[:, {half}:]",
                    f"print(y[:, {wrong[0]}].abs().max())  # not 0",
                ),
            )
    return "inputs taken back"


def branches(subject: Subject, length: int) -> str:
    """Two texts that continue one cache, in turns, do not meet: of a cache that is changed in
    place one continues a copy."""
    x, half = subject.inputs.draw(2, length), length // 2
    other = torch.cat((x[:, :half], subject.inputs.other(x)[:, half:]), 1)
    model, texts, cuts = (
        subject.copy(),
        (subject.widened(x), subject.widened(other)),
        (half, half + 1, length),
    )
    copied, uncopied = None, ""
    with torch.no_grad(), subject.exactly():
        _, cache = follow(subject, model, texts[0], (0, half))
        try:
            copied = copy.deepcopy(cache)
        except Exception as error:  # whatever it says of that
            uncopied = f"its cache, which is changed in place, cannot be copied: {describe(error)}"
        y, after = follow(subject, model, texts[0], cuts[:2], cache)
        in_place = after is cache
        if in_place and uncopied:
            return uncopied
        z, second = follow(subject, model, texts[1], cuts[:2], copied if in_place else cache)
        y = torch.cat((y, follow(subject, model, texts[0], cuts[1:], after)[0]), 1)
        z = torch.cat((z, follow(subject, model, texts[1], cuts[1:], second)[0]), 1)
    bound = subject.bound(x)
    for branch, text in ((y, x), (z, other)):
        if wrong := difference(branch, subject.exact(text)[:, half:], bound):
            raise LawBroken(
                f"output {half + wrong[0]} of one of two texts that continue "
                f"{'a cache and its copy' if in_place else 'one cache'} in turns is off by "
                f"{wrong[1]:.2g}: a state that is changed in place is shared",
                subject.code(
                    "import copy",
                    subject.inputs.code(2, length),
                    f"other = {subject.inputs.other_code()}",
                    f"other[:, :{half}] = x[:, :{half}]",
                    *subject.feed_code(),
                    f"_, cache = feed(x[:, :{half}], None)",
                    f"copied = {'copy.deepcopy(cache)' if in_place else 'cache'}",
                    f"y, one = feed(x[:, {half}:{half + 1}], cache)",
                    f"z, two = feed(other[:, {half}:{half + 1}], copied)",
                    f"y = torch.cat((y, feed(x[:, {half + 1}:], one)[0]), 1)",
                    f"z = torch.cat((z, feed(other[:, {half + 1}:], two)[0]), 1)",
                    f"print((y - {subject.call_code('x')}[:, {half}:]).abs().max(), "
                    f"(z - {subject.call_code('other')}[:, {half}:]).abs().max())  # not 0",
                ),
            )
    return "two branches of its cache" + ", which is changed in place, and of a copy" * in_place


def gradients(subject: Subject, length: int) -> str:
    """Gradients of later outputs to earlier inputs pass a cache as they pass one pass, or not at
    all, as where a state is detached.

    Raises:
        LawBroken: some of them do.
    """
    if not subject.doubles:
        return ""
    x, half, kept = subject.inputs.draw(2, length), length // 2, list[Any]()

    def first(model: nn.Module, part: Tensor) -> Tensor:
        y, cache = follow(subject, model, part, (0, half))
        kept.append(cache)
        return y

    share, wide = subject.share(x), subject.widened(x)
    with subject.exactly(), torch.enable_grad():
        try:
            leaves, y = subject.differentiable(subject.copy(), x)
            if not leaves:
                return ""
            weight = torch.randn(y[:, half:].shape, generator=torch.Generator().manual_seed(1))
            whole = _gradient(y[:, half:] * weight, leaves[0])[:, :half]
        except FAILURES:  # it has none in evaluation
            return ""
        try:
            model = subject.copy()
            leaves, _ = subject.differentiable(model, x[:, :half], first)
            y, _ = follow(subject, model, wide, (half, length), kept[0])
            passed = _gradient(y * weight, leaves[0]) if leaves else whole
        except FAILURES as error:
            return f"gradients do not pass its cache: {describe(error)}"
    largest = float(whole.abs().max())
    if not math.isfinite(largest):  # which is of the law "gradients"
        return ""
    if not bool(passed.any()):
        return "gradients do not pass its cache" if largest else ""
    off = (passed - whole).abs().amax((0, 2))
    if not bool((off <= share * largest).all()):
        at = int(off.argmax())
        raise LawBroken(
            f"gradients of outputs from {half} on to input {at} are off by {float(off[at]):.2g} "
            f"where a cache is between them (of {largest:.2g} in one pass): a part of it is "
            f"detached",
            _gradient_code(subject, length, half),
        )
    return "gradients pass it"


def _gradient(y: Tensor, leaf: Tensor) -> Tensor:
    """(B, L, d), of the sum of outputs."""
    if not y.requires_grad:
        return torch.zeros_like(leaf)
    (gradient,) = torch.autograd.grad(y.sum(), leaf, allow_unused=True)
    return torch.zeros_like(leaf) if gradient is None else gradient


def _gradient_code(subject: Subject, length: int, half: int) -> str:
    """Gradients of the later outputs, in one pass and in two pieces."""
    read, again = ["kept = [x.requires_grad_()]"], "x.grad = None"
    if subject.inputs.vocabulary is not None:
        again = "kept.clear()"
        read = [
            "table = next(m for m in model.modules() if isinstance(m, torch.nn.Embedding))",
            "kept = []",
            "table.register_forward_hook(lambda m, i, o: kept.append(o.retain_grad() or o))",
        ]
    return subject.code(
        subject.inputs.code(2, length),
        *read,
        *subject.feed_code(),
        f"{subject.call_code('x')}[:, {half}:].square().sum().backward()",
        f"whole = kept[0].grad[:, :{half}].clone()",
        again,
        f"_, cache = feed(x[:, :{half}], None)",
        f"feed(x[:, {half}:], cache)[0].square().sum().backward()",
        f"print((kept[0].grad[:, :{half}] - whole).abs().max())  # not 0",
        gradients=True,
    )


def padded(subject: Subject) -> str:
    """A row that is padded on the left and comes in pieces, its mask growing with it, is that row
    in a batch in one pass; also where it is given a mask of what is new alone, of one that takes
    both and whose cache holds a mask.

    Raises:
        LawBroken: the first real position that differs.
        Inapplicable: it takes no such mask, or none with a cache.
    """
    length = subject.usual()
    if not subject.streams or "left" not in subject.masks or length < 7:
        raise Inapplicable("")
    if not subject.feeds_masks:
        raise Inapplicable("no mask is taken with its cache")
    half = length // 2
    require_padded(subject, length, (0, half, half + 1, half + 2, length), "")
    if (new := subject.feeds_new) is None:
        return "a row padded on the left"
    # of one input a mask would be that of all
    cuts, words = (0, half, half + 2, length), ", each with a mask of its own,"
    try:
        require_padded(new, length, cuts, words)
    except LawBroken:
        if holds_mask(new, half):
            raise
        return "a row padded on the left; masks of what is new alone take what was read for real"
    return "a row padded on the left, with masks of all that was read and of what is new"


def holds_mask(subject: Subject, length: int) -> bool:
    """Whether a cache has a mask (B, L) of what it has read: ones, where nothing is padding."""
    x, ones = subject.inputs.draw(2, length), torch.ones(2, length, dtype=torch.bool)
    with torch.no_grad(), subject.exactly():
        cuts = (0, length)
        _, cache = follow(subject, subject.copy(), subject.widened(x), cuts, None, ones)
    masks = (t for t in tree_leaves(cache) if isinstance(t, Tensor) and t.shape == ones.shape)
    return any(bool((mask == 1).all()) for mask in masks)


def require_padded(subject: Subject, length: int, cuts: Sequence[int], words: str) -> None:
    """Raise `LawBroken` where a row that is padded on the left differs in pieces."""
    x, padding_mask = subject.inputs.draw(2, length), real(length, "left")
    try:
        expected = subject.exact(x, padding_mask)[1:, 2:]
    except FAILURES as error:  # which is the law of padding's
        raise Inapplicable("") from error
    bound = subject.bound(x, padding_mask)
    with torch.no_grad(), subject.exactly():
        row = subject.widened(x)[1:]
        y, _ = follow(subject, subject.copy(), row, cuts, None, padding_mask[1:])
    if wrong := difference(y[:, 2:], expected, bound):
        raise LawBroken(
            f"output {2 + wrong[0]} of a row with two padding inputs on the left, which comes in "
            f"pieces{words} that end at {', '.join(map(str, cuts[1:]))}, is off by {wrong[1]:.2g} "
            f"from that of one pass (rounding {bound:.0e})",
            subject.code(
                subject.inputs.code(2, length),
                f"padding_mask = torch.tensor({padding_mask.int().tolist()}).bool()",
                *subject.feed_masked_code(),
                "cache, pieces = None, []",
                f"cuts = {cuts}",
                "for start, end in zip(cuts, cuts[1:]):",
                "    y, cache = feed(x[1:, start:end], cache, padding_mask[1:, :end])",
                "    pieces.append(y)",
                f"y = {subject.call_code('x', 'padding_mask')}",
                f"print((torch.cat(pieces, 1) - y[1:])[:, {2 + wrong[0]}].abs().max())  # not 0",
            ),
        )
