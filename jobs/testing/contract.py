"""The promises of a source, as tests that any source can run: derive a class from `SourceContract`, and pytest runs it.

The tests of `SourceContract` poll and read in this process. The tests of `SurvivesKills` run real ticks in processes of
their own, kill them (SIGKILL), and compare the tables with the rows of the source. This module itself does not import
pytest.
"""

import json
from collections import Counter
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Final

import pyarrow as pa
from pydantic import TypeAdapter
from pyspark.sql import DataFrame, SparkSession

from checkpointing.channel_items import SourceSlice
from checkpointing.identifiers import CheckpointId, SplitId, VertexId
from checkpointing.messages import PollSource
from jobs.operators.spec import arrow_schema
from jobs.settings import TickSettings
from jobs.sources.port import (
    POSITION_COLUMN,
    SPLIT_COLUMN,
    CountsRows,
    DescribesItself,
    KnowsLag,
    NamesPositions,
    OwnState,
    Source,
    close_all,
    keeps_state,
    layers,
    read_schema,
    upstream_of,
)
from jobs.sources.position_words import END, START, Place, seek
from jobs.sources.slice_reading import OffersScans
from jobs.spark.columns import named
from jobs.testing.trial import NotKilledError, Trial, session_for

NAME: Final = VertexId("source")
POLLS_MAX: Final = 100_000
_SLICES: Final = TypeAdapter(SourceSlice)

Row = tuple[Any, ...]


class BrokenPromiseError(AssertionError):
    """A source breaks a promise. The message names the promise, the split and the position."""


def promised(kept: bool, what: str) -> None:  # noqa: FBT001 - reads as a sentence
    """Raise BrokenPromiseError unless the promise is kept."""
    if not kept:
        raise BrokenPromiseError(what)


class SourceUnderTest:
    """The base of the tests of a source: it makes the source, and reads rows from it."""

    largest_slices: ClassVar[tuple[int, ...]] = (1, 3, 1_000_000)
    """The `max_rows` with which each split is polled to its end."""
    may_exceed: ClassVar[bool] = False
    """Whether a slice may have more than `max_rows` rows, since its split cannot be cut at every row."""

    @staticmethod
    def source(folder: Path) -> Source:
        """Return the source under test, a new object at each call. The test class must define this method.

        The source has at least one split with some ten rows, and every split ends. The source's data may lie in the
        folder. Then the first call writes the data, and every later call, even in another process, finds the same rows.
        """
        raise BrokenPromiseError(f"define `source(folder)` in the test class: it returns the source over {folder}")

    def _read(self, source: Source, slices: list[SourceSlice]) -> list[Row]:
        """Return rows as Spark reads them, in the order of split and position, which come first in each row."""
        if not slices:
            return []
        return _rows_of(source, source.read(_session(source), slices))


def _session(source: Source) -> SparkSession:
    return session_for([source], TickSettings())


def _rows_of(source: Source, rows: DataFrame) -> list[Row]:
    names = [SPLIT_COLUMN, POSITION_COLUMN, *source.schema().names]
    return sorted((_plain(row) for row in rows.select(*map(named, names)).collect()), key=_place)


def _place(row: Row) -> Row:
    return row[:2]


def _plain(row: Row) -> Row:
    return tuple(repr(value) if isinstance(value, (dict, list)) else value for value in row)


@dataclass
class Walk:
    """A split that is polled to its end, with `max_rows` as the limit of a slice."""

    source: Source
    split: SplitId
    max_rows: int
    begun: str | None = None

    @cached_property
    def slices(self) -> list[SourceSlice]:
        """The slices, in order."""
        return list(self._polled())

    def _polled(self) -> Iterator[SourceSlice]:
        position = self.begun
        for _ in range(POLLS_MAX):
            found = self.source.poll(PollSource(NAME, self.split, position, self.max_rows))
            if found is None:
                return
            yield found
            position = found.end
        raise BrokenPromiseError(f"split {self.split} does not end: give the contract a source whose splits end")


