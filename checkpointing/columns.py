"""The columns of a table as the rows of `checkpoints` say them: names, types, and since when a column counts (D6)."""

from dataclasses import dataclass

from checkpointing.identifiers import NO_CHECKPOINT, CheckpointId, TableName


@dataclass(frozen=True, slots=True)
class TableColumn:
    """One column. `type` is the Delta type: its name, or for a nested type its JSON with sorted keys.

    A column that came to a table with rows holds only what came after checkpoint `after`: older rows are null
    there, and an aggregate has counted nothing before. 0: the column is as old as the table.
    """

    name: str
    type: str
    after: CheckpointId = NO_CHECKPOINT


@dataclass(frozen=True, slots=True)
class TableColumns:
    """The columns of one table at a cut, in order."""

    table: TableName
    columns: tuple[TableColumn, ...]
