"""The position of a source that reads another job's cuts (A10)."""

import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Final, Literal, Self

from pydantic import ConfigDict, NonNegativeInt, ValidationError
from pyspark.sql.types import StructType

from checkpointing.channel_items import SourceSlice
from checkpointing.identifiers import JobName, SplitId, TableName, VertexId, job_name, table_name
from checkpointing.messages import PollSource
from jobs.sources.delta.delta_history import DeltaHistory, TakenBack, VersionUnreadableError, taken_back
from jobs.sources.delta.delta_reader import DeltaPosition, DeltaSlice
from jobs.sources.delta.delta_source import SPLIT, DeltaSource, go_on
from jobs.sources.delta.upstream_job import FoundCut, upstream_job
from jobs.sources.places import root_of, store_asked
from jobs.sources.port import Lag, NoSuchPositionError, SourceDescription, SourceError
from jobs.storage.address import Root
from jobs.storage.place import place_in
from jobs.warehouse.checkpoints import NamesCut, UpstreamCut


class CutPosition(NamesCut):
    """A place in a table of another job: a cut, and the next row to read."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: Literal[1] = 1
    at: DeltaPosition
    since: NonNegativeInt | None = None
    """Set on the way to the cut: the first table version with rows that this cut has and the cut before lacks."""

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the position of that canonical JSON text. Raise SourceError if no source of cuts has written it."""
        try:
            return cls.model_validate_json(text)
        except ValidationError as error:
            raise SourceError(
                f"{text[:200]!r} is not a position of a source of cuts; was the source of this vertex replaced? "
                "Give the new source an id of its own"
            ) from error

    def text(self) -> str:
        """Return the canonical JSON text. The same position always has the same text."""
        return self.model_dump_json(exclude_none=True)


# ------------------------------------------------------------------
# A source that reads a table of another Tidemark job, the upstream job, from cut to cut (A10).
#
# A pipeline reads all its tables of one upstream job at the same cut. At each cut, the source asks for a checkpoint of
# its pipeline. `checkpointing.job.polling` decides when. This module finds the newest cut of the upstream job, and
# describes the rows of a table between two cuts. If the pipeline has fallen behind, it reads several cuts as one.


_ALL: Final = 1_000_000_000_000
_NOBODY: Final = VertexId("lag")


