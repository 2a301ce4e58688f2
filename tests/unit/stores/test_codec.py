"""Entries as JSON text. This version or a later one reads an entry back.

For a too new entry, the error says what to install.
"""

import copy
import json
import posixpath
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from checkpointing.identifiers import (
    CheckpointId,
    Generation,
    InvalidNameError,
    JobName,
    VertexId,
    job_name,
    table_name,
)
from checkpointing.metadata import codec
from checkpointing.metadata.codec import UnknownFormatError, UnreadableRowError, decode, encode, kind_of, migrate
from checkpointing.metadata.files import handles_of
from checkpointing.metadata.paths import (
    ProtocolPaths,
    StagedName,
    is_data_file,
    parse_generation,
    parse_staged_name,
    partition_of,
    relative_to_table,
    staging_folder,
)
from checkpointing.metadata.record import FORMAT, CheckpointRecord, Release, Row
from checkpointing.partitions import NO_VALUE, Value, folder_of
from tests.unit.stores.valid_rows import rows

WRITER = "tidemark 0.1.0"
RELEASE = Release(generation=Generation(3), next_id=CheckpointId(7), at_ms=5, nonce="n")


@given(row=rows)
def test_an_entry_is_read_back_as_it_was_written(row: Row) -> None:
    """Every entry survives its text exactly, whatever its snapshots have."""
    assert row == decode(encode(row, writer=WRITER))


@given(row=rows)
def test_the_envelope_says_kind_format_and_writer(row: Row) -> None:
    """The JSON says what the entry is, and which software wrote it."""
    envelope = json.loads(encode(row, writer=WRITER))
    assert (kind_of(row).value, FORMAT, WRITER) == (envelope["kind"], envelope["format"], envelope["writer"])


def _checkpoint() -> dict[str, Any]:
    document: dict[str, Any] = json.loads((Path(__file__).parent / "rows" / "checkpoint.json").read_text())
    return document


def _changed(**changes: Any) -> str:
    return json.dumps(json.loads(encode(RELEASE, writer=WRITER)) | changes)


def test_a_newer_format_names_who_wrote_it_and_what_to_install() -> None:
    """The refusal names the way out, and is no validation error."""
    with pytest.raises(
        UnknownFormatError, match=r"written by tidemark 9\.1 in format 99.*install tidemark 9\.1 or newer"
    ):
        decode(_changed(format=99, writer="tidemark 9.1", row={"anything": 1}))


def test_an_unknown_kind_is_refused_as_a_newer_version() -> None:
    with pytest.raises(UnknownFormatError, match="kind 'foretold'"):
        decode(_changed(kind="foretold"))


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", _changed(row=[]), _changed(row={"generation": 1}), _changed(format="1"), _changed()[:-3]]
)
def test_a_damaged_entry_is_reported_as_damaged(text: str) -> None:
    """A text that is no entry raises one clear error."""
    with pytest.raises(UnreadableRowError):
        decode(text)


@pytest.mark.parametrize("field", ["tables", "vertices", "statistics"])
def test_an_older_checkpoint_without_a_field_of_every_format_is_refused(field: str) -> None:
    """Such an entry is damaged. It must not be read as a checkpoint without tables or vertices."""
    document = _checkpoint() | {"format": FORMAT - 1}
    del document["row"][field]
    with pytest.raises(UnreadableRowError, match=f"row.{field}"):
        decode(json.dumps(document))


def test_the_places_of_manifests_are_never_read_from_a_text() -> None:
    """Clean-up keeps the manifests that an entry names. Only the entry's references may name manifests."""
    text = _checkpoint()
    text["row"]["held_in"] = ["somewhere"]
    with pytest.raises(UnreadableRowError, match="held_in"):
        decode(json.dumps(text))


