"""Tests that a job has as many files after thousands of checkpoints as after hundreds."""

import os
from pathlib import Path

import pytest

from checkpointing.commit.cleanup import CleanUpLook, TableSeen
from checkpointing.identifiers import CheckpointId
from jobs.storage.place import local
from jobs.tick.effects import MAINTAIN_EVERY
from jobs.warehouse.checkpoints import GENERATIONS_KEPT, Appended, CheckpointStore
from jobs.warehouse.cleanup import note_look, read_looks
from jobs.warehouse.cuts_table import CutStore
from jobs.warehouse.lease import is_alive, this_process
from jobs.warehouse.requests import STALE_MS, AnswerStatus, RequestFolder, SavepointAnswer
from jobs.warehouse.warehouse import Warehouse

RETAINED = 3
PER_GENERATION = 500


class Life:
    """Completes checkpoints, each with its entry and its cut. Each checkpoint moves the clock on by ten minutes."""

    def __init__(self, root: Path, paths, rows) -> None:
        self.now_ms = 1_700_000_000_000
        self.warehouse = Warehouse(root, paths, now_ms=lambda: self.now_ms)
        self.checkpoints, self.cuts = CheckpointStore(self.warehouse), CutStore(self.warehouse)
        self.rows, self.number, self.version = rows, 0, 0

    def go_on(self, checkpoints: int, table) -> None:
        """Complete so many checkpoints. A new generation begins every five hundred, as after a full trace."""
        for _ in range(checkpoints):
            self.now_ms += 600_000
            generation = 1 + self.number // PER_GENERATION
            if self.number % PER_GENERATION == 0:
                self._append(self.rows.claim(generation))
            self.number += 1
            gone = {CheckpointId(self.number - RETAINED)} if self.number > RETAINED else set()
            self._append(self.rows.checkpoint(self.number, generation), gone)
            kept = {CheckpointId(self.number - back) for back in range(RETAINED)}
            self.cuts.record(CheckpointId(self.number), [(table, self.number)], kept)
            if self.number % MAINTAIN_EVERY == 0:
                self._age()
                self.checkpoints.maintain()
                self.cuts.maintain()

    def files(self) -> int:
        """Return how many files the job has."""
        return sum(len(names) for _, _, names in os.walk(self.warehouse.root))

    def _append(self, row, gone=()) -> None:
        result = self.checkpoints.append(row, self.version, gone)
        assert isinstance(result, Appended), result
        self.version = result.version

    def _age(self) -> None:
        """Give every file the age that the clock says. Files that are kept an hour for readers may then go."""
        for folder, _, names in os.walk(self.warehouse.root):
            for name in names:
                os.utime(os.path.join(folder, name), (self.now_ms / 1000 - 7_200,) * 2)  # noqa: PTH118


@pytest.mark.dear
def test_entries_and_logs_do_not_grow_with_the_number_of_checkpoints(warehouse, rows, silver):
    """After 2,000 checkpoints there are as many entries, cuts, log entries and files as after 400."""
    life = Life(warehouse.root, warehouse.paths, rows)
    life.go_on(400, silver)
    early = life.files()
    life.go_on(1_600, silver)
    assert life.files() <= early + 10
    assert early < 400
    _, kept = CheckpointStore(life.warehouse).observe()
    assert RETAINED <= len(kept) <= RETAINED + 2 * GENERATIONS_KEPT
    assert RETAINED == len(CutStore(life.warehouse).recorded())


def test_the_observations_of_thousands_of_clean_ups_are_bounded(warehouse, silver):
    """A clean-up follows every checkpoint, for months. The file with its observations stays as large as after a day."""
    now_ms, day_ms, sizes = 1_700_000_000_000, 86_400_000, []
    looks = ()
    for number in range(3_000):
        now_ms += 600_000
        looks = note_look(
            warehouse, looks, CleanUpLook(now_ms, {silver: TableSeen(number, frozenset({number}))}), day_ms
        )
        sizes.append(warehouse.path(warehouse.paths.cleanup_looks).stat().st_size)
    assert looks == read_looks(warehouse)
    assert max(sizes[1_000:]) <= max(sizes[:1_000]) * 1.1
    assert len(looks) < 40


def test_requests_of_a_long_life_are_bounded(warehouse):
    """Thousands of processes ask, get an answer and die before they read it. The next attempt removes their files."""
    folder = RequestFolder(warehouse)
    dead = this_process().model_copy(update={"pid": 2**22 + 1})
    for number in range(1_000):
        name = f"{number:08}-answered"
        answer = SavepointAnswer(
            request=name, status=AnswerStatus.TAKEN, checkpoint=CheckpointId(1), asker=dead, answered_at_ms=1
        )
        path = warehouse.path(warehouse.paths.requests) / f"{name}.answer.json"
        local(path).replace(answer.model_dump_json().encode())
        unfinished = path.with_name(f".{name}.json.{number}.tmp")
        unfinished.touch()
        if number:
            os.utime(unfinished, (warehouse.now_ms() / 1000 - STALE_MS / 1000 - 60,) * 2)
    folder.clean(is_alive)
    assert [".00000000-answered.json.0.tmp"] == os.listdir(warehouse.path(warehouse.paths.requests))  # noqa: PTH208
