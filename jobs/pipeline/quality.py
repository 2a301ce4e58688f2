"""Expectations on a stream: as row rules, which split it, or as a suite, which judges its table (J3)."""

from collections.abc import Iterable, Sequence

from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from checkpointing.graph import TableMode
from jobs.operators.spec import Chain, RowRule, TaskSteps, TextSteps
from jobs.operators.stateless_job import failed_rules, in_task
from jobs.operators.task_rules import NullRule
from jobs.pipeline.columns import require_columns
from jobs.pipeline.failures import InvalidPipelineError
from jobs.pipeline.vertices import OutputTable
from jobs.quality.expectation import Expectation, InvalidExpectationError, Suite
from jobs.quality.rules import compile_row_rule, null_rule

_NAMING = ("column", "column_A", "column_B")
"""The arguments in which Great Expectations names a column."""


def row_rules(where: str, rows: StructType, expectations: Sequence[Expectation]) -> tuple[RowRule, ...]:
    """Return the expectations as row rules; raise InvalidPipelineError for one that says nothing of single rows."""
    if not expectations:
        raise InvalidPipelineError(f"{where}: check_rows needs at least one expectation")
    _require_expected_columns(where, rows, expectations)
    try:
        return tuple(RowRule(str(one), compile_row_rule(one), _in_task(one)) for one in expectations)
    except InvalidExpectationError as error:
        raise InvalidPipelineError(f"{where}: {error}") from error


def _in_task(expectation: Expectation) -> NullRule | None:
    of_null = null_rule(expectation)
    return None if of_null is None else NullRule(*of_null)


def good_rows(rules: Sequence[RowRule]) -> Chain:
    """Return the step that drops the rows which fail a rule. A task does so itself if it can judge all rules."""

    def keep(rows: DataFrame) -> DataFrame:
        return rows.filter(failed_rules(rules).isNull())

    known = in_task(rules)
    return TaskSteps(keep, tuple(rule for _, rule in known)) if len(known) == len(rules) else TextSteps(keep)


def suite_of(name: str, table: str, rows: StructType, expectations: tuple[Expectation, ...]) -> Suite:
    """Return the suite of a table; raise InvalidPipelineError if it is empty or names a missing column."""
    _require_expected_columns(f"table {table}", rows, expectations)
    try:
        return Suite(name, table, expectations)
    except InvalidExpectationError as error:
        raise InvalidPipelineError(f"table {table}: {error}") from error


def _require_expected_columns(where: str, rows: StructType, expectations: Iterable[Expectation]) -> None:
    for expectation in expectations:
        named = (expectation.kwargs.get(argument) for argument in _NAMING)
        require_columns(f"{where}, {expectation}", rows, [name for name in named if isinstance(name, str)])


def require_judgeable(table: OutputTable) -> None:
    """Raise InvalidPipelineError for a table that no suite can judge, or that has one already."""
    if table.mode is TableMode.UPSERT:
        raise InvalidPipelineError(
            f"table {table.name}: a suite judges rows as they are appended, and this table is upserted; "
            "judge the stream that feeds it"
        )
    if table.suite is not None:
        raise InvalidPipelineError(f"table {table.name}: it has a suite already; put all expectations into one")