def test_an_older_entry_goes_through_every_migration_step_in_order() -> None:
    """An entry two formats back is migrated step by step."""
    steps = {1: lambda kind, row: {**row, "one": kind}, 2: lambda _, row: {**row, "two": row["one"]}}
    due = {"a": 1, "one": "claim", "two": "claim", "format": 3}
    assert due == migrate("claim", {"a": 1}, at=1, to=3, steps=steps)
    assert due | {"one": "x", "two": "x"} == migrate("claim", {"a": 1, "one": "x"}, at=2, to=3, steps=steps)


def test_a_gap_in_the_migration_steps_is_refused() -> None:
    """The error names the format without a step. No released version wrote that format."""
    with pytest.raises(UnknownFormatError, match="from format 5 of a release row"):
        decode(_changed(format=5))


def test_an_entry_may_have_as_many_characters_as_the_limit_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """One character more is too many. The limit prevents that a broken file fills the memory."""
    text = encode(RELEASE, writer=WRITER)
    monkeypatch.setattr(codec, "ROW_CHARACTERS_MAX", len(text))
    assert RELEASE == decode(text)
    with pytest.raises(UnreadableRowError, match="too long"):
        decode(f"{text} ")


# ------------------------------------------------------------------
# Entries from another program are refused with an error that names the field, or they name no file or table outside the
# job.


ROW = _checkpoint() | {"format": FORMAT - 1}
CRAFTED = json.loads((Path(__file__).parents[2] / "vectors" / "rows" / "crafted.json").read_text())
_ODD = [
    "../victim.txt",
    "/etc/passwd",
    "_tidemark/../../victim.txt",
    "_tidemark/flights/state/../../../victim.txt",
    "_tidemark/flights/lease",
    "_tidemark/flights/checkpoints/_rows/x.parquet",
    "silver/flights/_delta_log/00000000000000000000.json",
    "silver/flights/./x",
    "silver/flights/file:/etc/passwd",
    "a\\b",
    "\x00",
    "",
    -1,
    0,
    2**53,
    10**400,
    None,
    True,
    1.5,
    [],
    {},
    [[[]]],
]


def _put(document: Any, at: list[Any], value: Any) -> None:
    for part in at[:-1]:
        document = document[part]
    document[at[-1]] = value


@pytest.mark.parametrize("case", CRAFTED["cases"], ids=lambda case: case["name"])
def test_a_forged_entry_is_refused_by_its_field(case: dict[str, Any]) -> None:
    """One field of a real entry is forged. The refusal names the entry, the field and the way out."""
    crafted = copy.deepcopy(ROW)
    _put(crafted, case["at"], case["put"])
    with pytest.raises(UnreadableRowError, match=re.escape(case["field"])) as refused:
        decode(json.dumps(crafted))
    said = str(refused.value)
    assert "entry" in said.split(",", maxsplit=1)[0]
    assert "take the savepoint again where it was taken" in said
    assert said.replace("\n", "").isprintable()


@pytest.mark.parametrize("text", CRAFTED["texts"])
def test_a_text_that_is_no_entry_is_refused(text: str) -> None:
    """Such a text raises one of two errors. The message has no control characters."""
    with pytest.raises((UnreadableRowError, UnknownFormatError)) as refused:
        decode(text)
    assert str(refused.value).replace("\n", "").isprintable()


@pytest.mark.parametrize("text", [None, 7, b"{}", "[" * 100_000, '{"a":' * 50_000, f'{{"kind":{"9" * 10_000}}}'])
def test_a_payload_of_another_kind_or_without_end_is_refused(text: Any) -> None:
    """A foreign file of entries may hold nulls, other types, or texts that exhaust a parser."""
    with pytest.raises(UnreadableRowError):
        decode(text)


@given(row=rows, data=st.data())
def test_a_mutated_entry_is_refused_by_name_or_names_nothing_outside(row: Row, data: st.DataObject) -> None:
    """Values anywhere in an entry are removed, or replaced by odd values or other values of the entry."""
    document = json.loads(encode(row, writer="tidemark 0.1.0"))
    for _ in range(data.draw(st.integers(1, 3))):
        _mutate(document, data)
    text = json.dumps(document)
    try:
        decoded = decode(text)
    except (UnreadableRowError, UnknownFormatError):
        return
    _names_nothing_outside(decoded)
    assert decoded == decode(encode(decoded, writer="x"))


