"""What a pipeline says of the columns that an append table has from before: renamed, dropped, or in another order."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from pyspark.sql.types import StructType

from checkpointing.identifiers import column_name
from jobs.pipeline.columns import require_unique
from jobs.pipeline.failures import InvalidPipelineError
from jobs.pipeline.former_names import former_columns

NOTHING: Final[Mapping[str, str]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class ChangedColumns:
    """The old names of a table's columns by the new ones, the columns that leave it, and whether the order changes."""

    renamed_from: Mapping[str, str] = field(default_factory=dict)
    drops: tuple[str, ...] = ()
    in_order: bool = False


UNCHANGED: Final = ChangedColumns()


def changed_columns(
    table: str, rows: StructType, renamed_from: Mapping[str, str], drops: Sequence[str], *, in_order: bool
) -> ChangedColumns:
    """Return what is said of a table of these rows.

    Raises InvalidNameError for an invalid name, and InvalidPipelineError for a change that can mean nothing.
    """
    where, columns = f"table {table}", rows.names
    renamed = former_columns(where, (), columns, renamed_from)
    if isinstance(drops, str):
        raise InvalidPipelineError(f"{where}: drop is the text {drops!r}; name columns, as in [{drops!r}]")
    require_unique(f"{where}, drop", drops)
    written, old = ({name.casefold() for name in names} for names in (columns, renamed.values()))
    for name in map(column_name, drops):
        if name.casefold() in written:
            raise InvalidPipelineError(
                f"{where}: drop names {name!r}, and the pipeline writes this column; drop it from the stream before "
                f"the table, as in .drop({name!r}), or leave it out here"
            )
        if name.casefold() in old:
            raise InvalidPipelineError(
                f"{where}: drop names {name!r}, which another column is renamed from; leave it out of one of the two"
            )
    return ChangedColumns(renamed, tuple(drops), in_order)
