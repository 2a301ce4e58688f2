"""Counts references to shared files, as Flink's registry did up to 1.14 (`SharedStateRegistryImpl` there).

It serves stores that cannot say which checkpoints are kept. It contradicts the product's registry by design: here
each user gives its reference back, and a second, different file under a known key is discarded.
"""

from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from checkpointing.coordinator.completed import (
    DISCARD_ALWAYS,
    DISCARD_NEVER,
    CompletedCheckpoint,
    DiscardCause,
    StoreChange,
    SubsumedCheckpoints,
)
from checkpointing.coordinator.properties import CheckpointProperties, SnapshotKind
from checkpointing.identifiers import NO_CHECKPOINT, CheckpointId
from spec.flink.case_form import named_step
from spec.flink.completed_store import (
    FlinkCheckpointStore,
    FlinkRegistry,
    JobStatus,
    RestoredKind,
    RestoreMode,
    parts_to_discard,
)

Handle = Hashable


@dataclass(frozen=True, slots=True)
class Referenced:
    """The outcome of a call: the registered file (None if it is gone), its references, and the files to delete."""

    handle: Handle | None
    references: int
    discarded: tuple[Handle, ...] = ()


class ReferenceCountingRegistry:
    """Counts the references to each file. A file without references is deleted."""

    __slots__ = ("_entries",)

    def __init__(self) -> None:
        """Begin with no file."""
        self._entries: dict[str, tuple[Handle, int]] = {}

    def register(self, key: str, handle: Handle) -> Referenced:
        """Add a reference. The first file under a key wins, and a different one is returned for deletion."""
        known, references = self._entries.get(key, (handle, 0))
        self._entries[key] = (known, references + 1)
        return Referenced(known, references + 1, () if known == handle else (handle,))

    def unregister(self, key: str) -> Referenced:
        """Give one reference back. Without references the file is returned for deletion. An unknown key is ignored.

        Flink's present registry also ignores what it does not know. The one up to 1.14 raised IllegalStateException.
        """
        if key not in self._entries:
            return Referenced(None, 0)
        known, references = self._entries[key]
        if references > 1:
            self._entries[key] = (known, references - 1)
            return Referenced(known, references - 1)
        del self._entries[key]
        return Referenced(None, 0, (known,))


# ------------------------------------------------------------------
# Runs the registry cases: shared state, the store of completed checkpoints, the cleaner, the counting registry.
#
# The runner plays the disk (durable metadata), and notes what was discarded. Every rule is the core's.


Value = Any

_KINDS = {
    "checkpoint": CheckpointProperties(),
    "savepoint": CheckpointProperties(kind=SnapshotKind.SAVEPOINT),
    "stop_savepoint": CheckpointProperties(kind=SnapshotKind.SYNCHRONOUS_SAVEPOINT),
}
_ORDERED = frozenset({"retained", "persisted"})
_EXACT_CHECKPOINTS = "store"


def claims(legend: Mapping[str, Any]) -> bool:
    """Return whether the legend is that of the registry cases."""
    return {"registry", "subsume", "store", "cleaner"} <= set(legend.get("kinds", ()))


def run_case(_legend: Mapping[str, Any], case: Mapping[str, Any]) -> list[str]:
    """Run one case, once for each job status that it lists. Return what does not hold."""
    statuses = case["given"].get("each_job_status", [None])
    return [problem for status in statuses for problem in _run_once(case, status)]


def _run_once(case: Mapping[str, Any], status: str | None) -> Iterator[str]:
    run = _Run(case["given"], counting=case["kind"] == "registry_refcount")
    for index, raw in enumerate(case["steps"]):
        word, *args = (status if part == "$status" else part for part in raw)
        with named_step(index, word):
            found = _run_step(run, case, index, str(word), args)
            yield from (f"step {index} {word}: {problem}" for problem in found)


def _run_step(run: "_Run", case: Mapping[str, Any], index: int, word: str, args: list[Value]) -> Iterator[str]:
    error = run.do(word, args)
    entries = [entry for entry in case["expect"] if entry["after"] == index]
    if error is not None and not any("error" in entry for entry in entries):
        yield f"expected no error, got {error!r}"
    for entry in entries:
        for name, expected in entry.items():
            got = None if name == "after" else run.fact(name)
            if name != "after" and not _holds(case["kind"], name, expected, got):
                yield f"{name}: expected {expected}, got {got}"


def _holds(kind: str, name: str, expected: Value, got: Value) -> bool:
    match name:
        case "error":
            return _is_error(expected, got)
        case "not_discarded":
            return not {label.rstrip("'") for label in expected} & set(got)
        case "checkpoints_not_discarded":
            return not set(expected) & set(got)
        case "checkpoints_discarded" if kind != _EXACT_CHECKPOINTS:
            return set(expected) <= set(got)
        case _ if isinstance(expected, list) and name not in _ORDERED:
            return len(got) == len(set(got)) and set(expected) == set(got)
        case _:
            return bool(expected == got)


