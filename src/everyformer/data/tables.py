"""The tables of a source, and the columns that are read of them: chosen by options, known by their
names, or the other one of two. Where none of these tells, an error names the flag.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from everyformer.core.errors import ConfigError, DataError, nearest
from everyformer.core.wording import join_names
from everyformer.data.config import DataConfig
from everyformer.data.delimited import DelimitedTable
from everyformer.data.headers import (
    FIELDS,
    LABELS,
    LANGUAGES,
    TEXTS,
    are_numbers,
    two_languages,
)
from everyformer.data.sources import Entry, Source
from everyformer.data.table import JSON_LINES, PARQUET, Cells, JsonTable, ParquetTable, Table

ENOUGH_ROWS = 20
"""Rows from which on a column of many values is taken for no label, whatever its values."""


@dataclass(frozen=True)
class Role:
    """Role of a column in the data."""

    name: str
    """in notes; the option that chooses the column is called after it"""
    known: frozenset[str] = frozenset()
    """names of columns that have this role without doubt"""
    about: str = ""
    """the content, with names that would be known"""
    option: str = ""
    """the option that chooses the column, where it is called otherwise"""

    @property
    def flag(self) -> str:
        """The option that chooses the column."""
        return self.option or f"`data.{self.name}_column`"

    def chosen(self, table: Table, config: DataConfig) -> int | None:
        """The column that the option names, by its name or else its number; None: unset."""
        value = getattr(config, f"{self.name}_column")
        if value is None:
            return None
        names = table.lower
        indices = [index for index, name in enumerate(names) if name == value.strip().lower()]
        if len(indices) > 1:
            raise ConfigError(
                f"{table.where} has {len(indices)} columns called '{value}'; give {self.flag} the "
                f"number of one: {' or '.join(str(index + 1) for index in indices)}"
            )
        if indices:
            return indices[0]
        if value.isdecimal() and 1 <= int(value) <= table.width:
            return int(value) - 1
        hint = nearest(value.lower(), names) if names else "number them from 1"
        # without a close name all would be listed once more
        more = "" if hint.startswith("known: ") else f"; {hint}"
        raise ConfigError(
            f"{table.where} has no column '{value}' for {self.flag}, but {table.columns}{more}"
        )

    def find(self, table: Table, config: DataConfig, taken: int | None = None) -> int | None:
        """The column that is chosen, or the only one but ``taken`` whose name shows the role."""
        if (index := self.chosen(table, config)) is not None:
            return index
        indices = [i for i, name in enumerate(table.lower) if name in self.known and i != taken]
        if len(indices) > 1:
            raise ConfigError(
                f"{table.where} has {len(indices)} columns that could be the {self.name}, "
                f"{join_names([*map(table.column, indices)])}; choose with {self.flag} "
                f"{table.names[indices[0]]} or another"
            )
        return indices[0] if indices else None


TEXT = Role("text", TEXTS, "a text (text, sentence, review ...)")
LABEL = Role("label", LABELS, "a label (label, class, category ...)")
NUMBER = Role("label", LABELS, "a number (target, rating ...)")
SIDES = Role("source"), Role("target")
GROUP = Role("group", option="`data.split=group`")


def require(table: Table, found: dict[Role, int | None]) -> tuple[int, ...]:
    """The columns of these roles, all of which must be known by now."""
    if missing := [role for role, index in found.items() if index is None]:
        value = "NAME" if table.names else "NUMBER"
        numeric = TEXT in missing and any(map(are_numbers, zip(*table.sample, strict=True)))
        raise ConfigError(
            f"{table.where} has {table.columns}, and none is called like "
            f"{join_names([role.about for role in missing], 'or')}; choose "
            f"{'them' if len(missing) > 1 else 'it'} with "
            f"{join_names([f'{role.flag} {value}' for role in missing])}"
            f"{'' if table.names else ', from 1'}{FEATURES * numeric}"
            f"{' (pairs to translate take `task=seq2seq`)' * (table.width == 2)}"
        )
    indices = tuple(index for index in found.values() if index is not None)
    if len({*indices}) < len(indices):
        raise ConfigError(
            f"{join_names([role.name for role in found])} are both {table.column(indices[0])} of "
            f"{table.where}; choose two columns with {join_names([role.flag for role in found])}"
        )
    return indices


FEATURES = (
    " (rows of unordered columns are no sequence, and gradient boosting, scikit-learn's "
    "HistGradientBoostingClassifier or -Regressor, does them well; numbers that are a series in "
    "order, t1 to t96, are given as x (N, T, C) with y in an .npz)"
)


class TableReader:
    """Reads the same columns of every table of a source.

    Args:
        first: the table that the columns were chosen of.
        indices: the columns, counted from 0.
        roles: what each is read as, where that is reported.
    """

    def __init__(
        self,
        source: Source,
        config: DataConfig,
        first: Table,
        indices: Sequence[int],
        roles: Sequence[str] = (),
    ) -> None:
        self.source, self.config, self.first = source, config, first
        self.indices = tuple(indices)
        assigned = [
            f"{role} from {first.column(i)}" for role, i in zip(roles, indices, strict=False)
        ]
        self.notes = (*([", ".join(assigned)] if assigned else []), *first.notes)
        """remarks on what is read, half a sentence each"""

    def rows(self, entry: Entry) -> Iterator[Cells]:
        """The cells of every row of a table in the columns.

        Raises:
            DataError: a row that cannot be read, or a table without the columns of the first.
        """
        table, indices = self._alike(entry)
        for number, cells in table.rows(indices):
            yield Cells(table, number, indices, cells)

    def _alike(self, entry: Entry) -> tuple[Table, Sequence[int]]:
        """The table of an entry, and where it has the columns of the first."""
        first = self.first
        if entry.name == first.entry.name:
            return first, self.indices
        names = [first.names[index] for index in self.indices] if first.names else []
        header = replace(self.config, header="yes" if names else "no")
        table = open_table(self.source, header, entry)
        missing = [name for name in names if name.lower() not in table.lower]
        if missing or (not names and table.width != first.width):
            differs = (
                f"has no column '{missing[0]}', which {first.where} has, but {table.columns}"
                if missing
                else f"has {table.width} columns, {first.where} has {first.width}"
            )
            raise DataError(f"{table.where} {differs}; the tables of one source must be alike")
        return table, [table.lower.index(name.lower()) for name in names] or self.indices


def open_table(source: Source, config: DataConfig, entry: Entry) -> Table:
    """The table of an entry, as the options say that it is to be read."""
    if entry.suffix in JSON_LINES:
        return JsonTable(source, entry)
    if entry.suffix in PARQUET:
        return ParquetTable(source, entry)
    return DelimitedTable(source, entry, config)


def labelled_reader(source: Source, config: DataConfig, entry: Entry) -> TableReader:
    """Reader of text and label, by the columns of ``entry``'s table: chosen or obvious; a text may
    be the other of two columns, unless it is numbers."""
    table = open_table(source, config, entry)
    if table.width < 2:
        raise DataError(
            f"{table.where} has {table.columns}; to classify takes two, a text and a label, and "
            "to learn the text itself takes `task=lm` `data.text_column=1`"
        )
    label = LABEL.find(table, config, TEXT.chosen(table, config))
    text = TEXT.find(table, config, label)
    if table.width == 2 and text is None and label is not None:
        other = 1 - label
        text = None if are_numbers(row[other] for row in table.sample) else other
    columns = with_group(table, config, require(table, {LABEL: label, TEXT: text})[::-1])
    return TableReader(source, config, table, columns, ("text", "label"))


def text_reader(source: Source, config: DataConfig, entry: Entry) -> TableReader:
    """Reader of text alone, likewise."""
    table = open_table(source, config, entry)
    text = TEXT.find(table, config)
    if text is None and table.width == 1:
        text = 0
    return TableReader(source, config, table, require(table, {TEXT: text}), ("text",))


def pair_reader(
    source: Source,
    config: DataConfig,
    entry: Entry,
    languages: tuple[str, str] | None,
    known: tuple[str, str] | None = None,
) -> tuple[TableReader, tuple[str, str]]:
    """Reader of source and target, and the names of their columns.

    ``known``: what a run calls them, which outweighs the numbers of the columns that it read.
    """
    table = open_table(source, config, entry)
    names = table.lower
    first, second = (side.chosen(table, config) for side in SIDES)
    unsaid = known is not None or (first is None and second is None)
    if unsaid and (sides := pair_columns(table, languages, known)) is not None:
        return TableReader(source, config, table, sides), (names[sides[0]], names[sides[1]])
    if table.width == 2:
        first = first if first is not None else 0 if second is None else 1 - second
        second = second if second is not None else 1 - first
    if first is None or second is None:
        raise ConfigError(
            f"{table.where} has {table.columns}, and pairs have a source and a target; choose both "
            "with `data.source_column` and `data.target_column`"
        )
    if first == second:
        raise ConfigError(f"source and target are both {table.column(first)} of {table.where}")
    reader = TableReader(source, config, table, (first, second), FIELDS)
    return reader, (names[first], names[second]) if names else FIELDS


def pair_columns(
    table: Table, languages: tuple[str, str] | None, known: tuple[str, str] | None = None
) -> tuple[int, int] | None:
    """Columns of source and target, where the header names both, or two languages."""
    names = table.lower
    for pair in (known, languages, FIELDS):
        if pair is not None and all(name in names for name in pair):
            return names.index(pair[0]), names.index(pair[1])
    if known is not None and names:
        raise ConfigError(
            f"{table.where} has {table.columns}, but the run translates '{known[0]}' to "
            f"'{known[1]}'; choose both with `data.source_column` and `data.target_column`, or say "
            "`data.header=no` where the first line is a pair"
        )
    coded = [index for index, name in enumerate(names) if name in LANGUAGES]
    if languages is not None and coded:
        raise ConfigError(
            f"{table.where} has {table.columns}, but `data.languages` says "
            f"{languages[0]}-{languages[1]}: say which of them are meant, or choose both with "
            "`data.source_column` and `data.target_column`"
        )
    if languages is None and two_languages([names[index] for index in coded]):
        return coded[0], coded[1]
    return (0, 1) if languages is None and two_languages(names) else None


def with_group(table: Table, config: DataConfig, columns: tuple[int, ...]) -> tuple[int, ...]:
    """``columns``, and behind them that of the groups, where rows are split by groups."""
    group = GROUP.chosen(table, config)
    if group in columns:
        raise ConfigError(
            f"{table.column(group)} of {table.where} is read itself, so its values make no groups; "
            f"give {GROUP.flag} another column"
        )
    return columns if group is None else (*columns, group)


def names_labels(table: Table) -> bool:
    """True where a column is called like a label."""
    return not LABELS.isdisjoint(table.lower)
