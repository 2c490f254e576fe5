"""The tables of a source, and the columns that are read of them: chosen by options, known by their
names, or, of two columns, by their values. Where several could be meant, an error names the flag.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from everyformer.core.errors import ConfigError, DataError, nearest
from everyformer.core.wording import listed
from everyformer.data.config import DataConfig
from everyformer.data.headers import FEW, LABELS, TEXTS, is_number
from everyformer.data.sources import Entry, Source
from everyformer.data.table import Table, read_table

ENOUGH_ROWS = 20
"""Rows from which on a column of many values is taken for no label, whatever its values."""

SHORT = 40
"""Characters of a cell that is a word or a number rather than a text, at most, on average."""


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
        return self.option or f"--data.{self.name}-column"

    def chosen(self, table: Table, config: DataConfig) -> int | None:
        """The column that the option names, by its name or else its number; None: unset.

        Raises:
            ConfigError: no column, or several, are called so.
        """
        value = config.columns.get(f"{self.name}_column")
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

    def obvious(self, table: Table, taken: int | None = None) -> int | None:
        """The only column, but ``taken``, whose name shows the role.

        Raises:
            ConfigError: there are several.
        """
        indices = [i for i, name in enumerate(table.lower) if name in self.known and i != taken]
        if len(indices) > 1:
            several = ", ".join(table.column(index) for index in indices[:-1])
            raise ConfigError(
                f"{table.where} has {len(indices)} columns that could be the {self.name}, "
                f"{several} and {table.column(indices[-1])}; choose with {self.flag} "
                f"{table.names[indices[0]]} or another"
            )
        return indices[0] if indices else None

    def find(self, table: Table, config: DataConfig, taken: int | None = None) -> int | None:
        """The column that is chosen, or else the obvious one."""
        index = self.chosen(table, config)
        return self.obvious(table, taken) if index is None else index

    def require(self, table: Table, index: int | None, *others: "Role") -> int:
        """The column, which must be known by now; ``others`` are asked for with it."""
        if index is None:
            asked, value = (self, *others), "NAME" if table.names else "NUMBER"
            raise ConfigError(
                f"{table.where} has {table.columns}, and none is called like "
                f"{listed([role.about for role in asked], 'or')}; choose "
                f"{'them' if others else 'it'} with "
                f"{listed([f'{role.flag} {value}' for role in asked])}"
                f"{'' if table.names else ', from 1'}"
            )
        return index


TEXT = Role("text", TEXTS, "a text (text, sentence, review ...)")
LABEL = Role("label", LABELS, "a label (label, class, category ...)")
NUMBER = Role("label", LABELS, "a number (target, rating ...)")
GROUP = Role("group", option="--data.split group")


class TableReader:
    """Reads the same columns of every table of a source.

    Args:
        first: the table that the columns were chosen of.
        indices: the columns, counted from 0.
        roles: what each is read as, where that is to be said.
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
        said = [f"{role} from {first.column(i)}" for role, i in zip(roles, indices, strict=False)]
        self._said = (*([", ".join(said)] if said else []), *first.notes)

    @property
    def notes(self) -> tuple[str, ...]:
        """Remarks on what has been read and guessed so far, half a sentence each."""
        return (*self._said, *self.source.readings)

    def rows(self, entry: Entry) -> Iterator[tuple[Table, Sequence[int], int, list[Any]]]:
        """The table, the columns, and of every row its number and its cells in the columns.

        Raises:
            DataError: a row that cannot be read, or a table without the columns of the first.
        """
        table, indices = self._alike(entry)
        for number, cells in table.rows(indices):
            yield table, indices, number, cells

    def _alike(self, entry: Entry) -> tuple[Table, Sequence[int]]:
        """The table of an entry, and where it has the columns of the first."""
        first = self.first
        if entry.name == first.entry.name:
            return first, self.indices
        names = [first.names[index] for index in self.indices] if first.names else []
        table = read_table(self.source, entry, self.config.header if names else "no", names)
        missing = [name for name in names if name.lower() not in table.lower]
        if missing or (not names and table.width != first.width):
            differs = (
                f"has no column '{missing[0]}', which {first.where} has, but {table.columns}"
                if missing
                else f"has {table.width} columns, {first.where} has {first.width}"
            )
            raise DataError(f"{table.where} {differs}; the tables of one source must be alike")
        return table, [table.lower.index(name.lower()) for name in names] or self.indices


def labelled_reader(source: Source, config: DataConfig, entry: Entry) -> TableReader:
    """Reader of text and label, by the columns of ``entry``'s table.

    Raises:
        ConfigError: an option names no column; two columns could be meant, or none.
    """
    table = open_table(source, config, entry)
    columns = with_group(table, config, labelled_columns(table, config))
    return TableReader(source, config, table, columns, ("text", "label"))


def with_group(table: Table, config: DataConfig, columns: tuple[int, int]) -> tuple[int, ...]:
    """``columns``, and behind them that of the groups, where rows are split by groups.

    Raises:
        ConfigError: there is no such column, or it is one of ``columns``.
    """
    group = GROUP.chosen(table, config)
    if group in columns:
        raise ConfigError(
            f"{table.column(group)} of {table.where} is read itself, so its values make no groups; "
            f"give {GROUP.flag} another column"
        )
    return columns if group is None else (*columns, group)


