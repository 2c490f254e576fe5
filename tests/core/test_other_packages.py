"""What other packages offer by entry points: rows of the family, and alternatives of genes."""

import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

import everyformer as ef
from everyformer import family
from everyformer.blocks.residual import SingleStream
from everyformer.checks.verify import check_law
from everyformer.core.errors import ConfigError, PluginError
from everyformer.core.leaks import leak_of
from everyformer.genes import GENES

ROW = """
import dataclasses
from everyformer.family import FAMILY
ROW = dataclasses.replace(FAMILY[0], name="theirs")
"""
FEED = """
import torch
from everyformer.blocks.feedforward import FeedForward

class Feed(FeedForward):
    name = "feed"

    def build(self, width):
        self.down = torch.nn.Linear(width, width)

    def forward(self, x, mask=None, state=None):
        return GIVEN
"""
PLACE = """
import torch
from everyformer.core.config import NoOptions
from everyformer.core.position import Position

class Place(Position):
    name, Options, acts_on, width = "place", NoOptions, "embeddings", 8

    def embed(self, positions):
        return GIVEN
"""
JOIN = """
from everyformer.blocks.residual import SingleStream

class Join(SingleStream):
    name = "join"

    def read(self, stream, around):
        return around.norm(stream)

    def join(self, stream, y, around):
        return GIVEN
"""
GENE = {"feed": ("feedforward", FEED), "place": ("position", PLACE), "join": ("residual", JOIN)}
"""the kind and the code of a gene of theirs, by name"""
SIZES = {"width": 8, "heads": 2, "layers": 1, "max_length": 9, "vocabulary": 9}
Offer = Callable[..., Path]


@pytest.fixture
def offer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Offer]:
    """Installs a package whose module holds a text, with one entry point; gives the module."""

    def install(entry: str, text: str = ROW, group: str = "members") -> Path:
        about = tmp_path / "their_package-1.0.dist-info"
        about.mkdir()
        (about / "METADATA").write_text("Metadata-Version: 2.1\nName: their-package\nVersion: 1.0")
        (about / "entry_points.txt").write_text(f"[everyformer.{group}]\n{entry}\n")
        module = tmp_path / f"{entry.split('=')[1].split(':')[0].strip()}.py"
        module.write_text(text)
        monkeypatch.syspath_prepend(tmp_path)
        family._known.cache_clear()
        return module

    yield install
    for file in tmp_path.glob("*.py"):
        sys.modules.pop(file.stem, None)
    family._known.cache_clear()
    for gene in GENES.values():
        for name, cls in [*gene.alternatives._entries.items()]:
            if not cls.__module__.startswith("everyformer."):
                gene.alternatives.forget(name)


def test_a_row_of_another_package_comes_last(offer: Offer) -> None:
    offer("theirs = their_row:ROW", ROW)
    assert [m.name for m in family.list_members()] == [m.name for m in family.FAMILY] + ["theirs"]
    assert family.info("theirs").title == family.FAMILY[0].title


@pytest.mark.parametrize(
    ("entry", "text", "said"),
    [
        ("attention = their_row:ROW", ROW, "is there already"),
        ("theirs = their_row:ROW", "1 / 0", "fails as it is imported: .*division"),
        ("theirs = their_row:ROW", "ROW = 3", "is no `Member` of that name, but 3"),
        ("others = their_row:ROW", ROW, "is no `Member` of that name, but Member"),
    ],
)
def test_what_is_no_row_names_its_package(entry: str, text: str, said: str, offer: Offer) -> None:
    offer(entry, text)
    named = (
        rf"the member '{entry.split()[0]}' of the package 'their-package' \({entry.split()[2]}\)"
    )
    with pytest.raises((ConfigError, PluginError), match=f"^{named} {said}"):
        family.info("attention")


PLAIN = 'class Other:\n    name = "other"\n'
KINDS = {
    "mixer": "mixers", "position": "positions", "memory": "memories", "depth": "depths",
    "retrieval": "retrievals", "feedforward": "feedforwards", "residual": "residuals",
}  # fmt: skip


def test_every_gene_has_a_group_of_entry_points() -> None:
    assert {gene.alternatives.kind for gene in GENES.values()} == {*KINDS}


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_no_alternative_of_a_gene_names_its_package(kind: str, offer: Offer) -> None:
    offer("other = their_part:Other", PLAIN, KINDS[kind])
    said = rf"^the {kind} 'other' of the package 'their-package' \(.*\) is no {kind}: derive a "
    with pytest.raises(ConfigError, match=f"{said}class from everyformer"):
        GENES[kind].alternatives.get("other")


