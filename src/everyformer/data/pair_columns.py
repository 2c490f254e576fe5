"""The columns of a table that hold texts and their translations: chosen by options, or known by
their names, in the direction of a finished run if there is one.
"""

from everyformer.core.errors import ConfigError
from everyformer.data.config import DataConfig
from everyformer.data.headers import FEW, FIELDS, LANGUAGES, TEXTS, are_numbers, two_languages
from everyformer.data.sources import Entry, Source
from everyformer.data.table import Table
from everyformer.data.tables import ENOUGH_ROWS, Role, TableReader, names_labels, open_table

SIDES = Role("source"), Role("target")


def pair_reader(
    source: Source,
    config: DataConfig,
    entry: Entry,
    languages: tuple[str, str] | None,
    known: tuple[str, str] | None = None,
) -> tuple[TableReader, tuple[str, str]]:
    """Reader of source and target, and the names of the two sides.

    ``known``: what a run calls them, which outweighs the numbers of the columns that it read.
    """
    table = open_table(source, config, entry)
    names = table.lower
    first, second = (side.chosen(table, config) for side in SIDES)
    unsaid = known is not None or (first is None and second is None)
    if unsaid and (sides := _sides(table, languages, known)) is not None:
        called = names[sides[0]], names[sides[1]]
        return TableReader(source, config, table, sides), languages or called
    if table.width == 2:
        first = first if first is not None else 0 if second is None else 1 - second
        second = second if second is not None else 1 - first
    if first is None or second is None:
        raise ConfigError(
            f"{table.where} has {table.columns}, and pairs have a source and a target; choose both "
            "with --data.source-column and --data.target-column"
        )
    if first == second:
        raise ConfigError(f"source and target are both {table.column(first)} of {table.where}")
    called = (names[first], names[second]) if names else FIELDS
    reader = TableReader(source, config, table, (first, second), FIELDS)
    return reader, languages or called


def names_sides(table: Table) -> bool:
    """True where the header of a table says that it holds pairs."""
    return _sides(table, None) is not None and TEXTS.isdisjoint(table.lower)


def holds_two_texts(table: Table) -> bool:
    """True where both of two columns are texts, of many words and hardly any twice."""
    if table.width != 2 or names_labels(table) or not table.sample:
        return False
    columns = [
        [cell.strip() for cell in cells if cell.strip()]
        for cells in zip(*table.sample, strict=True)
    ]
    return all(
        len(set(cells)) > FEW * len(cells)
        and not are_numbers(cells)
        and (
            len(cells) >= ENOUGH_ROWS or sum(len(cell.split()) for cell in cells) >= 2 * len(cells)
        )
        for cells in columns
    )


def _sides(
    table: Table, languages: tuple[str, str] | None, known: tuple[str, str] | None = None
) -> tuple[int, int] | None:
    """Columns of source and target, where the header names both, or two languages.

    Raises:
        ConfigError: it has other names than a run ``known`` by its own.
    """
    names = table.lower
    for pair in (known, languages, FIELDS):
        if pair is not None and all(name in names for name in pair):
            return names.index(pair[0]), names.index(pair[1])
    if known is not None and names:
        raise ConfigError(
            f"{table.where} has {table.columns}, but the run translates '{known[0]}' to "
            f"'{known[1]}'; choose both with --data.source-column and --data.target-column, or say "
            "--data.header no where the first line is a pair"
        )
    coded = [index for index, name in enumerate(names) if name in LANGUAGES]
    if languages is not None and coded:
        raise ConfigError(
            f"{table.where} has {table.columns}, but --data.languages says "
            f"{languages[0]}-{languages[1]}: say which of them are meant, or choose both with "
            "--data.source-column and --data.target-column"
        )
    if languages is not None:
        return None
    if len(coded) == 2 == len({names[index] for index in coded}):
        return coded[0], coded[1]
    return (0, 1) if two_languages(names) else None