def text_reader(source: Source, config: DataConfig, entry: Entry) -> TableReader:
    """Reader of text alone, likewise."""
    table = open_table(source, config, entry)
    text = TEXT.find(table, config)
    if text is None and table.width == 1:
        text = 0
    return TableReader(source, config, table, (TEXT.require(table, text),), ("text",))


def labelled_columns(table: Table, config: DataConfig) -> tuple[int, int]:
    """Text and label: chosen, obvious, or of two columns by their values.

    Raises:
        ConfigError: an option names no column; two columns could be meant, or none.
    """
    if table.width < 2:
        raise DataError(
            f"{table.where} has {table.columns}; to classify takes two, a text and a label, and "
            "to learn the text itself takes --task lm --data.text-column 1"
        )
    refuse_features(table, config)
    text = TEXT.chosen(table, config)
    label = LABEL.find(table, config, text)
    if text is None:
        text = TEXT.obvious(table, label)
    if table.width == 2:
        if text is None and label is None:
            label = _likely_label(table)
        text = 1 - label if text is None and label is not None else text
        label = 1 - text if label is None and text is not None else label
    label = LABEL.require(table, label, *([TEXT] if text is None else []))
    text = TEXT.require(table, text)
    if text == label:
        raise ConfigError(
            f"text and label are both {table.column(text)} of {table.where}; choose two columns "
            "with --data.text-column and --data.label-column"
        )
    return text, label


def refuse_features(table: Table, config: DataConfig) -> None:
    """Refuse a table of numbers and short words, where nothing says that a column is a text.

    Raises:
        DataError: what does such rows well, and how those become series that are such.
    """
    if config.text_column is not None or not TEXTS.isdisjoint(table.lower):
        return
    label = LABEL.chosen(table, config)
    columns = [
        [cell.strip() for cell in cells if cell.strip()]
        for cells in zip(*table.sample, strict=True)
    ]
    others = [cells for index, cells in enumerate(columns) if index != label]
    numeric = sum(map(_holds_numbers, others))
    if table.width == 2:
        features = all(map(_holds_numbers, columns))
    else:
        known = [_holds_numbers(cells) or _holds_words(cells, numeric > 1) for cells in others]
        features = all(known) and any(map(_holds_numbers, columns))
    if features:
        raise DataError(
            f"{table.where} has {table.columns}, and none is a text: rows of unordered columns are "
            "no sequence, and gradient boosting (scikit-learn's HistGradientBoostingClassifier or "
            "-Regressor) does them well; numbers that are a series in order (t1 to t96) are given "
            f"as x (N, T, C) with y in an .npz, and what is a text by {TEXT.flag} "
            f"{'NAME' if table.names else 'NUMBER, from 1'}"
        )


def _holds_numbers(cells: Sequence[str]) -> bool:
    """True where a column is numbers, dates or amounts: its cells have digits and no letters."""
    return _are_short(cells, words=2) and all(
        is_number(cell) or (any(map(str.isdigit, cell)) and not any(map(str.isalpha, cell)))
        for cell in cells
    )


def _holds_words(cells: Sequence[str], unlike: bool) -> bool:
    """True where a column is short words that come again, or may be ``unlike`` each other."""
    again = len(cells) < ENOUGH_ROWS or len(set(cells)) <= FEW * len(cells)
    return _are_short(cells, words=1.5) and (again or unlike)


def _are_short(cells: Sequence[str], words: float) -> bool:
    """True where cells have at most so many words on average, and are not long."""
    count = sum(len(cell.split()) for cell in cells)
    return count <= words * len(cells) and sum(map(len, cells)) <= SHORT * len(cells)


def picture_reader(
    source: Source, config: DataConfig, table: Table, files: int, role: Role
) -> TableReader:
    """Reader of names of pictures, in the column ``files``, and of their labels: chosen, obvious,
    or the other of two columns.

    Raises:
        ConfigError: an option names no column, or that of the pictures; several could be meant, or
            none.
    """
    label = role.find(table, config, files)
    if label is None and table.width == 2:
        label = 1 - files
    label = role.require(table, label)
    if label == files:
        raise ConfigError(
            f"{table.column(files)} of {table.where} names the pictures; choose another column "
            f"with {role.flag}"
        )
    columns = with_group(table, config, (files, label))
    return TableReader(source, config, table, columns, ("pictures", "label"))


def names_labels(table: Table) -> bool:
    """True where a column is called like a label."""
    return not LABELS.isdisjoint(table.lower)


def holds_few(table: Table, index: int) -> bool:
    """True where a column's values come again, as classes do."""
    values = [row[index].strip() for row in table.sample]
    return len(values) < ENOUGH_ROWS or len(set(values)) <= FEW * len(values)


def open_table(source: Source, config: DataConfig, entry: Entry) -> Table:
    """The table of an entry, with the header that the options ask for or name."""
    values = [value for name, value in config.columns.items() if name != "header" and value]
    return read_table(source, entry, config.header, [v for v in values if not v.isdecimal()])


def _likely_label(table: Table) -> int:
    """The likelier label of two columns: that of numbers, else of fewer values, else of shorter
    ones, else the second."""
    first, second = (
        (not all(map(is_number, filter(None, cells))), len(set(cells)), sum(map(len, cells)))
        for cells in zip(*table.sample, strict=True)
    )
    return 0 if first < second else 1
