"""Runs one `RunMicroBatch` effect as one Spark job, and returns its result.

This module decides nothing. A job that fails leaves at most orphaned files. The result of a subtask without rows is an
empty output.
"""

import re
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, assert_never

from pyspark.errors import PySparkException
from pyspark.sql import Row

from checkpointing.channel_items import NO_WORK
from checkpointing.identifiers import Generation, JobName, split_id
from checkpointing.messages import GreatestTime, MicroBatchFinished, RunMicroBatch, SubtaskOutput
from jobs.disk_errors import DISK_FULL, READ_ONLY, accident_in
from jobs.operators.in_time.measured_times import ObservedTimes, SplitTimes
from jobs.operators.keyed_job import keyed_job, must_wake
from jobs.operators.reports import TaskReport, report_from
from jobs.operators.scan.planned_jobs import PlannedJobs
from jobs.operators.scan.stepped import Part
from jobs.operators.spec import KeyedSpec, StatelessSpec, VertexPlan, misfits
from jobs.operators.stateless_job import divided_job, stateless_job
from jobs.operators.ways_to_read import MicroBatchRows
from jobs.sinks.staged_files import StagedFileError, StagedFiles
from jobs.sources.slice_reading import LeftToSparkError, MayLeaveToSpark
from jobs.state.worker_copy import NO_USES, CopyUses
from jobs.storage.address import Root, absolute
from jobs.user_code import TRACEBACK_CHARS_MAX, kind_of, message_of, noted

# ------------------------------------------------------------------
# Describes a failed micro-batch: a sentence with vertex, cause and way out, then the message of Spark or Python.


_WORKER: Final = "Traceback (most recent call last)"
_CAUSE: Final = re.compile(r"^(?:Caused by: |: )(?:[\w.$]+\.)?(?P<kind>[\w$]+): (?P<said>.+)$", re.MULTILINE)
_CALLED_FROM: Final = re.compile(r"was called from\s+(?P<file>\S.*?):(?P<line>\d+)\s*$", re.MULTILINE)

_MALFORMED: Final = re.compile(r"reading file (?:file://)?(?P<file>\S+)\.\s.*?MALFORMED_RECORD_IN_PARSING", re.DOTALL)
_RAISED: Final = re.compile(
    r"(?:MALFORMED_RECORD_IN_PARSING|MALFORMED_CSV_RECORD\] Malformed CSV record): (?P<record>.*?)(?: SQLSTATE|\n|$)"
)
"""The error for a malformed record. `sources.file_reader` raises it for a record that Spark's own reader would accept.

Spark itself raises it for an incomplete record.
"""

_JSON_STOPPED: Final = re.compile(r"JsonParseException: .*?\bcolumn: (?P<column>\d+)\]", re.DOTALL)
_JSON_TEXT_MAX: Final = 20_000_000
"""How many characters a string in a JSON record may have. Spark's parser stops there, and reports a missing comma."""

_SMALLER: Final = "make micro-batches smaller, as with --set micro_batch_rows_max=50000 --set slice_rows_max=10000"
_OUT_OF_MEMORY: Final = f"- the function ran out of memory: {_SMALLER}"
_CORRECT: Final = ": correct it and run again, nothing of this micro-batch counts"
_DIED: Final = (
    "a Python worker died while it ran the vertex's function: the function called os._exit or crashed in native code, "
    f"or the kernel killed the worker because memory ran out (see 'dmesg'): {_SMALLER}"
)
_NO_CONNECTOR: Final = (
    "Spark has no reader for the object store in which the input lies: add Hadoop's connector to Spark, or store the "
    "input as Parquet, which tasks read without Spark"
)
_KNOWN: Final = (
    (
        re.compile(r"java\.lang\.OutOfMemoryError|OutOfMemoryError: "),
        f"Spark's JVM ran out of memory: give it more with --spark-memory 4g, or {_SMALLER}",
    ),
    (
        re.compile(r"PYTHON_VERSION_MISMATCH"),
        "the Python of the workers has another version than the tick's: unset PYSPARK_PYTHON, or set it to this Python",
    ),
    (
        re.compile(r'Cannot run program "(?P<thing>[^"]*)"'),
        "Spark cannot start {thing} for its Python workers: unset PYSPARK_PYTHON, or set it to a Python that is there",
    ),
    (
        re.compile(r"Python worker exited unexpectedly|Python worker process terminated"),
        _DIED,
    ),
    (
        re.compile(r'Class org\.apache\.hadoop\.fs\.\S+ not found|No FileSystem for scheme "'),
        _NO_CONNECTOR,
    ),
)
"""Patterns of Spark's messages about problems of the machine, and our sentence for each. The first match is used."""