@given(text=st.text() | st.recursive(st.none() | st.integers() | st.text(), st.lists).map(json.dumps))
def test_any_text_is_refused_by_name(text: str) -> None:
    """Every text raises one of the codec's two errors."""
    with pytest.raises((UnreadableRowError, UnknownFormatError)):
        decode(text)


def _mutate(document: Any, data: st.DataObject) -> None:
    places = list(_places(document))
    at = data.draw(st.sampled_from(places))
    if data.draw(st.integers(0, 4)) == 0:
        target = document
        for part in at[:-1]:
            target = target[part]
        del target[at[-1]]
    else:
        other = data.draw(st.sampled_from(places))
        value = document
        for part in other:
            value = value[part]
        _put(document, at, data.draw(st.sampled_from([copy.deepcopy(value), *_ODD])))


def _places(document: Any, at: tuple[Any, ...] = ()) -> Any:
    if at:
        yield list(at)
    items = (
        document.items() if isinstance(document, dict) else enumerate(document) if isinstance(document, list) else ()
    )
    for name, value in items:
        yield from _places(value, (*at, name))


def _names_nothing_outside(row: Row) -> None:
    if not isinstance(row, CheckpointRecord):
        return
    paths = ProtocolPaths(job_name(row.job))
    removed = [file for table in row.tables for file in table.removes]
    compacted = [path for table in row.tables for each in table.compactions for path in each.of]
    assert all(path.startswith(f"{table.table}/_data/") for table in row.tables for path in compacted if table.adds)
    for file in (*handles_of(row), *removed):
        assert posixpath.normpath(file.path) == file.path
        assert "_delta_log" not in file.path
        parts = file.path.split("/")
        if parts[0] == "_tidemark":
            assert parts[:2] == ["_tidemark", row.job]
            assert parts[2] in ("state", "channels")
            assert (len(parts), parts[4]) == (7, "_data")
        else:
            paths.known_table("/".join(parts[:2]))
            assert len(parts) > 2
    for table in row.tables:
        paths.known_table(table.table)


@pytest.mark.parametrize("text", ["../x", "/a/b", "a/b/c", "_tidemark/flights/checkpoints", "_tidemark/other/state/a"])
def test_a_name_that_no_table_of_the_job_can_have_is_refused(text: str) -> None:
    """Output tables are `schema/table`. The only other tables are the job's own states."""
    with pytest.raises(InvalidNameError):
        ProtocolPaths(job_name("flights")).known_table(text)


def test_names_of_output_and_state_tables_are_accepted() -> None:
    paths = ProtocolPaths(job_name("flights"))
    for name in ("gold/routes", "_tidemark/flights/state/join"):
        assert name == paths.known_table(name)


@pytest.mark.parametrize("path", ["x.parquet", "year=2013/ä b%20.parquet", "_data/1/x", "12:00.parquet", "a/b:c"])
def test_any_name_of_a_data_file_in_the_tables_folder_is_accepted(path: str) -> None:
    """Other writers may choose the names of their files in the table's folder."""
    assert is_data_file(path)


# ------------------------------------------------------------------
# The names of objects. One class makes these names, and can read them back.


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
    """Every name that the class makes lies in the job's own folder."""
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
    """A name that a user gives is checked before it becomes a path."""
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
    """So no rule ever deletes a file without an owner."""
    assert parse_staged_name(name) is None


@pytest.mark.parametrize(
    "folder", ["day=%FF", "day=%41", "day=%2f", "day=%", "%FF=1", "version.text.%FF", "version.text.%41", "day=1%C3"]
)
def test_a_folder_with_a_name_that_tidemark_does_not_give_has_no_owner(folder: str) -> None:
    """Some of these names cannot be decoded. The others would be a second folder for the same partition."""
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
