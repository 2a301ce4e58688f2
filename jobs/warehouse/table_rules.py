"""Defines what other writers may change in output tables, and which changes forbid publishing into them.

The rules come from an experiment. Spark 4.2 with Delta 4.4.0 enabled each feature on an output table. Then delta-rs
1.6.6 committed an add, and an add with a remove, and Spark read the result:

| feature (how it is enabled)                       | delta-rs commits          | here             |
| deletionVectors, enabled                          | yes                       | goes on          |
| deletionVectors on active files (DELETE)          | yes, and loses the vector | upsert: stop     |
| changeDataFeed, v2Checkpoint, appendOnly (table)  | yes                       | goes on          |
| appendOnly with a remove                          | refused                   | upsert: stop     |
| columnMapping, by name                            | yes, with logical names   | stop             |
| check constraint, generated column                | yes, checking nothing     | stop             |
| another partitioning than the pipeline's          | yes, and shows null there | stop             |
| rowTracking, domainMetadata, clustering           | refused                   | stop             |
| inCommitTimestamp, identityColumns, typeWidening  | refused                   | stop             |
| allowColumnDefaults, icebergCompatV1/V2           | refused                   | stop             |
| checkpointProtection, vacuumProtocolCheck         | refused                   | stop             |
| ADD COLUMN, nullable                              | yes, null in our files    | append: goes on  |

The ways out were tried too. Dropping rowTracking leaves domainMetadata behind, which must be dropped as well.
inCommitTimestamp can be dropped at once. typeWidening and columnMapping need TRUNCATE HISTORY, twice and a retention
period apart. Without TRUNCATE HISTORY, they leave checkpointProtection behind, which is refused. clustering and
allowColumnDefaults cannot be dropped. After DROP CONSTRAINT or REORG ... APPLY (PURGE), a table can be published into
at once.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from deltalake import DeltaTable, Field, Schema

from checkpointing.columns import TableColumn
from checkpointing.graph import TableMode
from jobs.sinks.port import NOTHING_SAID, Description
from jobs.warehouse.table_columns import COMMENT, since

HARMLESS: Final = frozenset(
    {
        "appendOnly",
        "changeDataFeed",
        "checkConstraints",
        "deletionVectors",
        "generatedColumns",
        "invariants",
        "timestampNtz",
        "v2Checkpoint",
    }
)
"""Writer features that do not break Tidemark's commits, unless a rule below finds them in use.

Every other feature stops the job, and the message names the feature.
"""

_FOR_EVER: Final = frozenset({"clustering", "allowColumnDefaults", "identityColumns"})
_BY_TRUNCATION: Final = frozenset({"typeWidening", "columnMapping", "checkpointProtection"})


@dataclass(frozen=True, slots=True, order=True)
class Column:
    """A column as a table's log declares it. `rule` names the rule that a writer would have to apply, if any."""

    name: str
    type: str
    nullable: bool
    rule: str = ""


@dataclass(frozen=True, slots=True)
class TableShape:
    """The part of a table's protocol and metadata that decides whether Tidemark may publish into it."""

    features: frozenset[str]
    properties: frozenset[tuple[str, str]]
    columns: tuple[Column, ...]
    partitioned_by: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Problem:
    """Why a table forbids publishing (`what`), the text by which the log entry is found (`marker`), and the way out."""

    what: str
    marker: str
    way_out: str


def problems_of(
    shape: TableShape, declared: tuple[Column, ...], mode: TableMode, folder: str, partitioned_by: tuple[str, ...]
) -> tuple[Problem, ...]:
    """Return the reasons why rows of the declared columns cannot be published into a table of this shape.

    The files of the rows are partitioned by the columns `partitioned_by`.
    """
    sql = f"ALTER TABLE delta.`{folder}`"
    return (
        *_features(shape, sql),
        *_properties(shape, mode, sql),
        *_layout(shape, partitioned_by),
        *_columns(shape, declared, mode, sql),
    )


def _layout(shape: TableShape, partitioned_by: tuple[str, ...]) -> Iterator[Problem]:
    if shape.partitioned_by != partitioned_by:
        by, ours = (", ".join(columns) or "no column" for columns in (shape.partitioned_by, partitioned_by))
        what = f"is laid out by {by}, and the pipeline says {ours}: a table keeps its partition_by"
        yield Problem(what, "partitionColumns", "say the table's own, or name another table")


def _features(shape: TableShape, sql: str) -> Iterator[Problem]:
    for feature in sorted(shape.features - HARMLESS):
        yield Problem(f"has the table feature {feature}", feature, _drop(feature, sql))


def _drop(feature: str, sql: str) -> str:
    if feature in _FOR_EVER:
        return "Delta cannot drop it, so put back a copy of the table's folder from before, or name another table"
    if feature in _BY_TRUNCATION:
        truncate = f"run {sql} DROP FEATURE {feature} TRUNCATE HISTORY, and again when Delta says so (a day later)"
        return f"{truncate}; versions before that can't be read any more"
    return f"run {sql} DROP FEATURE {feature}"


