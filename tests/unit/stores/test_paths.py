"""The names of objects. One class makes them, and can read them back."""

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from checkpointing.identifiers import Generation, InvalidNameError, JobName, VertexId, job_name, table_name
from checkpointing.metadata.paths import (
    ProtocolPaths,
    StagedName,
    parse_generation,
    parse_staged_name,
    partition_of,
    relative_to_table,
    staging_folder,
)
from checkpointing.partitions import NO_VALUE, Value, folder_of

FLIGHTS = ProtocolPaths(job_name("flights"))
SILVER = table_name("silver/flights")


def test_every_object_has_the_documented_name() -> None:
    """The test compares every name that docs/ARCHITECTURE.md lists under "Where things lie"."""
    assert "_tidemark/flights/checkpoints" == FLIGHTS.checkpoints
    assert "_tidemark/flights/cuts" == FLIGHTS.cuts
    assert "_tidemark/flights/lease" == FLIGHTS.lease
    assert "_tidemark/flights/requests" == FLIGHTS.requests
    assert "_tidemark/flights/traces/7.ndjson" == FLIGHTS.trace(Generation(7))
    assert "_tidemark/flights/state/join" == FLIGHTS.state_table(VertexId("join"))
    assert "silver/flights" == FLIGHTS.table(SILVER)
    assert "silver/flights/_data/3" == FLIGHTS.staged_folder(SILVER, Generation(3))
    assert "flights/silver/flights" == FLIGHTS.transaction_id(SILVER)


def test_no_two_objects_of_a_job_have_the_same_name() -> None:
    """Every name of the class is in the job's own folder."""
    properties = [name for name, value in vars(ProtocolPaths).items() if isinstance(value, property)]
    places = [getattr(FLIGHTS, name) for name in properties if name != "folder"]
    assert len(places) == len(set(places))
    assert all(place.startswith("_tidemark/flights/") for place in places)
    assert "_tidemark/flights/channels/bronze" == FLIGHTS.channel(VertexId("bronze"))
    with pytest.raises(InvalidNameError):
        FLIGHTS.channel(VertexId("../bronze"))


def test_a_state_table_stages_files_below_its_own_folder() -> None:
    """State files are beside the state table's log, like those of any table."""
    state = FLIGHTS.state_table(VertexId("join"))
    assert "_tidemark/flights/state/join/_data/1" == FLIGHTS.staged_folder(state, Generation(1))


@pytest.mark.parametrize("text", ["", "..", "a/b", "Flights", "_tidemark"])
def test_a_job_name_that_may_not_be_a_folder_is_refused(text: str) -> None:
    """A name from outside is checked before it becomes a path."""
    with pytest.raises(InvalidNameError):
        ProtocolPaths(JobName(text))


@given(
    vertex=st.from_regex(r"[a-z][a-z0-9_]{0,20}", fullmatch=True).map(VertexId),
    micro_batch=st.integers(0, 10**9),
    unique=st.uuids().map(str),
    values=st.lists(st.tuples(st.text(min_size=1), st.none() | st.text(min_size=1)), max_size=3),
)
def test_a_staged_name_is_read_back_as_it_was_given(
    vertex: VertexId, micro_batch: int, unique: str, values: list[Value]
) -> None:
    """A file's name says which vertex wrote it, and when. Its folder says the partition of its rows."""
    assume(all(value != NO_VALUE for _, value in values))
    name = StagedName(vertex, micro_batch, unique, folder_of(values))
    assert name == parse_staged_name(str(name))
    path = FLIGHTS.staged_file(SILVER, Generation(3), name)
    assert tuple(values) == partition_of(path)
    assert "silver/flights" == staging_folder(path)


@pytest.mark.parametrize(
    "name", ["part-00000-abc.parquet", "join-1.parquet", "join-x-" + "0" * 32 + ".parquet", ".join-1-" + "0" * 32]
)
def test_a_file_with_another_name_has_no_owner(name: str) -> None:
    """So no rule ever deletes it."""
    assert parse_staged_name(name) is None


@pytest.mark.parametrize(
    "folder", ["day=%FF", "day=%41", "day=%2f", "day=%", "%FF=1", "version.text.%FF", "version.text.%41", "day=1%C3"]
)
def test_a_folder_with_a_name_that_tidemark_does_not_give_has_no_owner(folder: str) -> None:
    """Some of these names are no text. The others would be a second folder for the same partition."""
    name = f"{folder}/join-1-{'0' * 32}.parquet"
    assert parse_staged_name(name) is None
    assert staging_folder(f"silver/flights/_data/3/{name}") is None


@pytest.mark.parametrize(("folder", "expected"), [("1", 1), ("42", 42), ("0", None), ("01", None), ("x", None)])
def test_only_a_plain_number_is_a_generation(folder: str, expected: int | None) -> None:
    """A folder with another name below `_data` belongs to no generation."""
    assert expected == parse_generation(folder)


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("silver/flights/_data/1/a.parquet", "_data/1/a.parquet"),
        ("silver/flights2/_data/1/a.parquet", None),
        ("silver/flights/../gold/a.parquet", None),
        ("silver/flights/", None),
        ("/silver/flights/a.parquet", None),
    ],
)
def test_a_log_names_only_files_inside_its_table(path: str, expected: str | None) -> None:
    """A handle outside the table's folder has no relative name."""
    assert expected == relative_to_table(SILVER, path)
