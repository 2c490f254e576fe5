"""The member pages are made of what stands elsewhere, and stand in the repository as made."""

from pathlib import Path

import pytest

import everyformer as ef
from everyformer.genes import named_genes
from everyformer.lab import pages

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.full("9 s: every page is made, which the next test does for some")
def test_every_member_has_a_page_with_its_options_laws_and_experiments(tmp_path):
    pages.write_pages(tmp_path)
    for member in ef.list_members():
        text = (tmp_path / "members" / f"{member.name}.md").read_text()
        assert member.title in text
        assert member.cost.formula in text
        assert "## Laws" in text
        assert "### " in text, "an experiment"
        for gene, choice in named_genes(member).items():
            if choice.name and pages.home(gene, choice.name) == member.name:
                assert all(f"| `{option}` |" in text for option in choice.options)


def test_genes_that_are_no_members_subject_have_a_page_for_each_alternative():
    index = pages.overview({})
    assert ("residual", "gated") not in pages.around_layers()
    for gene, name in (("depth", "repeat"), ("residual", "reversible"), ("residual", "pre")):
        assert f"[{name}]({gene}-{name}.md)" in index
        text = pages.gene_page(gene, name)
        assert f"--{gene} {name}" in text
        assert "## Laws" in text
        call = next(line for line in text.split("\n") if line.startswith("model = "))
        found: dict = {}
        exec(f"import everyformer as ef\n{call}", found)
        choice = found["model"].config.genes[gene]
        assert choice.name == name
        assert all(f"| `{option}` |" in text for option in choice.options)
    assert "step t N + n of T N applies block n" in pages.gene_page("depth", "repeat")


def test_the_pages_in_the_repository_are_up_to_date():
    recorded = pages.results(DOCS / "results")
    measured = pages.board(DOCS)
    for member in ef.list_members():
        path = DOCS / "members" / f"{member.name}.md"
        assert path.read_text() == pages.page(member, recorded, measured), (
            f"run `make docs` ({path.name})"
        )
    for gene, name in pages.around_layers():
        path = DOCS / "members" / f"{gene}-{name}.md"
        assert path.read_text() == pages.gene_page(gene, name), f"run `make docs` ({path.name})"
    there = {path.stem for path in (DOCS / "members").glob("*.md")} - {"README"}
    alone = {f"{gene}-{name}" for gene, name in pages.around_layers()}
    assert there == {member.name for member in ef.list_members()} | alone
    assert (DOCS / "members" / "README.md").read_text() == pages.overview(recorded)
    readme = (DOCS.parent / "README.md").read_text(encoding="utf-8")
    assert readme == pages.with_groups(readme), "run `make docs` (README.md)"
    assert len(readme.splitlines()) <= 100


def test_every_recorded_result_names_its_command_and_its_figures():
    for result in pages.results(DOCS / "results").values():
        assert result["command"].startswith(f"everyformer reproduce {result['experiment']}")
        assert result["scale"] == 1.0
        for figure in result["figures"]:
            assert (DOCS / "results" / figure).exists()