_STAGED_FILE_ERROR: Final = f"{StagedFileError.__module__}.{StagedFileError.__qualname__}"
_SPARKS_OWN_FILES: Final = re.compile(
    r"java\.io\.IOException: (?:No space left on device|Disk quota exceeded|Read-only file system)"
)


class MicroBatchError(Exception):
    """A micro-batch failed, and nothing that it wrote is used. The message names vertex, micro-batch and cause.

    The traceback follows below.

    `not_staged`: the micro-batch failed only because files could not be written, so the same rows can succeed later.
    """

    def __init__(self, vertex: str, micro_batch: int, reason: str, *, not_staged: bool = False) -> None:
        """Build the message from the vertex, its micro-batch and the reason. The reason's first line is a sentence."""
        what = "could not be written" if not_staged else "failed"
        super().__init__(f"micro-batch {micro_batch} of vertex {vertex} {what}: {reason}")
        self.not_staged = not_staged

    @classmethod
    def of(cls, vertex: str, micro_batch: int, error: Exception) -> "MicroBatchError":
        """Return the error that describes what a micro-batch raised."""
        return cls(vertex, micro_batch, reason_of(error), not_staged=is_not_staged(error))


def is_not_staged(error: Exception) -> bool:
    """Return whether a micro-batch failed only because its files could not be written.

    The type of the error decides. In a task the type is StagedFileError, which only the writer of staged files raises.
    In the JVM the type is an IOException about a file of Spark's own, such as a shuffle file. An error of the user's
    code is never treated so, even if its message says that a disk is full.
    """
    text = str(error)
    if isinstance(error, StagedFileError) or kind_of(error) == _STAGED_FILE_ERROR:
        return True
    return _WORKER not in text and _SPARKS_OWN_FILES.search(text) is not None


def reason_of(error: Exception) -> str:
    """Return why a micro-batch failed: a sentence, and below it the whole message of Python or Spark."""
    text = str(error)
    for pattern, sentence in _KNOWN:
        found = pattern.search(text)
        if found is not None:
            return f"{sentence.format(**found.groupdict())}\n{text.strip()[:TRACEBACK_CHARS_MAX]}"
    accident = accident_in(text)
    if accident in {DISK_FULL, READ_ONLY} or (accident is not None and is_not_staged(error)):
        return f"{accident}\n{text.strip()[:TRACEBACK_CHARS_MAX]}"
    if _WORKER not in text and ("\tat " in text or _RAISED.search(text)):
        return _of_spark(text)
    message = message_of(error, _CORRECT)
    return noted(message, _OUT_OF_MEMORY) if message.startswith("MemoryError") else message


def _of_spark(text: str) -> str:
    """Return the JVM's message without its stack trace, and the line of the user's code if Spark reports that line."""
    causes = _CAUSE.findall(text)
    said = f"{causes[-1][0]}: {causes[-1][1]}" if causes else text.strip().partition("\n")[0]
    malformed, raised = _MALFORMED.search(text), _RAISED.search(text)
    said, way_out = raised["record"] if raised else said, "correct the file"
    stopped = _JSON_STOPPED.search(text)
    if stopped is not None and int(stopped["column"]) > _JSON_TEXT_MAX:
        said = f"it has a text of more than {_JSON_TEXT_MAX:,} characters, which Spark's JSON parser does not read"
        way_out = "write the file as Parquet"
    if malformed is not None:
        said = (
            f"{malformed['file']} has a record that cannot be read as the source's schema and options say ({said}): "
            f"{way_out}, or give its FileSource a corrupt_column, which holds such records"
        )
    place = _CALLED_FROM.search(text)
    where = f" ({place['file']}, line {place['line']})" if place else ""
    return f"{said}{where}\n{text.strip()[:TRACEBACK_CHARS_MAX]}"


_LEFT_TO_SPARK: Final = f"{LeftToSparkError.__module__}.{LeftToSparkError.__qualname__}"


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """A finished micro-batch: its result, and how often its tasks found their state in the worker's memory (D5).

    `workers` are the hosts and versions of the workers that ran its tasks, as they reported them.
    """

    finished: MicroBatchFinished
    copies: CopyUses
    workers: frozenset[str]