def _properties(shape: TableShape, mode: TableMode, sql: str) -> Iterator[Problem]:
    properties = dict(shape.properties)
    if mode is not TableMode.APPEND and properties.get("delta.appendOnly", "").lower() == "true":
        way_out = f"run {sql} SET TBLPROPERTIES ('delta.appendOnly'='false')"
        yield Problem(f"is append-only, and an {_word(mode)} replaces files", "delta.appendOnly", way_out)
    for name in sorted(properties):
        if name.startswith("delta.constraints."):
            constraint = name.removeprefix("delta.constraints.")
            what = f"has the check constraint {constraint}, which staged files were not held to"
            yield Problem(what, name, f"run {sql} DROP CONSTRAINT {constraint} and use a row rule instead")
    if properties.get("delta.columnMapping.mode", "none") != "none" and "columnMapping" not in shape.features:
        way_out = _drop("columnMapping", sql)
        yield Problem("maps columns to other names", "delta.columnMapping.mode", way_out)


def _columns(shape: TableShape, declared: tuple[Column, ...], mode: TableMode, sql: str) -> Iterator[Problem]:
    there = {column.name: column for column in shape.columns}
    ours = {column.name for column in declared}
    for column in declared:
        found = there.get(column.name)
        if found is None:
            way_out = f"run {sql} ADD COLUMN {column.name} {column.type}"
            yield Problem(f"has no column {column.name} ({column.type}) any more", column.name, way_out)
        elif found.type != column.type:
            what = f"has column {column.name} as {found.type}, and the pipeline writes {column.type}"
            yield Problem(what, column.name, "change the pipeline's column, or name another table")
        elif column.nullable and not found.nullable:
            what = f"forbids null in column {column.name}, and the pipeline may write it"
            yield Problem(what, column.name, f"run {sql} ALTER COLUMN {column.name} DROP NOT NULL")
    for column in shape.columns:
        if column.rule:
            what = f"computes column {column.name} ({column.rule}), which staged files do not"
            yield Problem(what, column.name, "make it a plain column")
        if column.name not in ours:
            yield from _foreign_column(column, mode, sql)


def _foreign_column(column: Column, mode: TableMode, sql: str) -> Iterator[Problem]:
    if mode is not TableMode.APPEND:
        what = f"has a column {column.name} that the pipeline does not write, and an {_word(mode)} would erase it"
        restore = sql.replace("ALTER TABLE", "RESTORE TABLE", 1)
        way_out = f"run {restore} TO VERSION AS OF the one before the column came, or write it in the pipeline"
        yield Problem(what, column.name, way_out)
    elif not column.nullable:
        what = f"has a column {column.name} that may not be null and that the pipeline does not write"
        yield Problem(what, column.name, f"run {sql} ALTER COLUMN {column.name} DROP NOT NULL")


def _word(mode: TableMode) -> str:
    return TableMode.OVERWRITE.value if mode is TableMode.OVERWRITE else TableMode.UPSERT.value


def purge(folder: str) -> str:
    """Return the SQL that removes a table's deletion vectors."""
    off = f"ALTER TABLE delta.`{folder}` SET TBLPROPERTIES ('delta.enableDeletionVectors'='false')"
    return f"run {off} and REORG TABLE delta.`{folder}` APPLY (PURGE)"


def refused_for_good(error: str) -> bool:
    """Return True if the log refuses the table itself, and not only this attempt to commit."""
    return "nsupported table feature" in error or "append-only" in error


def advice(error: str) -> str:
    """Return what a user can do after the log has refused a commit."""
    if "nsupported" in error and "feature" in error:
        return "A feature was enabled that forbids publishing: drop it (ALTER TABLE ... DROP FEATURE), then start again"
    if "append-only" in error:
        return "Run ALTER TABLE ... SET TBLPROPERTIES ('delta.appendOnly'='false'), then start again"
    return "Nothing is lost: the next tick tries again"


# ------------------------------------------------------------------
# Writes a pipeline's comments and properties of a table into the table's metadata, in a checkpoint's commit.
#
# They are not part of a cut, so a rollback does not change them. Comments and properties that the pipeline does not
# name stay unchanged.


@dataclass(frozen=True, slots=True)
class Metadata:
    """The part of a table's metadata that a commit of Tidemark may change."""

    schema: Schema
    comment: str | None
    properties: Mapping[str, str]


def next_metadata(
    table: DeltaTable, schema: Schema | None, says: Description, columns: Iterable[TableColumn]
) -> Metadata | None:
    """Return the table's next metadata: `schema` (None: the present one), and the pipeline's comments and properties.

    Return None if nothing changes. `columns` are the entry's columns, which have since when a column's values are
    valid.
    """
    if schema is None and says is NOTHING_SAID:
        return None
    known = table.metadata()
    there = Metadata(table.schema(), known.description, dict(known.configuration))
    commented = described(schema or there.schema, says, columns)
    new = Metadata(commented, says.comment or there.comment, {**there.properties, **says.properties})
    same = new.comment == there.comment and new.properties == there.properties
    return None if same and commented.to_json() == there.schema.to_json() else new


def described(schema: Schema, says: Description, columns: Iterable[TableColumn] = ()) -> Schema:
    """Return a schema with the comments that the pipeline gives its columns."""
    valid = {column.name: since(column) for column in columns}
    return Schema(
        [_commented(each, says.columns.get(each.name, ""), valid.get(each.name, "")) for each in schema.fields]
    )


def _commented(column: Field, comment: str, valid: str) -> Field:
    if not comment:
        return column
    metadata: dict[str, Any] = {**(column.metadata or {}), COMMENT: "; ".join(filter(None, (comment, valid)))}
    return Field(column.name, column.type, nullable=column.nullable, metadata=metadata)
