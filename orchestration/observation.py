"""Reads a job from its warehouse, without a tick: the newest checkpoint, its ancestors, and what each table shows."""

from collections.abc import Mapping
from dataclasses import dataclass

from checkpointing.commit.fencing import newest_checkpoint
from checkpointing.graph import TableMode
from checkpointing.identifiers import CheckpointId, TableName
from checkpointing.metadata.record import CheckpointRecord, Row
from jobs.pipeline.job_plan import JobPlan
from jobs.warehouse.checkpoints import CheckpointStore
from jobs.warehouse.cuts_table import CutStore
from jobs.warehouse.job_stores import Activity, JobState, has_run, observe_state
from jobs.warehouse.tables import TableLogs, TableShown, rows_at, table_shown
from jobs.warehouse.warehouse import Warehouse
from orchestration.epochs import Epoch


@dataclass(frozen=True, slots=True)
class Standing:
    """A job's entries, its newest checkpoint with its cut (None before the first), and its tables."""

    rows: tuple[Row, ...]
    epoch: Epoch | None
    tables: Mapping[TableName, TableShown]

    @property
    def records(self) -> tuple[CheckpointRecord, ...]:
        """The retained checkpoints and savepoints."""
        return tuple(row for row in self.rows if isinstance(row, CheckpointRecord))

    @property
    def checkpoint(self) -> CheckpointId:
        """The id of the newest checkpoint, 0 before the first."""
        return CheckpointId(0) if self.epoch is None else self.epoch.record.checkpoint


NEVER_RAN = Standing((), None, {})


class RowCounts:
    """Counts the rows of each append table at each checkpoint: first from the table's log, then by adding new rows.

    Rows that other writers append in between are missed. At the end of a tick, rows are counted from the log again.
    """

    def __init__(self, warehouse: Warehouse, plan: JobPlan) -> None:
        """Count nothing yet."""
        self._logs = TableLogs(warehouse)
        self._appended = [name for name, mode in plan.modes.items() if mode is TableMode.APPEND]
        self._rows: dict[TableName, int] = {}

    def after(self, epoch: Epoch) -> Mapping[TableName, int]:
        """Return the rows after this completed checkpoint. It must be the one after the checkpoint of the last call."""
        for name in self._appended:
            if name in self._rows:
                written = (table for table in epoch.record.tables if table.table == name)
                self._rows[name] += sum(file.rows for table in written for file in table.adds)
                continue
            rows = rows_at(self._logs, name, epoch.versions[name]) if name in epoch.versions else None
            if rows is not None:
                self._rows[name] = rows
        return dict(self._rows)


def standing(warehouse: Warehouse, plan: JobPlan) -> Standing:
    """Observe a job and its tables. Nothing is created. Raises what the codec raises for entries of another version."""
    if not has_run(warehouse):
        return NEVER_RAN
    _, rows = CheckpointStore(warehouse).observe()
    newest = newest_checkpoint(rows)
    cut = {} if newest is None else CutStore(warehouse).read(newest.checkpoint) or {}
    logs = TableLogs(warehouse)
    shown = {name: table_shown(logs, name, mode, cut.get(name)) for name, mode in plan.modes.items()}
    epoch = None if newest is None else Epoch(newest, (), cut)
    return Standing(rows, epoch, {name: table for name, table in shown.items() if table is not None})


def activity(warehouse: Warehouse) -> JobState | None:
    """Return whether a tick of the job runs in this warehouse. None if the job never ran there."""
    return observe_state(warehouse, CheckpointStore(warehouse)) if has_run(warehouse) else None


def held_by(warehouse: Warehouse) -> str | None:
    """Return the holder of the job and why it is taken to be alive. None if a tick may begin."""
    state = activity(warehouse)
    return state.why if state is not None and state.activity is Activity.RUNNING else None