class CutSource(DeltaSource):
    """Reads an append table of another job, from cut to cut (see `port.Source`).

    `warehouse` is the upstream job's warehouse: a folder, or a URL such as `s3://bucket/warehouse`.
    """

    def __init__(self, warehouse: Root | str, job: str, table: str, *, schema: StructType | None = None) -> None:
        """Read nothing yet. Raise InvalidNameError for a name that no job or table may have.

        Raises SourceError for an invalid URL.
        """
        self._root, self._job, self._table = root_of(warehouse), job_name(job), table_name(table)
        super().__init__(self._root, schema=schema)
        self._history = DeltaHistory(place_in(self._root, self._table))
        self._upstream = upstream_job(self._root, self._job)
        self._walked: tuple[tuple[int, int], TakenBack] | None = None
        """The range of versions last searched for files that a rollback has removed, and the result of the search."""

    @property
    def upstream(self) -> str:
        """The upstream job; see `port.ReadsCuts`."""
        return f"{self._job} in {self._root}"

    @property
    def job(self) -> JobName:
        """The upstream job."""
        return self._job

    @property
    def table(self) -> TableName:
        """The table that is read."""
        return self._table

    @store_asked()
    def splits(self) -> tuple[SplitId, ...]:
        """Return the single split; see `port.Source.splits`. Raise SourceError if the upstream job has never run."""
        self._upstream.must_have_run()
        return (SPLIT,)

    def _found(self, request: PollSource) -> SourceSlice | None:
        """Return the next rows up to a cut of the upstream job. Raise VersionUnreadableError.

        The cut is `request.cut`, or by default the newest cut. Returns None if there is no newer cut. If this table has
        no new rows in the cut, returns a slice without rows that ends at the cut.
        """
        start = None if request.position is None else self._parsed(request.position)
        found = self._upstream.newest() if request.cut is None else self._upstream.named(request.cut)
        if found is None or (request.cut is None and start is not None and _is_at(start, found.cut)):
            return None
        self._must_be_readable(found)
        newest = self._newest()
        version = found.recorded.versions[self._table]
        begin = DeltaPosition(table=newest.columns.id, version=version, snapshot=True)
        place = start.at if start is not None else begin
        self._must_be_of(newest, place)
        since = place.version + place.snapshot if start is None or start.since is None else start.since
        gone = self._taken_back(since, version)
        end, ranges = self._walk(place, replace(newest, version=version), request.max_rows, gone)
        at_cut = end.version > version
        return SourceSlice(
            source=request.source,
            split=request.split,
            start=request.position or self._position(found.cut, place, since).text(),
            end=self._position(found.cut, end, None if at_cut else since).text(),
            detail=DeltaSlice(ranges=tuple(ranges)).model_dump_json(),
            rows=sum(part.count for part in ranges),
            bytes=sum(part.bytes for part in ranges),
            cut=found.name,
            at_cut=at_cut,
        )

    def named(self, split: SplitId, position: str) -> str:
        """Return a position in words, such as `cut 28 of shop`; see `port.NamesPositions`."""
        del split
        known = CutPosition.parse(position)
        return f"cut {known.cut} of {known.job}" if known.at_cut else f"on the way to cut {known.cut}, {known.at}"

    def rows_between(self, split: SplitId, start: str | None, end: str | None) -> int | None:
        """Return the number of rows between two positions; see `port.CountsRows`."""
        del split
        first, last = (0 if text is None else CutPosition.parse(text).at.before for text in (start, end))
        return last - first

    def seek(self, split: SplitId, position: str | None, words: str) -> str | None:
        """Raise NoSuchPositionError, because all tables of a job move together; see `port.SeeksPositions`."""
        del split, position, words
        raise NoSuchPositionError(
            f"all tables of {self._job} are read at one cut. Write 'start' to read this table anew, or go back to an "
            "older checkpoint with 'tidemark rollback'"
        )

    def described(self) -> SourceDescription:
        """Return the kind of source, and the upstream job; see `port.DescribesItself`."""
        return SourceDescription("cuts", f"{self._table} of {self.upstream}")

    @store_asked()
    def lag(self, positions: Mapping[SplitId, str]) -> Mapping[SplitId, Lag]:
        """Return the number of unread rows up to the newest cut, and the age of that cut; see `port.KnowsLag`."""
        found = self._offered(PollSource(_NOBODY, SPLIT, positions.get(SPLIT), _ALL), looks_for_files=False)
        if found is None:
            return {SPLIT: Lag(0, 0.0)}
        published_ms = self._upstream.named(found.cut or "").recorded.published_at_ms
        return {SPLIT: Lag(found.rows, max(0.0, time.time() - published_ms / 1_000))}

    def _unreadable(self, request: PollSource, error: VersionUnreadableError) -> SourceError:
        unread = f"{self._table} of {self.upstream} cannot be read on from where it was read: {error}"
        return SourceError(f"{unread}. {go_on(request, None)}, so rows that were read before count twice")

    def _parsed(self, text: str) -> CutPosition:
        """Return the position. Raise SourceError if its cut belongs to another job, or no longer exists."""
        position = CutPosition.parse(text)
        if position.job != self._job:
            raise SourceError(
                f"the position is at a cut of {position.job}, and this source reads {self._job}: give the source an id "
                "of its own"
            )
        try:
            self._upstream.must_stand(replace(position.upstream, warehouse=str(self._root)))
        except SourceError as error:
            raise SourceError(f"{error}. Type 'tidemark rollback PIPELINE --follow'") from error
        return position

    def _taken_back(self, since: int, last: int) -> TakenBack:
        """Return what rollbacks of the upstream job have removed in these versions; see `taken_back`."""
        if self._walked is None or self._walked[0] != (since, last):
            versions = (each for each in range(since, last + 1) if self._history.has_entry(each))
            self._walked = (since, last), taken_back(map(self._history.commit, versions))
        return self._walked[1]

    def _position(self, cut: UpstreamCut, at: DeltaPosition, since: int | None) -> CutPosition:
        return CutPosition(
            warehouse=cut.warehouse,
            job=cut.job,
            cut=cut.checkpoint,
            nonce=cut.nonce,
            at_cut=since is None,
            at=at,
            since=since,
        )

    def _must_be_readable(self, found: FoundCut) -> None:
        keyed = self._upstream.keyed_tables()
        if self._table in found.recorded.versions and self._table not in keyed:
            return
        others = ", ".join(sorted(name for name in found.recorded.versions if name not in keyed)) or "none yet"
        if self._table in keyed:
            raise SourceError(
                f"rows of {self._table} of {self._job} are replaced, and a source of cuts reads tables to which rows "
                f"are appended: {others}. Read one of them, or read {self._table} whole by Cuts(...).latest()"
            )
        raise SourceError(f"{found.cut} has no table {self._table!r}, only {others}: correct the source's table")


def _is_at(position: CutPosition, cut: UpstreamCut) -> bool:
    return position.at_cut and (position.cut, position.nonce) == (cut.checkpoint, cut.nonce)
