"""Ready-made steps of a stream: each a function of a DataFrame, lazy and row by row."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name every Spark user knows
from pyspark.sql.types import DataType, StructType

from jobs.operators.derived_scans import NewColumn
from jobs.operators.spec import Chain, TaskSteps, TextSteps, kept_beside
from jobs.pipeline.plain_expressions import plain_column, plain_condition
from jobs.spark.columns import named

if TYPE_CHECKING:
    from jobs.operators.expressions import Expression


def selected(columns: Sequence[str]) -> Chain:
    """Return the step that keeps these columns, in this order."""

    def select(rows: DataFrame) -> DataFrame:
        return rows.select(*[named(name) for name in (*columns, *kept_beside())])

    return TaskSteps(select)


def dropped(columns: Sequence[str]) -> Chain:
    """Return the step that keeps all but these columns.

    The step names only these to Spark, because each name costs a call to the JVM.
    """

    def drop(rows: DataFrame) -> DataFrame:
        return rows.drop(*columns)

    return TaskSteps(drop)


def with_column(name: str, expression: str | Callable[[], Column], kind: DataType, rows: StructType) -> Chain:
    """Return the step that adds a column to these rows, or replaces one.

    A task runs the step if the expression is plain.
    """

    def add(frame: DataFrame) -> DataFrame:
        column = F.expr(expression) if isinstance(expression, str) else expression()
        return frame.withColumn(name, column.cast(kind))

    if not isinstance(expression, str):
        return add
    values = plain_column(expression, kind, rows)
    return TextSteps(add, (expression,)) if values is None else TaskSteps(add, added=(NewColumn(name, values),))


def in_turn(chains: Sequence[Chain]) -> Chain | None:
    """Return these steps as one step, or None if there are none.

    The result is `TaskSteps` if all steps are. It is `TextSteps` if the other steps are `TextSteps`.
    """
    if not chains:
        return None

    def apply(rows: DataFrame) -> DataFrame:
        for chain in chains:
            rows = chain(rows)
        return rows

    light = [chain for chain in chains if isinstance(chain, TaskSteps)]
    if len(light) < len(chains):
        texts = [chain for chain in chains if isinstance(chain, TextSteps)]
        if len(light) + len(texts) < len(chains):
            return apply
        return TextSteps(apply, tuple(sql for chain in texts for sql in chain.sql))
    rules: list[Expression] = []
    added: dict[str, Expression] = {}
    for steps in light:  # a task reads columns of the file, not those that steps before have made
        rules.extend(rule.over(added) for rule in steps.rules)
        added |= {column.name: column.values.over(added) for column in steps.added}
    return TaskSteps(apply, tuple(rules), tuple(map(NewColumn, added.keys(), added.values())))


def unchanged() -> Chain:
    """Return the step that changes nothing."""
    return TaskSteps(lambda rows: rows)


def filtered(condition: str | Callable[[], Column], rows: StructType) -> Chain:
    """Return the step that keeps the rows for which a condition is true.

    A task runs the step if the condition is plain.
    """

    def keep(frame: DataFrame) -> DataFrame:
        return frame.filter(condition if isinstance(condition, str) else condition())

    if not isinstance(condition, str):
        return keep
    rule = plain_condition(condition, rows)
    return TextSteps(keep, (condition,)) if rule is None else TaskSteps(keep, (rule,))
