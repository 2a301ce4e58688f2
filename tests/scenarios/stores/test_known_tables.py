"""Tests that a process remembers of a table what its log says. Others commit between any two of its steps.

The process may be wrong only about commits of others that came after its last look. Then its own commit must fail.
"""

import json
import tempfile
from pathlib import Path
from uuid import uuid4

import pyarrow as pa
import pytest
from deltalake import DeltaTable, Field, Schema, write_deltalake
from deltalake.schema import PrimitiveType
from hypothesis import given, settings
from hypothesis import strategies as st

from jobs.storage.place import local
from jobs.warehouse import log_lengths
from jobs.warehouse.delta_log import CommitMoment, DeltaLog, add, remove
from jobs.warehouse.log_writing import EntryTakenError
from jobs.warehouse.table_rules import Metadata
from jobs.warehouse.table_snapshot import active_paths

NAME = "silver/flights"
COLUMNS = Schema([Field("k", PrimitiveType("string"))])


class Beside:
    """A process with a log, and somebody else who writes to the same table."""

    def __init__(self, root):
        self.folder = Path(root) / NAME
        DeltaTable.create(str(self.folder), COLUMNS)
        self.log = DeltaLog(local(Path(root)) / NAME, hook=self._cross)
        self.overtaken = False
        """Whether somebody else has committed since our last look."""
        self._loses_reply = False

    def _cross(self, moment):
        if moment is CommitMoment.AFTER and self._loses_reply:
            self._loses_reply = False
            raise ConnectionError

    def _commit(self, actions, metadata=None):
        """Commit as the stores do: after an error, read the log anew. If somebody else came first, commit again."""
        was_refused = False
        try:
            self.log.commit(self.log.known(), actions, says={}, metadata=metadata)
        except (EntryTakenError, ConnectionError) as error:
            was_refused = isinstance(error, EntryTakenError)
            self.log.reopen()
        assert was_refused is self.overtaken
        self.overtaken = False
        if was_refused:
            self._commit(actions, metadata)

    def adds(self):
        self._commit([_file()])

    def replaces(self):
        if self.overtaken:
            self.looks()  # a file that somebody else has removed cannot be removed again
        self._commit([*(remove(path, 1) for path in self.log.known().paths()), _file()])

    def gets_columns(self):
        """Commit a column more than our newest look saw, with a file."""
        if self.overtaken:
            self.looks()
        loaded = self.log.known().loaded
        wider = Schema([*loaded.schema().fields, _column()])
        self._commit([_file()], Metadata(wider, None, loaded.metadata().configuration))

    def loses_a_reply(self):
        self._loses_reply = True
        self.adds()
        self._loses_reply = False

    def shortens(self):
        """Write a Delta log checkpoint, for which delta-rs reads what we committed."""
        log_lengths.checkpoint_log(self.log, every=1)
        self.log.current()
        self.overtaken = False

    def looks(self):
        self.log.current()
        self.overtaken = False

    def other_appends(self):
        write_deltalake(str(self.folder), pa.table({"k": ["x"]}), mode="append", schema_mode="merge")
        self.overtaken = True

    def other_deletes(self):
        write_deltalake(str(self.folder), pa.table({"k": ["y"]}), mode="overwrite", schema_mode="merge")
        self.overtaken = True

    def other_changes_it(self):
        table = DeltaTable(str(self.folder))
        table.alter.set_table_properties({"delta.checkpointInterval": str(100 + table.version())})
        DeltaTable(str(self.folder)).alter.add_columns([_column()])
        self.overtaken = True

    def must_know_the_log(self):
        """Compare our memory with a fresh load. A look comes first if somebody else has committed."""
        known, fresh = self.log.current() if self.overtaken else self.log.known(), DeltaTable(str(self.folder))
        assert fresh.version() == known.version()
        assert sorted(active_paths(fresh)) == known.paths()
        assert {f"{NAME}/{path}" for path in active_paths(fresh)} == known.files
        assert fresh.schema().to_json() == known.loaded.schema().to_json()
        assert fresh.metadata().configuration == known.loaded.metadata().configuration
        assert _plain(fresh.protocol()) == _plain(known.loaded.protocol())


STEPS = [
    "adds",
    "replaces",
    "gets_columns",
    "loses_a_reply",
    "shortens",
    "looks",
    "other_appends",
    "other_deletes",
    "other_changes_it",
]


def _plain(protocol):
    return json.dumps([getattr(protocol, name) for name in ("min_reader_version", "min_writer_version")])


def _column():
    return Field(f"c{uuid4().hex}", PrimitiveType("long"))


def _file():
    return add(f"_data/{uuid4()}.parquet", 10, '{"numRecords":1}', 1)


def _must_hold(steps):
    with tempfile.TemporaryDirectory() as root:
        beside = Beside(root)
        beside.looks()
        for step in steps:
            getattr(beside, step)()
            if not beside.overtaken:
                beside.must_know_the_log()
        beside.must_know_the_log()


@settings(max_examples=15, deadline=None)
@given(steps=st.lists(st.sampled_from(STEPS), min_size=2, max_size=8))
def test_a_process_knows_what_the_log_says(steps):
    """Own commits are not read again, and those of others are noticed before anything relies on the memory."""
    _must_hold(steps)


@pytest.mark.dear
@pytest.mark.parametrize("first", STEPS)
def test_a_process_knows_what_the_log_says_after_any_three_steps(first):
    """Every order of three steps."""
    for second in STEPS:
        for third in STEPS:
            _must_hold([first, second, third])