def _is_error(expected: str | None, got: Exception | None) -> bool:
    match expected:
        case None:
            return got is None
        case "any":
            return got is not None
        case "IllegalState":
            return isinstance(got, RuntimeError)
        case "io":
            return isinstance(got, _ReadError)
        case _:
            return isinstance(got, _PersistError)


class _ReadError(OSError):
    """The fault `read_throws`."""


class _PersistError(OSError):
    """The fault `persist_throws`."""


@dataclass(frozen=True, eq=False, slots=True)
class _Handle:
    """A handle object. Two with labels that differ only in quotes are the same file."""

    label: str

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Handle) and self.label.rstrip("'") == other.label.rstrip("'")

    def __hash__(self) -> int:
        return hash(self.label.rstrip("'"))


class _Run:
    """The state of one case."""

    def __init__(self, given: Mapping[str, Value], *, counting: bool) -> None:
        self._given = given
        self._registry = FlinkRegistry()
        self._counting = ReferenceCountingRegistry() if counting else None
        self._cleaner = SubsumedCheckpoints()
        self._registered: list[tuple[str, _Handle, CheckpointId]] = []
        self._discarded: list[str] = []
        self._checkpoints_discarded: list[int] = []
        self._persisted: list[int] = []
        self._durable: dict[int, CompletedCheckpoint] = {
            id_: self._stored(CheckpointId(id_)) for id_ in given.get("stored", ())
        }
        self._facts: dict[str, Value] = {"removed_from_metadata": 0, "entries_cleared": False, "locks_released": False}
        self._first_error: Exception | None = None
        self._kept: tuple[CompletedCheckpoint, ...] | None = None
        self._store: FlinkCheckpointStore | None = None
        restored = given.get("restored")
        if restored is not None:
            self._register_restored(restored)
        if given.get("retained", 1) > 0:
            self._store = self._new_store(())

    def _new_store(self, checkpoints: tuple[CompletedCheckpoint, ...]) -> FlinkCheckpointStore:
        durable = self._given.get("store") != "standalone"
        return FlinkCheckpointStore(self._given.get("retained", 1), self._registry, checkpoints, durable=durable)

    def _stored(self, checkpoint: CheckpointId) -> CompletedCheckpoint:
        retained = checkpoint in self._given.get("retain_on_cancellation", ())
        discard_on = DISCARD_ALWAYS - {DiscardCause.CANCELED} if retained else DISCARD_ALWAYS
        return CompletedCheckpoint(id=checkpoint, properties=_KINDS["checkpoint"], discard_on=discard_on)

    def _register_restored(self, restored: Mapping[str, Value]) -> None:
        handles = {key: _Handle(label) for key, label in restored["keys"].items()}
        mode, kind = RestoreMode(restored["mode"]), RestoredKind(restored["kind"])
        self._registry.register_restored(CheckpointId(restored["id"]), handles, mode, kind)

    @property
    def _open_store(self) -> FlinkCheckpointStore:
        if self._store is None:
            self._store = self._new_store(())
        return self._store

    # -------------------------------------------------------------- steps

    def do(self, word: str, args: list[Value]) -> Exception | None:
        """Take a step. Return the error that it raised."""
        self._facts.pop("result", None)
        step: Callable[..., None] = getattr(self, f"_do_{word}")
        try:
            step(*args)
        except (RuntimeError, ValueError, OSError) as error:
            self._first_error = self._first_error or error
            self._facts["error"] = error
            return error
        self._facts["error"] = self._first_error
        return None

    def _do_register(
        self, key: str, label: str, checkpoint: int | None = None, options: Mapping[str, bool] | None = None
    ) -> None:
        handle = _Handle(label)
        if self._counting is not None:
            outcome = self._counting.register(key, handle)
            self._note_counted(outcome.handle, outcome.references, outcome.discarded)
            return
        flag = bool((options or {}).get("prevent_discarding_created_checkpoint", False))
        user = CheckpointId(checkpoint or NO_CHECKPOINT)
        if flag:
            self._registry.keep_creator(key)
        first = self._registry.register(key, handle, user)
        self._registered.append((key, handle, user))
        self._facts["result"] = _label(first)

    def _do_unregister(self, key: str) -> None:
        if self._counting is not None:
            outcome = self._counting.unregister(key)
            self._note_counted(outcome.handle, outcome.references, outcome.discarded)

    def _note_counted(self, handle: object, references: int, discarded: tuple[object, ...]) -> None:
        self._facts["result"] = None if handle is None else _label(handle)
        self._facts["refs"] = references
        self._discarded.extend(_label(gone) for gone in discarded)

    def _do_unregister_unused(self, lowest: int) -> None:
        unregistered = self._registry.unregister_unused(CheckpointId(lowest))
        self._discarded.extend(_label(handle) for handle in unregistered.discarded)
        self._facts["in_use"] = list(unregistered.in_use)

    def _do_create(self) -> None:
        self._store = self._new_store(())

    def _do_recover(self) -> None:
        word, *args = self._given.get("fault", [""])
        if word == "read_throws" and args[0] in self._durable:
            raise _ReadError(f"checkpoint {args[0]} cannot be read")
        self._store = self._new_store(tuple(self._durable.values()))

    def _do_add(self, checkpoint: int, kind: str) -> None:
        store = self._open_store
        discard_on = DISCARD_ALWAYS if kind == "checkpoint" else DISCARD_NEVER
        completed = CompletedCheckpoint(id=CheckpointId(checkpoint), properties=_KINDS[kind], discard_on=discard_on)
        if self._given.get("store") == "HA" and store.is_open:
            self._persist(completed)
        change = store.add(completed)
        for subsumed in change.subsumed:
            self._durable.pop(subsumed.id, None)
        self._let_go(change)

    def _persist(self, checkpoint: CompletedCheckpoint) -> None:
        if self._given.get("fault", [""])[0] == "persist_throws":
            raise _PersistError(f"checkpoint {checkpoint.id} cannot be written")
        self._durable[checkpoint.id] = checkpoint
        self._persisted.append(checkpoint.id)

    def _do_abort(self, _checkpoint: int) -> None:
        """Tell the registry nothing, because an abort never deletes shared state."""

    def _do_remove_oldest(self) -> None:
        self._let_go(self._open_store.remove_oldest())

    def _do_shutdown(self, status: str) -> None:
        store, job_status = self._open_store, JobStatus(status)
        self._kept = store.checkpoints
        self._let_go(store.shut_down(job_status))
        if job_status.is_final:
            self._facts["removed_from_metadata"] = len(self._durable)
            self._facts["entries_cleared"] = True
            self._durable.clear()
        else:
            self._facts["locks_released"] = True

    def _do_restore(self, mode: str, checkpoints: list[int]) -> None:
        self._registry = FlinkRegistry()
        kept = tuple(self._stored(CheckpointId(id_)) for id_ in checkpoints)
        for checkpoint in kept:
            shared = {key: handle for key, handle, user in self._registered if user == checkpoint.id}
            self._registry.register_restored(checkpoint.id, shared, RestoreMode(mode))
        self._store, self._kept = self._new_store(kept), None

    def _do_subsumed(self, checkpoint: int) -> None:
        self._cleaner.add(self._stored(CheckpointId(checkpoint)))

    def _do_clean(self, up_to: int, in_use: list[int]) -> None:
        gone = self._cleaner.clean(CheckpointId(up_to), frozenset(CheckpointId(id_) for id_ in in_use))
        self._checkpoints_discarded.extend(checkpoint.id for checkpoint in gone)

    def _do_discard_if(self, cause: str) -> None:
        discard_on = frozenset(DiscardCause(word) for word in self._given["discard_on"])
        self._facts["deleted"] = [part.value for part in parts_to_discard(discard_on, DiscardCause(cause))]

    def _let_go(self, change: StoreChange) -> None:
        self._checkpoints_discarded.extend(checkpoint.id for checkpoint in change.cleaned)
        self._discarded.extend(_label(handle) for handle in change.shared)

    # -------------------------------------------------------------- facts

    def fact(self, name: str) -> Value:
        """Return the value of a fact."""
        match name:
            case "retained":
                return self._retained()
            case "latest":
                return next(reversed(self._retained()), None)
            case "latest_id":
                return self._open_store.latest_id
            case "persisted":
                return self._persisted
            case "discarded" | "not_discarded":
                return [label.rstrip("'") for label in self._discarded]
            case "checkpoints_discarded" | "checkpoints_not_discarded":
                return self._checkpoints_discarded
            case _:
                return self._facts[name]

    def _retained(self) -> list[int]:
        """Return what is kept; an embedded store, its own durable metadata, keeps its list when it is suspended."""
        kept = self._kept if self._given.get("store") == "embedded" else None
        checkpoints = self._open_store.checkpoints if kept is None else kept
        return [checkpoint.id for checkpoint in checkpoints]


def _label(handle: object) -> str:
    if not isinstance(handle, _Handle):
        raise TypeError(f"{handle!r} is no handle of this runner")
    return handle.label
