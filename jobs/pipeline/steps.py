"""Ready-made steps of a stream: each a function of a DataFrame, lazy and row by row."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name every Spark user knows
from pyspark.sql.types import DataType, StructType

from jobs.operators.derived_scans import CopiedColumn, TaskRule
from jobs.operators.spec import Chain, TaskSteps, TextSteps, kept_beside
from jobs.pipeline.plain_conditions import plain_rules
from jobs.spark.columns import named


def selected(columns: Sequence[str]) -> Chain:
    """Return the step that keeps these columns, in this order."""

    def select(rows: DataFrame) -> DataFrame:
        return rows.select(*[named(name) for name in (*columns, *kept_beside())])

    return TaskSteps(select)


def dropped(columns: Sequence[str]) -> Chain:
    """Return the step that keeps all but these columns. Spark is told only these: each name costs a call to it."""

    def drop(rows: DataFrame) -> DataFrame:
        return rows.drop(*columns)

    return TaskSteps(drop)


def with_column(name: str, expression: str | Callable[[], Column], kind: DataType) -> Chain:
    """Return the step that adds or replaces a column; the expression is built once a session exists."""

    def add(rows: DataFrame) -> DataFrame:
        column = F.expr(expression) if isinstance(expression, str) else expression()
        return rows.withColumn(name, column.cast(kind))

    return TextSteps(add) if isinstance(expression, str) else add


def copied(copy: CopiedColumn, kind: DataType) -> Chain:
    """Return the step that adds a copy of a column, or replaces a column by it."""

    def add(rows: DataFrame) -> DataFrame:
        values = F.lit(copy.instead) if copy.of is None else named(copy.of)
        if copy.of is not None and copy.instead is not None:
            values = F.coalesce(values, F.lit(copy.instead))
        return rows.withColumn(copy.name, values.cast(kind))

    return TaskSteps(add, copies=(copy,))


def in_turn(chains: Sequence[Chain]) -> Chain | None:
    """Return these steps as one, None if there are none. What holds for each of them holds for all."""
    if not chains:
        return None

    def apply(rows: DataFrame) -> DataFrame:
        for chain in chains:
            rows = chain(rows)
        return rows

    light = [chain for chain in chains if isinstance(chain, TaskSteps)]
    if len(light) < len(chains):
        return TextSteps(apply) if all(isinstance(chain, TaskSteps | TextSteps) for chain in chains) else apply
    rules: list[TaskRule] = []
    copies: dict[str, CopiedColumn] = {}
    for steps in light:  # a task sees the names of the file, not those that steps before have given
        reads = {*(name for rule in steps.rules for name in rule.columns), *(copy.of for copy in steps.copies)}
        if any(copies[name].instead is not None for name in copies.keys() & reads):
            return TextSteps(apply)
        of = {name: copy.of for name, copy in copies.items()}
        known = {name: read for name, read in of.items() if read is not None}
        rules += [rule.over(known) for rule in steps.rules]
        copies |= {copy.name: replace(copy, of=of.get(copy.of or "") or copy.of) for copy in steps.copies}
    return TaskSteps(apply, tuple(rules), tuple(copies.values()))


def unchanged() -> Chain:
    """Return the step that changes nothing."""
    return TaskSteps(lambda rows: rows)


def filtered(condition: str | Callable[[], Column], rows: StructType) -> Chain:
    """Return the step that keeps the rows for which a condition is true. A task does so itself if it is plain."""

    def keep(frame: DataFrame) -> DataFrame:
        return frame.filter(condition if isinstance(condition, str) else condition())

    if not isinstance(condition, str):
        return keep
    rules = plain_rules(condition, rows)
    return TextSteps(keep) if rules is None else TaskSteps(keep, rules)