def test_a_gene_that_calls_itself_otherwise_is_refused(offer: Offer) -> None:
    offer("other = their_part:Place", PLACE, "positions")
    said = "the position 'other' of the package .* calls itself 'place': both names must be the"
    with pytest.raises(ConfigError, match=said):
        ef.create_model("attention", position="other", **SIZES)


@pytest.mark.parametrize(("kind", "name"), [("position", "rope"), ("mixer", "by-head")])
def test_a_gene_called_like_one_of_this_library_is_refused(
    kind: str, name: str, offer: Offer
) -> None:
    offer(f"{name} = their_part:Place", PLACE, KINDS[kind])
    said = f"the {kind} '{name}' of the package 'their-package' .* is there already: it must choose"
    with pytest.raises(ConfigError, match=said):
        GENES[kind].alternatives.names()


@pytest.mark.parametrize(
    ("name", "given", "said"),
    [
        ("feed", "x[:, :1], None", r"y \(2, 1, 8\) of float32 on cpu, not \(2, 5, 8\), for x"),
        ("feed", "x", r"a Tensor, not a pair \(y, state\)"),
        ("feed", "None, None", "None as y, not a tensor"),
        ("place", "torch.ones(1, 5, 1)", r"y \(1, 5, 1\) of float32 on cpu, not \(1, 5, 8\)"),
        ("place", "torch.ones(5, 8)", r"y \(5, 8\) of float32 on cpu, not \(2, 5, 8\)"),
        ("join", "None", "None as y, not a tensor"),
        ("join", "y[:1]", r"y \(1, 5, 8\) of float32 on cpu, not \(2, 5, 8\)"),
    ],
)
def test_what_a_gene_gives_is_refused_in_its_name(
    name: str, given: str, said: str, offer: Offer
) -> None:
    kind, text = GENE[name]
    module = offer(f"{name} = their_part:{name.title()}", text.replace("GIVEN", given), f"{kind}s")
    model = ef.create_model("attention", **{kind: name}, **SIZES)
    at = rf"{re.escape(str(module))}, line \d+, {name.title()}\.\w+"
    with pytest.raises(PluginError, match=rf"^the {kind} '{name}' \({at}\) gave {said}"):
        model(torch.arange(10).view(2, 5) % 9)


@pytest.mark.parametrize(
    ("name", "given", "output", "token"),
    [
        ("feed", "self.down(x), None", None, None),
        ("feed", "self.down(x).roll(-1, 1), None", 0, 1),
        ("join", "stream + y", None, None),
        ("join", "stream + y + y.flip(1)", 0, 1),
        ("join", "stream + y.mean(1, keepdim=True)", 0, 1),
    ],
)
@pytest.mark.parametrize("member", ["attention", "transformer"])
def test_a_gene_that_reads_later_tokens_is_found_out(
    name: str, given: str, output: int | None, token: int | None, member: str, offer: Offer
) -> None:
    kind, text = GENE[name]
    module = offer(f"{name} = their_part:{name.title()}", text.replace("GIVEN", given), f"{kind}s")
    model = ef.create_model(member, family.info(member).tasks[0], **{kind: name}, **SIZES)
    said = leak_of(model.train(), 9)
    if output is None:
        assert said is None
        return
    assert said is not None
    assert said.startswith(f"output {output} of the layers with {kind} '{name}' ({module}, line ")
    assert said.endswith(f"changes with tokens from {token} on, which come later")
    assert all(part.training for part in model.modules())


def test_layers_that_read_both_ways_by_right_do_not_leak(offer: Offer) -> None:
    offer("join = their_part:Join", JOIN.replace("GIVEN", "stream + y.flip(1)"), "residuals")
    model = ef.create_model("attention", "classify-text", residual="join", classes=2, **SIZES)
    assert leak_of(model, 9) is None


def test_a_package_that_offers_a_wiring_is_read_with_a_warning(offer: Offer) -> None:
    text = JOIN.replace("GIVEN", "stream - y").replace("residual", "wiring")
    offer("join = their_part:Join", text.replace("SingleStream", "Residual"), "wirings")
    with pytest.warns(FutureWarning) as told:
        model = ef.create_model("attention", residual="join", **SIZES)
    said = [str(warning.message) for warning in told]
    assert "in the group everyformer.wirings, which is everyformer.residuals now" in said[0]
    assert "wiring.Residual is everyformer.blocks.residual.SingleStream now" in said[1]
    assert isinstance(model.stack.residual, SingleStream)


@pytest.mark.full("6 s each: a law of every position and depth")
@pytest.mark.parametrize("group", ["positions", "depths"])
def test_laws_of_a_member_draw_what_this_library_has(group: str, offer: Offer) -> None:
    offer("broken = nowhere:Nothing", "1 / 0", group)
    found = check_law(family.info("attention"), "conditions")
    assert found.status == "held", found.detail
