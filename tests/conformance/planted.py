"""Bugs planted in the real stores, each with the invariants that may report it."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from deltalake import CommitProperties

from checkpointing.commit import cleanup, manifests, recovery
from checkpointing.tick import door
from jobs.warehouse import checkpoints, cuts_table, delta_log, publisher, tables
from jobs.warehouse import cleanup as deleting

Plant = Callable[..., None]


@dataclass(frozen=True, slots=True)
class Bug:
    """A patch of the stores' behaviour by `monkeypatch`, and the rules that it may break.

    There is more than one rule if the choices decide which rule breaks first. `soon` is true if nearly every warehouse
    shows the bug.
    """

    breaks: frozenset[str]
    plant: Plant
    soon: bool = False


def _publish_whatever_the_table_shows(monkeypatch):
    monkeypatch.setattr(tables.TableLogs, "shown", lambda self, table, name: 0)


def _take_any_version_for_the_cut(monkeypatch):
    real = cuts_table.CutStore.record

    def record(self, checkpoint, versions, *further):
        return real(self, checkpoint, [(table, max(0, version - 1)) for table, version in versions], *further)

    monkeypatch.setattr(cuts_table.CutStore, "record", record)


def _commit_without_comparing(monkeypatch):
    real = CommitProperties

    def properties(**chosen):
        return real(**{**chosen, "max_commit_retries": 15})

    monkeypatch.setattr(delta_log, "CommitProperties", properties)
    append = checkpoints.CheckpointStore.append

    def at_any_version(self, row, at_version, *args, **kwargs):
        return append(self, row, self._log.current().version(), *args, **kwargs)

    monkeypatch.setattr(checkpoints.CheckpointStore, "append", at_any_version)


def _delete_what_the_newest_row_names(monkeypatch):
    def any_older(path, name, generation, *, current, by):
        return generation < current

    monkeypatch.setattr(deleting, "is_unreferenced", any_older)


def _forget_what_is_pinned(monkeypatch):
    monkeypatch.setattr(
        deleting,
        "is_unreferenced",
        lambda path, name, generation, *, current, by: cleanup.is_unreferenced(
            path, name, generation, current=current, by=replace(by, pinned=frozenset())
        ),
    )


def _leave_replaced_files_active(monkeypatch):
    monkeypatch.setattr(publisher.Publisher, "_removes", lambda self, table, request, active: [])


def _take_a_lost_row_for_one_that_is_in(monkeypatch):
    def read_back(self, row, at_version, met):
        return checkpoints.Appended(at_version + 1)

    monkeypatch.setattr(checkpoints.CheckpointStore, "_read_back", read_back)


def _leave_in_what_a_rollback_takes_out(monkeypatch):
    real = recovery.publications

    def publications(record):
        return tuple(replace(publication, removes=()) for publication in real(record))

    monkeypatch.setattr(door, "publications", publications)


def _append_before_the_manifests_are_there(monkeypatch):
    monkeypatch.setattr(checkpoints.ManifestFiles, "_write", lambda self, path, content: None)


def _count_what_an_entry_leaves_out(monkeypatch):
    real = manifests.stored

    def stored(record, before=None, sizes=manifests.SIZES):
        form = real(record, before, sizes)
        named = tuple(each.model_copy(update={"left_out": ""}) for each in form.entry.manifests)
        return replace(form, entry=form.entry.model_copy(update={"manifests": named}))

    monkeypatch.setattr(checkpoints, "stored", stored)


LEAVE_IN_WHAT_A_ROLLBACK_TAKES_OUT = Bug(
    frozenset({"gone-back", "cut-is-exact", "visible-after-commit"}), _leave_in_what_a_rollback_takes_out
)
"""It breaks all three rules at once if later rows than those of the rollback's target were published."""

FORGET_WHAT_IS_PINNED = Bug(frozenset({"discarded-is-unreferenced", "pinned-stays"}), _forget_what_is_pinned)
"""It seldom shows: a tick must die at a savepoint that names files which the newest checkpoint does not name."""

BUGS = {
    "publish whatever the table shows": Bug(
        frozenset({"no-file-is-missed", "cut-is-one", "cut-is-exact"}), _publish_whatever_the_table_shows
    ),
    "take any version for the cut": Bug(frozenset({"cut-is-exact"}), _take_any_version_for_the_cut, soon=True),
    "commit without comparing": Bug(frozenset({"one-generation"}), _commit_without_comparing, soon=True),
    "delete what the newest row names": Bug(
        frozenset({"discarded-is-unreferenced", "no-file-is-missed"}), _delete_what_the_newest_row_names
    ),
    "leave replaced files active": Bug(frozenset({"cut-is-exact"}), _leave_replaced_files_active),
    "take a lost row for one that is in": Bug(
        frozenset({"visible-after-commit"}), _take_a_lost_row_for_one_that_is_in, soon=True
    ),
}

BUGS_OF_MANIFESTS = {
    "append before the manifests are there": Bug(
        frozenset({"no-file-is-missed"}), _append_before_the_manifests_are_there
    ),
    "count what an entry leaves out": Bug(frozenset({"cut-is-exact"}), _count_what_an_entry_leaves_out),
}
"""Bugs that only entries with manifests can show."""