class SourceContract(SourceUnderTest):
    """The promises of `tidemark.Source`, and of the optional protocols that the source has."""

    def test_its_splits_are_listed(self, tmp_path: Path) -> None:
        """Splits are listed in order and each once, and a new object lists the same splits."""
        source = self.source(tmp_path)
        splits = source.splits()
        promised(list(splits) == sorted(set(splits)), f"splits() is not sorted, or has one twice: {splits}")
        promised(splits == self.source(tmp_path).splits(), "a new object lists other splits")
        promised(bool(splits), "there is no split to test")
        close_all({NAME: source})

    def test_slices_follow_each_other(self, tmp_path: Path) -> None:
        """Each slice begins where the slice before it ended, and ends later.

        No slice has more rows than were asked for.
        """
        for walk in self._walks(tmp_path):
            position = walk.begun
            for piece in walk.slices:
                where = f"split {walk.split}, polled after {position} for {walk.max_rows} rows"
                promised((piece.source, piece.split) == (NAME, walk.split), f"{where}: is a slice of another split")
                promised(position in (None, piece.start), f"{where}: begins at {piece.start}")
                promised(piece.end not in (piece.start, position), f"{where}: ends where it begins")
                promised(piece.rows >= 1 or piece.cut is not None, f"{where}: says it has {piece.rows} rows")
                within = piece.rows <= walk.max_rows or self.may_exceed
                promised(within, f"{where}: says it has {piece.rows} rows")
                position = piece.end

    def test_a_position_names_the_same_rows_for_ever(self, tmp_path: Path) -> None:
        """From each position on, a new object polls the same slices. Positions and slices survive JSON."""
        for walk in self._walks(tmp_path):
            again = Walk(self.source(tmp_path), walk.split, walk.max_rows)
            promised(again.slices == walk.slices, f"split {walk.split} is polled otherwise the second time")
            for place, piece in enumerate(walk.slices):
                end = json.loads(json.dumps(piece.end))
                rest = Walk(self.source(tmp_path), walk.split, walk.max_rows, end)
                following = walk.slices[place + 1 :]
                same = rest.slices[:2] == following[:2] and (bool(rest.slices) == bool(following))
                promised(same, f"split {walk.split} is polled otherwise from {piece.end} on")
                kept = _SLICES.validate_json(_SLICES.dump_json(piece))
                promised(kept == piece, f"split {walk.split}: a slice does not survive JSON: {piece}")
                if place > MANY:
                    break

    def test_slices_of_any_size_hold_the_same_rows(self, tmp_path: Path) -> None:
        """Slices of any size have the same rows, even if another object reads them. `_position` is unique and rises."""
        source = self.source(tmp_path)
        for split in source.splits():
            read: dict[int, list[Row]] = {}
            for most in self.largest_slices:
                slices = Walk(source, split, most).slices
                read[most] = self._read(self.source(tmp_path), slices)
                places = [row[1] for row in read[most]]
                promised(None not in places, f"split {split}: a row has no {POSITION_COLUMN}")
                promised(len(set(places)) == len(places), f"split {split}: two rows have one {POSITION_COLUMN}")
                promised(
                    {row[0] for row in read[most]} <= {split}, f"split {split}: a row names another {SPLIT_COLUMN}"
                )
                if not any(piece.rows_estimated for piece in slices):
                    said = sum(piece.rows for piece in slices)
                    promised(said == len(places), f"split {split}: slices say {said} rows, and have {len(places)}")
            first = read[self.largest_slices[0]]
            for most, rows in read.items():
                promised(rows == first, f"split {split}: slices of at most {most} rows hold other rows")
        close_all({NAME: source})

    def test_each_slice_is_read_by_itself(self, tmp_path: Path) -> None:
        """A slice gives only its own rows, which follow the rows of the slice before it.

        Several slices give all their rows.
        """
        source = self.source(tmp_path)
        pieces = [piece for split in source.splits() for piece in Walk(source, split, 3).slices[:3]]
        alone = [self._read(source, [piece]) for piece in pieces]
        for piece, rows, before in zip(pieces, alone, [[], *alone], strict=False):
            counted = piece.rows_estimated or len(rows) == piece.rows
            promised(counted, f"slice {piece.start} to {piece.end} says {piece.rows} rows, and has {len(rows)}")
            in_order = not (rows and before) or before[-1][:2] < rows[0][:2] or before[0][0] != rows[0][0]
            promised(in_order, f"rows of slice {piece.start} to {piece.end} lie before those of the slice before it")
        together = self._read(source, pieces)
        promised(Counter(together) == Counter(row for rows in alone for row in rows), "slices read at once differ")
        close_all({NAME: source})

    def test_its_columns_are_those_of_its_schema(self, tmp_path: Path) -> None:
        """The columns are the ones of the schema and the two that every source adds, with the right types."""
        source = self.source(tmp_path)
        piece = next(found for split in source.splits() for found in Walk(source, split, 3).slices[:1])
        found = {field.name: field.dataType for field in source.read(_session(source), [piece]).schema.fields}
        due = {field.name: field.dataType for field in read_schema(source).fields}
        promised(found == due, f"read() gives the columns {found}, and schema() says {due}")
        close_all({NAME: source})

    def test_its_positions_are_explained(self, tmp_path: Path) -> None:
        """The name of a position is printable. `start`, `end` and counts of rows agree with what polling finds."""
        source = self.source(tmp_path)
        for split in source.splits():
            slices = Walk(source, split, 3).slices
            if not slices:
                continue
            end = slices[-1].end
            promised(seek(source, Place(NAME, split, end), START) is None, f"split {split}: 'start' is not its start")
            if upstream_of(source) is None:  # the tables of another job move together, so none goes to its end
                there = seek(source, Place(NAME, split, slices[0].end), END)
                after = source.poll(PollSource(NAME, split, there, 3))
                promised(after is None, f"split {split}: 'end' is {there}, and rows follow on it")
            for layer in layers(source):
                if isinstance(layer, NamesPositions):
                    named = layer.named(split, end)
                    promised(bool(named) and named.isprintable(), f"split {split}: {end} is named {named!r}")
                if isinstance(layer, CountsRows) and not any(piece.rows_estimated for piece in slices):
                    rows = sum(piece.rows for piece in slices)
                    for start, stop, due in ((None, end, rows), (end, None, -rows), (end, end, 0)):
                        said = layer.rows_between(split, start, stop)
                        promised(
                            said in (None, due), f"split {split}: {said} rows lie between {start} and {stop}, not {due}"
                        )
        close_all({NAME: source})

    def test_its_lag_is_what_is_left_to_read(self, tmp_path: Path) -> None:
        """The lag is all rows at the start, and no rows at the end."""
        source = self.source(tmp_path)
        for layer in layers(source):
            if isinstance(layer, DescribesItself):
                promised(bool(layer.described().kind), "described() names no kind")
            if isinstance(layer, KnowsLag):
                walks = {split: Walk(source, split, 3).slices for split in source.splits()}
                ends = {split: slices[-1].end for split, slices in walks.items() if slices}
                begun, done = layer.lag({}), layer.lag(ends)
                promised(set(begun) == set(source.splits()), f"lag() tells of the splits {sorted(begun)}")
                for split, slices in walks.items():
                    rows = sum(piece.rows for piece in slices)
                    exact = begun[split].rows in (None, rows) or any(piece.rows_estimated for piece in slices)
                    promised(exact, f"split {split}: its lag is {begun[split].rows} rows at its start, not {rows}")
                    promised(done[split].rows in (None, 0), f"split {split}: its lag is {done[split].rows} at its end")
                    promised(done[split].seconds in (None, 0.0), f"split {split}: it is behind at its end")
        close_all({NAME: source})

    def test_its_own_state_comes_back(self, tmp_path: Path) -> None:
        """A new object with the state of a checkpoint returns the same state and the same slices (`KeepsState`)."""
        source, again = self.source(tmp_path), self.source(tmp_path)
        if keeps_state(source):
            splits = source.splits()
            OwnState(source).restore(None, None)
            state = OwnState(source).snapshot()
            promised(splits == again.splits(), "a new object lists other splits")
            OwnState(again).restore(CheckpointId(1), state)
            promised(OwnState(again).snapshot() == state, f"its state {state} did not come back")
            for split in splits:
                one, other = (Walk(each, split, 1_000_000).slices for each in (source, again))
                promised(one == other, f"with its state, split {split} has other slices")
        close_all({NAME: source})

    def test_tasks_read_the_rows_of_its_slices(self, tmp_path: Path) -> None:
        """If tasks read slices themselves, they find the rows that Spark reads (`OffersScans`)."""
        source = self.source(tmp_path)
        slices = [piece for split in source.splits() for piece in Walk(source, split, 4).slices]
        scans = source.scans(slices) if isinstance(source, OffersScans) else None
        if scans is not None:
            schema = arrow_schema(read_schema(source))
            table = pa.Table.from_batches([batch for scan in scans for batch in scan.batches(schema)], schema)
            shown, due = _rows_of(source, _session(source).createDataFrame(table)), self._read(source, slices)
            promised(shown == due, f"its scans have other rows: {_differences(Counter(due), Counter(shown))}")
        close_all({NAME: source})

    def test_it_can_be_closed_at_any_time(self, tmp_path: Path) -> None:
        """A source can be closed twice, before its first use, and between polls. The next call opens it again."""
        source = self.source(tmp_path)
        for _ in range(2):
            close_all({NAME: source})
        walks = {split: Walk(source, split, 3).slices for split in source.splits()}
        close_all({NAME: source})
        again = {split: Walk(source, split, 3).slices for split in source.splits()}
        promised(walks == again, "after close() the source is polled otherwise")
        close_all({NAME: source})

    def _walks(self, folder: Path) -> Iterator[Walk]:
        """Yield each split with each limit in `largest_slices`. Close the source at the end."""
        source = self.source(folder)
        for split in source.splits():
            for most in self.largest_slices:
                yield Walk(source, split, most)
        close_all({NAME: source})


