"""Rows of probes: a literal solver that reads inputs alone gives every answer."""

import itertools
import math

import numpy as np
import pytest

from everyformer.core.errors import ConfigError
from everyformer.lab.suites.kind import PROBES
from everyformer.lab.suites.mad import Memorization
from everyformer.lab.suites.probe import BLOCK

IGNORED = -100


def probe_of(name, seed=0, **options):
    cls = PROBES[name]
    return cls(cls.Options(**options), seed)


def rows(probe, count=256, held_out=True, seed=0):
    return probe.make(np.random.default_rng(seed), count, held_out)


def recalled(probe, tokens, pairs):
    """Values of keys that were seen before in (place of the value, key, value), by place."""
    table, found = {}, {}
    for place, key, value in pairs:
        if key in table:
            found[place] = table[key]
        table.setdefault(key, value)
    return found


def solve_recall(probe, x):
    keys = [
        (2 * n, x[2 * n], x[2 * n + 1] if 2 * n + 1 < len(x) else None)
        for n in range(probe.options.length // 2)
    ]
    return recalled(probe, x, [pair for pair in keys if pair[1] < probe.answers])


def solve_fuzzy(probe, x):
    half, pad = probe.answers, probe.vocabulary - 1
    x = list(x)
    start = next(n for n, token in enumerate(x) if token != pad)
    runs = [
        (kind, [n for n, _ in group])
        for kind, group in itertools.groupby(enumerate(x[start:], start), lambda p: p[1] >= half)
    ]
    # keys and values by turns, the last one a key, or a key and all but the end of its value
    if not runs[-1][0]:
        runs.append((True, []))
    table = {}
    for (_, key), (_, value) in zip(runs[:-2:2], runs[1:-2:2], strict=True):
        table[tuple(x[n] for n in key)] = [x[n] for n in value]
    last = table[tuple(x[n] for n in runs[-2][1])]
    first = runs[-2][1][-1]
    return {first + n: token for n, token in enumerate(last)}


def solve_copying(probe, x):
    sign = list(x).index(probe.vocabulary - 1)
    content = [t for t in x[:sign] if t < probe.vocabulary - 2]
    return {sign + 1 + n: t for n, t in enumerate(content)}


def solve_memory(probe, x):
    return {n + 1: probe.table[key] for n, key in enumerate(x) if n % 2 == 0}


def solve_compression(probe, x):
    sign = list(x).index(probe.vocabulary - 1)
    return {n: x[n] for n in range(sign)}


def solve_mqar(probe, x):
    """Keys behind the pairs; fillers may look like them, so that more is answered than asked."""
    o, size = probe.options, 3 if probe.options.grid else 2
    shown = (1 if o.stacked else size) * (o.pairs + o.updates)
    table = {}
    for n in range(0, shown, 1 if o.stacked else size):
        if o.stacked:
            key, value = divmod(x[n] - o.symbols, o.symbols // 2)
            table[key,] = o.symbols // 2 + value
        else:
            table[tuple(x[n : n + size - 1])] = x[n + size - 1]
    found = {}
    for n in range(shown, len(x) - size + 2):
        key = tuple(x[n : n + size - 1])
        if key in table:
            found[n + size - 2] = table[key]
    return found


def solve_sum(probe, x):
    return {n: sum(x[: n + 1]) % probe.vocabulary for n in range(len(x))}


def solve_permutations(probe, x):
    every = [*itertools.permutations(range(probe.things))]
    things, found = list(range(probe.things)), {}
    # x_1 x_2 ... x_n does x_n first: each thing goes through all, the last one first
    for n in range(len(x)):
        result = []
        for thing in things:
            for element in reversed(x[: n + 1]):
                thing = every[element][thing]
            result.append(thing)
        found[n] = every.index(tuple(result))
    return found


def solve_induction(probe, x):
    first = list(x).index(probe.vocabulary - 1)
    return {len(x) - 1: x[first + 1]}


def solve_marked(probe, x):
    mark = probe.vocabulary - 3
    sign = list(x).index(mark + 1)
    content = [x[n + 1] for n in range(sign) if x[n] == mark]
    return {sign + 1 + n: t for n, t in enumerate(content)}


def solve_needle(probe, x):
    o, size = probe.options, 2 + probe.options.values
    begin, key = len(x) + 1 - size, probe.vocabulary - 1
    starts = [n for n in range(begin) if x[n] == key]
    [at] = [n for n in starts if x[n + 1] == x[begin + 1]]
    return {begin + 1 + n: x[at + 2 + n] for n in range(o.values)}


CASES = [
    ("mad:recall", {}, solve_recall),
    ("mad:recall", {"symbols": 128, "length": 512}, solve_recall),
    ("mad:noisy", {}, solve_recall),
    ("mad:noisy", {"share": 0.8, "symbols": 48}, solve_recall),
    ("mad:fuzzy", {}, solve_fuzzy),
    ("mad:fuzzy", {"symbols": 64, "length": 96}, solve_fuzzy),
    ("mad:copying", {}, solve_copying),
    ("mad:copying", {"last_before": True, "length": 40}, solve_copying),
    ("mad:memorization", {}, solve_memory),
    ("mad:compression", {}, solve_compression),
    ("mqar", {}, solve_mqar),
    ("mqar", {"fillers": False, "power": 1.0, "pairs": 8}, solve_mqar),
    ("mqar", {"updates": 2, "symbols": 64}, solve_mqar),
    ("mqar", {"stacked": True, "symbols": 64, "updates": 1}, solve_mqar),
    ("mqar", {"grid": True, "pairs": 9, "symbols": 128}, solve_mqar),
    ("state:parity", {}, solve_sum),
    ("state:sum", {"longest": 60}, solve_sum),
    ("state:s3", {"length": 12, "longest": 20}, solve_permutations),
    ("state:s5", {"length": 12, "longest": 12}, solve_permutations),
    ("induction", {"times": 4}, solve_induction),
    ("selective-copy", {}, solve_marked),
    ("needle", {"times": 2}, solve_needle),
    ("needle", {"depth": 0.0}, solve_needle),
    ("needle", {"depth": 1.0}, solve_needle),
]


@pytest.mark.parametrize(("name", "options", "solve"), CASES)
def test_a_solver_that_reads_inputs_alone_gives_every_answer(name, options, solve):
    probe = probe_of(name, **options)
    inputs, targets = rows(probe, count=128)
    assert inputs.shape == targets.shape == (128, probe.length)
    assert inputs.min() >= 0
    assert inputs.max() < probe.vocabulary
    scored = 0
    for x, y in zip(inputs.tolist(), targets.tolist(), strict=True):
        wanted = {n: t for n, t in enumerate(y) if t != IGNORED}
        scored += len(wanted)
        found = solve(probe, x)
        assert {n: found[n] for n in wanted} == wanted
    assert scored >= 128


@pytest.mark.parametrize(("name", "options", "solve"), CASES)
def test_training_rows_end_as_held_out_ones_and_train_no_less(name, options, solve):
    """Where every next token is trained, those that are scored are among them."""
    probe = probe_of(name, **options)
    inputs, targets = rows(probe, held_out=False, count=16)
    assert inputs.shape[1] <= probe.length
    assert (targets != IGNORED).any(1).all()
    if not probe.both_ways:
        assert (targets[:, :-1] == inputs[:, 1:]).all()


def test_statistics_are_those_of_the_programs_of_the_papers():
    # places that are scored: 64 pairs less the first of each of 8 keys, or as many of 51
    for name, wanted in (("mad:recall", 56.0), ("mad:noisy", 43.2)):
        targets = rows(probe_of(name), count=1024).targets
        assert (targets != IGNORED).sum(1).mean() == pytest.approx(wanted, abs=0.4)
    # mean slots by the law of Plackett and Luce, of the four sizes of figure 2
    for (length, pairs), wanted in zip(
        ((64, 4), (128, 8), (256, 16), (512, 64)), (7.1, 14.1, 28.1, 61.4), strict=True
    ):
        probe = probe_of("mqar", length=length, pairs=pairs, symbols=8192)
        targets = rows(probe, count=2048).targets
        places = (targets != IGNORED).nonzero()[1]
        assert ((places - probe.shown) // 2).mean() == pytest.approx(wanted, rel=0.02)
    # earlier keys tend to nearer slots
    inputs, targets = rows(probe_of("mqar", length=256, pairs=16, symbols=8192), count=1024)
    order = [
        (inputs[:, 2 * n : 2 * n + 1] == inputs[:, 32:])[:, ::2].argmax(1).mean() for n in (0, 15)
    ]
    assert order[0] + 10 < order[1]


@pytest.mark.parametrize(
    ("name", "options", "level"),
    [
        ("mad:recall", {}, 0.31),
        ("mad:recall", {"symbols": 32}, 0.19),
        ("mad:recall", {"symbols": 128}, 0.09),
        ("mqar", {"pairs": 4}, 0.25),
        ("state:parity", {"from_length": 10, "longest": 10}, 0.55),
    ],
)
def test_shortcuts_are_what_such_a_rule_reaches(name, options, level):
    assert probe_of(name, **options).shortcut == pytest.approx(level, abs=0.012)


def test_the_rule_of_needles_reaches_its_level():
    """The value behind a needle drawn among all."""
    probe, random, hits = probe_of("needle"), np.random.default_rng(1), []
    inputs, targets = rows(probe, count=2048)
    for x, y in zip(inputs, targets, strict=True):
        starts = (x[: len(x) - 5] == 25).nonzero()[0]
        at = random.choice(starts)
        hits.append((x[at + 2 : at + 6] == y[-4:]).mean())
    # three standard errors of as many rows
    assert np.mean(hits) == pytest.approx(probe.shortcut, abs=0.03)


def test_asked_keys_and_answers_are_well_formed():
    inputs, targets = rows(probe_of("mqar", pairs=8, updates=3))
    for x, y in zip(inputs, targets, strict=True):
        assert len(set(x[0:16:2])) == 8
        assert len(set(x[1:16:2])) == 8
        asked = y != IGNORED
        assert asked.sum() == 8
        assert not (x[asked] == y[asked]).any()
    # an update is another value: of the eight that there are, in 256 rows
    inputs, _ = rows(probe_of("mqar", pairs=3, updates=3, length=32, symbols=16))
    for x in inputs:
        old = dict(zip(x[0:6:2], x[1:6:2], strict=True))
        assert all(old[key] != new for key, new in zip(x[6:12:2], x[7:12:2], strict=True))
    inputs, targets = rows(probe_of("mqar", pairs=9, grid=True))
    for x in inputs:
        first, second = x[0:27:3], x[1:27:3]
        assert len(set(first)) == len(set(second)) == 3
        assert len({*zip(first, second, strict=True)}) == 9


def test_needles_are_at_their_depth_and_anywhere():
    for depth, at in ((0.0, 0), (1.0, 64 - 6 - 6)):
        inputs, _ = rows(probe_of("needle", depth=depth, decoys=0))
        assert (inputs[:, at] == 25).all()
    inputs, _ = rows(probe_of("needle", decoys=0), count=4096)
    first = (inputs == 25).argmax(1)
    assert first.min() == 0
    assert first.max() == 52
    counts = np.bincount(first, minlength=53)
    assert ((counts - 4096 / 53) ** 2 / (4096 / 53)).sum() < 52 + 4 * math.sqrt(104)


def test_classes_are_balanced():
    _, targets = rows(probe_of("state:parity"), count=2048)
    for place in range(3):
        assert abs(targets[:, place].mean() - 0.5) < 4 * 0.5 / math.sqrt(2048)
    _, targets = rows(probe_of("state:s3"), count=2048)
    counts = np.bincount(targets[:, 2], minlength=6)
    assert (abs(counts - 2048 / 6) < 4 * math.sqrt(2048 / 6)).all()


def test_tables_of_memory_follow_the_seed_of_the_data():
    tables = [Memorization(Memorization.Options(), seed).table for seed in (0, 0, 1)]
    assert (tables[0] == tables[1]).all()
    assert (tables[0] != tables[2]).mean() > 0.9
    assert sorted(tables[0]) == list(range(127, 254))


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("mqar", {"pairs": 20}, "need a length of at least 80"),
        ("mqar", {"pairs": 8, "grid": True}, "a square of pairs, not 8"),
        ("mqar", {"pairs": 4, "updates": 5}, "updates=5 is more than pairs=4"),
        ("mqar", {"pairs": 9, "grid": True, "updates": 1}, "two variants"),
        ("mqar", {"pairs": 9, "grid": True, "stacked": True}, "two variants"),
        ("mqar", {"pairs": 16, "symbols": 20}, "need at least 34 symbols"),
        ("mad:recall", {"length": 7}, "no even one"),
        ("mad:noisy", {"symbols": 18}, "fewer than two answers"),
        ("mad:fuzzy", {"symbols": 8}, "too few"),
        ("mad:copying", {"length": 20}, "a length of 33"),
        ("state:s3", {"shortest": 50}, "above length=40"),
        ("needle", {"decoys": 8}, "as many other keys"),
        ("needle", {"length": 20}, "a length of 30"),
        ("induction", {"length": 3}, "below 4"),
    ],
)
def test_rows_that_cannot_be_are_refused(name, options, words):
    with pytest.raises(ConfigError, match=words):
        probe_of(name, **options)


def test_least_sizes_make_rows():
    for name, options in (
        ("mqar", {"pairs": 5, "length": 20, "symbols": 12}),
        ("mqar", {"pairs": 3, "updates": 3, "length": 18, "symbols": 8}),
        ("mqar", {"pairs": 4, "grid": True, "length": 24, "symbols": 12}),
        ("mad:recall", {"length": 6, "symbols": 4}),
        ("mad:fuzzy", {"length": 12, "symbols": 9}),
        ("mad:copying", {"length": 3, "content": 1, "symbols": 4}),
        ("state:s3", {"shortest": 1, "length": 1, "from_length": 1, "longest": 1}),
        ("needle", {"length": 30}),
        ("selective-copy", {"length": 4, "content": 1, "symbols": 5}),
        ("induction", {"length": 4, "symbols": 3}),
    ):
        probe = probe_of(name, **options)
        for held_out in (False, True):
            assert rows(probe, BLOCK, held_out).inputs.shape[0] == BLOCK


def test_chance_is_one_of_the_tokens_that_may_be_an_answer():
    """Of the default vocabularies, less the signs, by hand."""
    answers = {
        "mad:recall": 8, "mad:noisy": 8, "mad:fuzzy": 7, "mad:copying": 14, "mad:memorization": 127,
        "mad:compression": 15, "mqar": 128, "induction": 19, "selective-copy": 15, "needle": 17,
        "state:parity": 2, "state:sum": 5, "state:s3": 6, "state:s5": 120,
    }  # fmt: skip
    assert {name: probe(probe.Options()).answers for name, probe in PROBES.items()} == answers
