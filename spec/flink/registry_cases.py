"""Runs the registry cases: shared state, the store of completed checkpoints, the cleaner. Every rule is the core's."""

from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from checkpointing.coordinator.completed import (
    DISCARD_ALWAYS,
    DISCARD_NEVER,
    CompletedCheckpoint,
    CompletedCheckpointStore,
    DiscardCause,
    StoreChange,
    SubsumedCheckpoints,
)
from checkpointing.coordinator.properties import CheckpointProperties, SnapshotKind
from checkpointing.identifiers import NO_CHECKPOINT, CheckpointId
from spec.flink.messages import (
    FlinkRegistry,
    RestoredKind,
    RestoreMode,
)
from spec.flink.vectors import named_step

Handle = Hashable


Value = Any

_KINDS = {
    "checkpoint": CheckpointProperties(),
    "savepoint": CheckpointProperties(kind=SnapshotKind.SAVEPOINT),
    "stop_savepoint": CheckpointProperties(kind=SnapshotKind.SYNCHRONOUS_SAVEPOINT),
}
_ORDERED = frozenset({"retained"})
_EXACT_CHECKPOINTS = "store"


def claims(legend: Mapping[str, Any]) -> bool:
    """Return whether the legend is that of the registry cases."""
    return {"registry", "subsume", "store", "cleaner"} <= set(legend.get("kinds", ()))


def run_case(_legend: Mapping[str, Any], case: Mapping[str, Any]) -> list[str]:
    """Run one case. Return its problems."""
    run, problems = _Run(case["given"]), list[str]()
    for index, (word, *args) in enumerate(case["steps"]):
        with named_step(index, word):
            problems += [f"step {index} {word}: {problem}" for problem in _run_step(run, case, index, word, args)]
    return problems


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
        case _:
            return isinstance(got, RuntimeError)


@dataclass(frozen=True, eq=False, slots=True)
class _Handle:
    """A handle object. Two handles whose labels differ only in quotes are the same file."""

    label: str

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Handle) and self.label.rstrip("'") == other.label.rstrip("'")

    def __hash__(self) -> int:
        return hash(self.label.rstrip("'"))


class _Run:
    """The state of one case."""

    def __init__(self, given: Mapping[str, Value]) -> None:
        self._given = given
        self._registry = FlinkRegistry()
        self._cleaner = SubsumedCheckpoints()
        self._discarded: list[str] = []
        self._checkpoints_discarded: list[int] = []
        self._facts: dict[str, Value] = {}
        self._first_error: Exception | None = None
        self._store: CompletedCheckpointStore | None = None
        restored = given.get("restored")
        if restored is not None:
            self._register_restored(restored)

    def _stored(self, checkpoint: CheckpointId) -> CompletedCheckpoint:
        retained = checkpoint in self._given.get("retain_on_cancellation", ())
        discard_on = DISCARD_ALWAYS - {DiscardCause.CANCELED} if retained else DISCARD_ALWAYS
        return CompletedCheckpoint(id=checkpoint, properties=_KINDS["checkpoint"], discard_on=discard_on)

    def _register_restored(self, restored: Mapping[str, Value]) -> None:
        handles = {key: _Handle(label) for key, label in restored["keys"].items()}
        mode, kind = RestoreMode(restored["mode"]), RestoredKind(restored["kind"])
        self._registry.register_restored(CheckpointId(restored["id"]), handles, mode, kind)

    @property
    def _open_store(self) -> CompletedCheckpointStore:
        self._store = self._store or CompletedCheckpointStore(self._given.get("retained", 1), self._registry)
        return self._store

    # -------------------------------------------------------------- steps

    def do(self, word: str, args: list[Value]) -> Exception | None:
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
        flag = bool((options or {}).get("prevent_discarding_created_checkpoint", False))
        user = CheckpointId(checkpoint or NO_CHECKPOINT)
        if flag:
            self._registry.keep_creator(key)
        first = self._registry.register(key, handle, user)
        self._facts["result"] = _label(first)

    def _do_unregister_unused(self, lowest: int) -> None:
        unregistered = self._registry.unregister_unused(CheckpointId(lowest))
        self._discarded.extend(_label(handle) for handle in unregistered.discarded)
        self._facts["in_use"] = list(unregistered.in_use)

    def _do_create(self) -> None:
        self._store = CompletedCheckpointStore(self._given.get("retained", 1), self._registry)

    def _do_add(self, checkpoint: int, kind: str) -> None:
        discard_on = DISCARD_ALWAYS if kind == "checkpoint" else DISCARD_NEVER
        completed = CompletedCheckpoint(id=CheckpointId(checkpoint), properties=_KINDS[kind], discard_on=discard_on)
        self._let_go(self._open_store.add(completed))

    def _do_abort(self, _checkpoint: int) -> None:
        """Do nothing with the registry, because an abort never deletes shared state."""

    def _do_subsumed(self, checkpoint: int) -> None:
        self._cleaner.add(self._stored(CheckpointId(checkpoint)))

    def _do_clean(self, up_to: int, in_use: list[int]) -> None:
        gone = self._cleaner.clean(CheckpointId(up_to), frozenset(CheckpointId(id_) for id_ in in_use))
        self._checkpoints_discarded.extend(checkpoint.id for checkpoint in gone)

    def _let_go(self, change: StoreChange) -> None:
        self._checkpoints_discarded.extend(checkpoint.id for checkpoint in change.cleaned)
        self._discarded.extend(_label(handle) for handle in change.shared)

    # -------------------------------------------------------------- facts

    def fact(self, name: str) -> Value:
        match name:
            case "retained":
                return self._retained()
            case "latest":
                return next(reversed(self._retained()), None)
            case "latest_id":
                return self._open_store.latest_id
            case "discarded" | "not_discarded":
                return [label.rstrip("'") for label in self._discarded]
            case "checkpoints_discarded" | "checkpoints_not_discarded":
                return self._checkpoints_discarded
            case _:
                return self._facts[name]

    def _retained(self) -> list[int]:
        return [checkpoint.id for checkpoint in self._open_store.checkpoints]


def _label(handle: object) -> str:
    if not isinstance(handle, _Handle):
        raise TypeError(f"{handle!r} is no handle of this runner")
    return handle.label
