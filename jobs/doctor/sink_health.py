"""Checks whether outside sinks are in step with their tables, and hold transactions that no running tick will end."""

from collections.abc import Callable, Iterable, Iterator, Mapping

from checkpointing.commit.pre_committed import SinkTransaction
from checkpointing.identifiers import TableName
from checkpointing.metadata.record import Row
from jobs.doctor.findings import Finding, Section, command
from jobs.holding.job_state import Activity, JobState
from jobs.holding.outside import NO_SINKS, out_of_step
from jobs.sinks.port import TableSink, TwoPhaseSink
from jobs.stores.warehouse import Warehouse

Sinks = Callable[[], Mapping[TableName, TableSink]]
"""Loads a pipeline and returns its sinks."""


def no_sinks() -> Mapping[TableName, TableSink]:
    """Return no sinks, for an unknown pipeline."""
    return NO_SINKS


def sink_sections(warehouse: Warehouse, sinks: Sinks, state: JobState, rows: Iterable[Row]) -> Iterator[Section]:
    """Yield a section about outside sinks: whether they are in step with the tables, and what they have prepared."""
    known_rows = tuple(rows)
    seen: list[tuple[str, str]] = []
    findings: list[Finding] = []
    known: set[SinkTransaction] = set()
    elsewhere: dict[SinkTransaction, str] = {}
    values: dict[str, object] = {}
    for table, bound in sinks().items():
        sink, job = bound.sink, warehouse.paths.job
        left: tuple[SinkTransaction, ...] = ()
        try:
            newest = sink.newest(job, table)
            if isinstance(sink, TwoPhaseSink):
                left = tuple(sink.pre_committed(job, table))
                elsewhere |= dict(sink.left_elsewhere(job, table))
        except Exception as error:  # noqa: BLE001 - a sink is a user's code, and the next tick would meet it too
            first = (str(error).splitlines() or [type(error).__name__])[0]
            findings.append(Finding(f"the sink of table {table} cannot be looked at: {first}", "do what it says"))
            values[str(table)] = {"sink": repr(sink), "error": first}
            continue
        differs = None if newest is None else out_of_step(table, bound, newest, known_rows)
        if differs is not None and state.activity is not Activity.RUNNING:
            what = f"the sink of table {table} ({sink!r}) {differs}"
            findings.append(Finding(what, f"{command('run', warehouse)}, and compare the target with the table"))
        known |= {*left}
        has = "" if newest is None else f", has checkpoint {newest}" if newest else ", has no checkpoint"
        prepared = f", {len(left) or 'nothing'} prepared" if isinstance(sink, TwoPhaseSink) else ""
        seen.append((str(table), f"{sink!r}{has}{prepared}"))
        values[str(table)] = {
            "sink": repr(sink),
            "checkpoint": newest,
            "in_step": None if newest is None else differs is None,
            "prepared": [{"checkpoint": each.checkpoint, "generation": each.generation} for each in left],
        }
        findings += [_finding(warehouse, each) for each in left if _is_left(each, state)]
    for each, said in elsewhere.items():
        if each not in known:
            name, _, way_out = said.partition(": ")
            what = (
                f"{name} is prepared for a target that the pipeline no longer has, and no tick ends it: it keeps locks"
            )
            findings.append(Finding(what, way_out))
    if seen or findings:
        yield Section("sinks", tuple(seen), tuple(findings), values)


def _is_left(transaction: SinkTransaction, state: JobState) -> bool:
    """Return whether the tick that prepared this transaction has ended. A running tick ends its own."""
    return state.activity is not Activity.RUNNING or transaction.generation < state.generation


def _finding(warehouse: Warehouse, left: SinkTransaction) -> Finding:
    what = (
        f"checkpoint {left.checkpoint} of generation {left.generation} is prepared in the sink of table {left.table}, "
        "and its tick has ended: the transaction keeps its locks"
    )
    return Finding(what, f"{command('run', warehouse)}, which publishes it or rolls it back")
