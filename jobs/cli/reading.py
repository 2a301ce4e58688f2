"""`tidemark cut` and `tidemark state`: show how to read all tables at a cut, and an operator's state there."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import get_args

import polars as pl
from rich.console import Console

from jobs.cli.errors import CommandError, ExitCode, naming_pipeline
from jobs.cli.naming import warehouse_of
from jobs.reading import Cuts, NoSuchCutError, OperatorState
from jobs.reading.moments import PENDING
from jobs.reading.state_sql import DIALECTS, Dialect
from jobs.settings import Layer
from jobs.showing.cut import render_cut
from jobs.showing.pending import render_pending
from jobs.showing.state import render_operators, render_state


def show_cut(pipeline: str, moment: str, given: Layer, out: Console) -> None:
    """Show how to read all tables at a cut; raise what `Cuts.find` raises."""
    warehouse = warehouse_of(pipeline, given)
    cuts = Cuts(warehouse.root, warehouse.paths.job)
    if moment != PENDING:
        with naming_pipeline(pipeline, warehouse.paths.job):
            out.print(render_cut(cuts.find(moment), warehouse.root), soft_wrap=True)
        return
    pending = cuts.pending()
    if pending is None:
        raise NoSuchCutError(f"no cut of {pipeline} waits for approval: 'tidemark run {pipeline} --hold' makes one")
    out.print(render_pending(pending, pipeline), soft_wrap=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class StateQuestion:
    """What the user wants: operator (None: a list of them), cut, keys, number of rows, and SQL dialect."""

    operator: str | None
    pipeline: str
    at: str
    keys: tuple[str, ...] = ()
    limit: int
    sql: str | None = None


def show_state(question: StateQuestion, given: Layer, out: Console) -> None:
    """Print an operator's state, or the SQL for it; without an operator, list the operators.

    Raises CommandError for wrong words, and what `Cuts.find` and `Cut.state` raise.
    """
    dialect = _dialect(question)
    warehouse = warehouse_of(question.pipeline, given)
    cut = Cuts(warehouse.root, warehouse.paths.job).find(question.at)
    if question.operator is None:
        out.print(render_operators(cut, [cut.state(each) for each in cut.operators]), soft_wrap=True)
        return
    state = cut.state(question.operator)
    if dialect is not None:
        out.print(state.sql(dialect), soft_wrap=True, markup=False)
        return
    rows = _of_keys(state, question.keys)
    shown, total = pl.collect_all([rows.sort(list(state.keys)).head(question.limit), rows.select(pl.len())])
    out.print(render_state(cut, state, shown, int(total.item())), soft_wrap=True)


def _dialect(question: StateQuestion) -> Dialect | None:
    if question.sql is None:
        return None
    if question.operator is None:
        raise CommandError("--sql needs an operator: 'tidemark state' lists them", ExitCode.USAGE)
    if question.keys:
        raise CommandError(
            "--sql prints the query of the whole state: leave --key out, and add your condition to the query",
            ExitCode.USAGE,
        )
    found = next((each for each in DIALECTS if each == question.sql), None)
    if found is None:
        raise CommandError(f"--sql {question.sql}: write {' or '.join(get_args(Dialect))}", ExitCode.USAGE)
    return found


def _of_keys(state: OperatorState, words: Sequence[str]) -> pl.LazyFrame:
    rows = state.polars()
    types = rows.collect_schema()
    for name, text in _wanted(state, words).items():
        rows = rows.filter(pl.col(name).eq_missing(_literal(state, name, text, types[name])))
    return rows


def _wanted(state: OperatorState, words: Sequence[str]) -> Mapping[str, str]:
    """Return key column -> text. The user types `origin=EWR`, or only the value if the key is one column."""
    wanted: dict[str, str] = {}
    for word in words:
        name, equals, text = word.partition("=")
        if len(state.keys) == 1 and not (equals and name in state.keys):
            name, text = state.keys[0], word
        if name not in state.keys or not (equals or len(state.keys) == 1):
            example = " ".join(f"--key {key}=VALUE" for key in state.keys)
            raise CommandError(
                f"--key {word}: the key of {state.operator} is {', '.join(state.keys) or 'unknown: it has no rows'}; "
                f"write {example or 'no --key'}",
                ExitCode.USAGE,
            )
        wanted[name] = text
    return wanted


def _literal(state: OperatorState, name: str, text: str, kind: pl.DataType) -> pl.Expr:
    """Return a typed value in the key column's type. Times are ISO 8601, and UTC unless they name a zone."""
    try:
        value = pl.Series([text])
        if isinstance(kind, pl.Datetime):
            value = value.str.to_datetime(time_unit=kind.time_unit, time_zone=kind.time_zone, strict=True)
        elif isinstance(kind, pl.Boolean):
            value = pl.Series([{"true": True, "false": False}[text.lower()]])
        else:
            value = value.cast(kind, strict=True)
        return pl.lit(value.item(), dtype=kind)
    except (pl.exceptions.PolarsError, KeyError) as error:
        raise CommandError(
            f"--key {name}={text}: {name} of {state.operator} is {kind}, and {text!r} is none", ExitCode.USAGE
        ) from error