MANY: Final = 20
"""The number of positions of a split from which the split is polled again."""


class SurvivesKills(SourceUnderTest):
    """Kills ticks of a small pipeline over the source, and tests that no row is lost and no row counts twice.

    The pipeline keeps every row in a table, and counts them by split. `kills` are the boundaries at which the ticks are
    killed, one after the other, in one warehouse. If a tick ends without reaching its boundary, the boundary is
    skipped. If the source reads a server, a test class can kill the server too (`around`).
    """

    kills: ClassVar[tuple[str, ...]] = ("after:PollSource#2", "before:AppendRow", "after:AppendRow", "after:RecordCut")
    settings: ClassVar[dict[str, object]] = {"every_rows": 5, "slice_rows_max": 3, "retained": 2, "spark_cores": 1}

    def test_nothing_is_lost_or_doubled_by_a_kill(self, tmp_path: Path) -> None:
        """Whatever a killed tick leaves, the next ticks end with every row once."""
        trial = Trial(self._importable(tmp_path), tmp_path)
        trial.data.mkdir()
        source = self.source(trial.data)
        slices = [piece for split in source.splits() for piece in Walk(source, split, 1_000_000).slices]
        due = self._read(source, slices)
        close_all({NAME: source})
        struck = [at for at in self.kills if self._killed(trial, at)]
        promised(bool(struck), f"no tick was killed at any of {self.kills}: name other boundaries")
        with self.around(trial):
            cut = trial.run(**self.settings)
        shown = _rows_of(source, _session(source).createDataFrame(cut.arrow(TABLE)))
        promised(shown == due, f"after kills at {struck}: {_differences(Counter(due), Counter(shown))}")
        counts = {row[SPLIT_COLUMN]: row["rows"] for row in cut.arrow(COUNTS).to_pylist()}
        promised(counts == Counter(row[0] for row in due), f"after kills at {struck} the counts are {counts}")

    def around(self, trial: Trial) -> AbstractContextManager[object]:
        """Return the context in which each tick of the trial runs. It does nothing, unless a test class overrides this.

        The context can kill the server that the source reads, and start it again, while the tick is at work.
        """
        del trial
        return nullcontext()

    def _killed(self, trial: Trial, at: str) -> bool:
        try:
            with self.around(trial):
                trial.kill(at, **self.settings)
        except NotKilledError as error:
            if "ended with 0:" not in str(error):
                raise
            return False
        return True

    def _importable(self, folder: Path) -> str:
        """Write the pipeline's module where this process and the ticks' processes can import it.

        Return its reference.
        """
        import sys  # noqa: PLC0415 - to find the folder in this process

        name = f"contract_of_{type(self).__name__.lower()}"
        code = _PIPELINE.format(module=type(self).__module__, name=type(self).__qualname__, table=TABLE, counts=COUNTS)
        (folder / f"{name}.py").write_text(code, encoding="utf-8")
        sys.path.insert(0, str(folder))
        sys.modules.pop(name, None)
        return f"{name}:build"


TABLE: Final = "bronze/rows"
COUNTS: Final = "gold/counts"
_PIPELINE: Final = '''"""The pipeline of a source's contract."""

from {module} import {name} as contract
from tidemark import Pipeline, count


def build(data):
    """Return the pipeline over the source."""
    pipeline = Pipeline("contract")
    rows = pipeline.source("source", contract.source(data)).table("{table}", id="rows")
    rows.key_by("_split").aggregate("counts", rows=count()).upsert("{counts}")
    return pipeline
'''


def _differences(due: Counter[Row], shown: Counter[Row]) -> str:
    """Return how many rows are lost and how many are too many, with a few examples."""
    lost, doubled = list((due - shown).elements()), list((shown - due).elements())
    return f"{len(lost)} rows are lost, like {lost[:3]}; {len(doubled)} are too many, like {doubled[:3]}"
