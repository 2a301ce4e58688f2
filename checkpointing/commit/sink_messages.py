"""The alphabet of the two-phase-commit sink: facts (past tense) in, effects (imperative) out.

No run reaches it. Outside sinks that vote follow `pre_committed` (F3).
"""

from dataclasses import dataclass

from checkpointing.identifiers import CheckpointId


@dataclass(frozen=True, slots=True)
class Transaction:
    """A transaction of the external system: its number in this sink's life, and when it began (ms)."""

    number: int
    begun_ms: int
    sink: str = ""
    """The sink object that began it, so that two lives of a subtask never share a number."""


@dataclass(frozen=True, slots=True)
class SinkState:
    """What a snapshot stores: the transactions to commit, oldest first, and the one to abort."""

    pre_committed: tuple[tuple[CheckpointId, Transaction], ...] = ()
    current: Transaction | None = None


class NoOpenTransactionError(RuntimeError):
    """An element came after the end of the input, or before the sink was opened."""

    def __init__(self, value: object) -> None:
        super().__init__(f"element {value!r} came to a sink without a current transaction; open it, or end the input")


class SnapshotUnderWayError(RuntimeError):
    """A fact came that must wait until the pending pre-commit is answered."""

    def __init__(self, checkpoint: CheckpointId) -> None:
        super().__init__(f"the snapshot for checkpoint {checkpoint} is not answered yet; answer PreCommit first")


# ------------------------------------------------------------------ facts


@dataclass(frozen=True, slots=True)
class SinkOpened:
    """The sink starts. `restored` is what its last completed snapshot stored; None for a fresh start."""

    now_ms: int
    restored: SinkState | None = None


@dataclass(frozen=True, slots=True)
class ElementArrived:
    """A row for the current transaction."""

    value: object


@dataclass(frozen=True, slots=True)
class SinkSnapshotRequested:
    """The barrier of this checkpoint has come."""

    checkpoint: CheckpointId
    now_ms: int


@dataclass(frozen=True, slots=True)
class PreCommitted:
    """Answer to PreCommit."""

    now_ms: int


@dataclass(frozen=True, slots=True)
class PreCommitFailed:
    """Answer to PreCommit: the snapshot fails, and the transaction stays current."""

    error: str


@dataclass(frozen=True, slots=True)
class CompletionNotified:
    """Checkpoint n is complete. A late or repeated notification finds nothing to commit."""

    checkpoint: CheckpointId
    now_ms: int


@dataclass(frozen=True, slots=True)
class TransactionCommitted:
    """Answer to Commit. Committing a committed transaction again also succeeds."""

    transaction: Transaction


@dataclass(frozen=True, slots=True)
class CommitRefused:
    """Answer to Commit: it failed."""

    transaction: Transaction
    error: str
    now_ms: int


@dataclass(frozen=True, slots=True)
class InputFinished:
    """No more elements come. The next snapshot takes the last transaction and begins no other (FLINK-23473)."""


@dataclass(frozen=True, slots=True)
class SinkClosed:
    """The sink ends. Its current transaction is aborted. The pre-committed ones are left to a restore."""


SinkFact = (
    SinkOpened
    | ElementArrived
    | SinkSnapshotRequested
    | PreCommitted
    | PreCommitFailed
    | CompletionNotified
    | TransactionCommitted
    | CommitRefused
    | InputFinished
    | SinkClosed
)

# ------------------------------------------------------------------ effects


@dataclass(frozen=True, slots=True)
class BeginTransaction:
    """Begin this transaction in the external system."""

    transaction: Transaction


@dataclass(frozen=True, slots=True)
class WriteElement:
    """Write the row into the transaction."""

    transaction: Transaction
    value: object


@dataclass(frozen=True, slots=True)
class PreCommit:
    """Flush the transaction, so that it can be committed in any case. Answer with PreCommitted or PreCommitFailed."""

    transaction: Transaction


@dataclass(frozen=True, slots=True)
class StoreState:
    """Store the state as this checkpoint's snapshot."""

    checkpoint: CheckpointId
    state: SinkState


@dataclass(frozen=True, slots=True)
class Commit:
    """Make the transaction visible. A repetition changes nothing. Answer with TransactionCommitted or CommitRefused."""

    transaction: Transaction


@dataclass(frozen=True, slots=True)
class Abort:
    """Drop the transaction. It may be unknown, or dropped already."""

    transaction: Transaction


@dataclass(frozen=True, slots=True)
class WarnOfTimeout:
    """The transaction to commit is so old that the external system may drop it soon."""

    age_ms: int
    timeout_ms: int


@dataclass(frozen=True, slots=True)
class FailSink:
    """Fail the subtask. `error` is the first one that the external system raised."""

    error: str


SinkEffect = BeginTransaction | WriteElement | PreCommit | StoreState | Commit | Abort | WarnOfTimeout | FailSink