def run_micro_batch(
    jobs: PlannedJobs, plan: VertexPlan, effect: RunMicroBatch, warehouse: Root, job: JobName
) -> MicroBatch:
    """Run the micro-batch as one Spark job, and return what each subtask wrote.

    `warehouse` must be the same folder for the driver and every task. May be called from several
    threads at once. Raise MicroBatchError, naming the vertex and the cause, if the job fails.
    """
    started = time.monotonic()
    try:
        rows, observed = _reports(jobs, plan, effect, absolute(warehouse), job)
        tasks = [report_from(row["report"]) for row in rows]
    except Exception as error:
        raise MicroBatchError.of(effect.vertex, effect.micro_batch, error) from error
    finished = result_of(plan, effect, tasks, round((time.monotonic() - started) * 1000), observed)
    copies = sum((task.copies for task in tasks), NO_USES)
    return MicroBatch(finished, copies, frozenset(row["worker"] for row in rows))


def result_of(
    plan: VertexPlan,
    effect: RunMicroBatch,
    tasks: Iterable[TaskReport],
    duration_ms: int,
    observed: SplitTimes = (),
) -> MicroBatchFinished:
    """Return the result of a micro-batch, from its tasks' reports and the event times that Spark has observed."""
    reports = tuple(tasks)
    by_subtask = _by_subtask(plan, reports)
    return MicroBatchFinished(
        vertex=effect.vertex,
        micro_batch=effect.micro_batch,
        outputs=tuple(_output(own) for own in by_subtask),
        duration_ms=duration_ms,
        work=tuple(sum((task.work for task in own), NO_WORK) for own in by_subtask),
        times=_greatest([*observed, *(time for report in reports for time in report.times)]),
    )


def _greatest(times: Iterable[tuple[int, str, int]]) -> tuple[GreatestTime, ...]:
    found: dict[tuple[int, str], int] = {}
    for number, split, ms in times:
        found[number, split] = max(ms, found.get((number, split), ms))
    return tuple(GreatestTime(number, split_id(split), ms) for (number, split), ms in sorted(found.items()))


def _reports(
    jobs: PlannedJobs, plan: VertexPlan, effect: RunMicroBatch, warehouse: Root, job: JobName
) -> tuple[list[Row], SplitTimes]:
    """Return the reports of the tasks, and the event times that Spark has observed."""
    writer = StagedFiles(str(warehouse), job, Generation(effect.generation), effect.vertex, effect.micro_batch)
    observed = ObservedTimes()
    parts = _parts(jobs, plan, effect, warehouse, writer, observed)
    try:
        rows = jobs.collect(parts) if parts else []
        return rows, observed.taken()
    except PySparkException as error:
        if kind_of(error) != _LEFT_TO_SPARK:
            raise
    for reads in plan.inputs:
        if isinstance(reads.reader, MayLeaveToSpark):
            reads.reader.leave_to_spark()
    observed = ObservedTimes()
    rows = jobs.collect(_parts(jobs, plan, effect, warehouse, writer, observed))
    return rows, observed.taken()


def _parts(
    jobs: PlannedJobs,
    plan: VertexPlan,
    effect: RunMicroBatch,
    warehouse: Root,
    writer: StagedFiles,
    observed: ObservedTimes,
) -> tuple[Part, ...]:
    """Return the lazy parts of the job. There are none if there is nothing to read and no state to rewrite."""
    reading = MicroBatchRows(jobs, plan, effect, warehouse, observed)
    match plan.spec:
        case StatelessSpec() as spec:
            alone = reading.divided()
            if alone is not None:
                return (divided_job(jobs.session, spec, alone, writer),)
            return stateless_job(jobs.session, spec, reading.arriving(), writer)
        case KeyedSpec() as spec:
            rows = reading.arriving()
            needed = rows or misfits(spec, effect) or must_wake(spec, effect)
            return (keyed_job(jobs.session, spec, effect, rows, writer),) if needed else ()
        case _ as unreachable:
            assert_never(unreachable)


def _by_subtask(plan: VertexPlan, reports: Iterable[TaskReport]) -> list[list[TaskReport]]:
    parallelism = plan.spec.parallelism if isinstance(plan.spec, KeyedSpec) else 1
    by_subtask: list[list[TaskReport]] = [[] for _ in range(parallelism)]
    for report in reports:
        by_subtask[report.subtask].append(report)
    return by_subtask


def _output(reports: Iterable[TaskReport]) -> SubtaskOutput:
    own = sorted(reports, key=lambda report: [file.path for file in report.emitted])
    return SubtaskOutput(
        emitted=tuple(file for report in own for file in report.emitted),
        staged=tuple(entry for report in own for entry in report.staged),
        state=tuple(file for report in own for file in report.state),
        ended=tuple(path for report in own for path in report.ended),
        ranges=tuple(entry for report in own for entry in report.ranges),
        due_ms=min((report.due_ms for report in own if report.due_ms is not None), default=None),
    )
