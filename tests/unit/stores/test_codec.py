"""Entries as JSON text. An entry is read back, by this version or a later one. A too new one says what to install."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given

from checkpointing.identifiers import CheckpointId, Generation
from checkpointing.metadata import codec
from checkpointing.metadata.codec import UnknownFormatError, UnreadableRowError, decode, encode, kind_of, migrate
from checkpointing.metadata.record import (
    FORMAT,
    CheckpointRecord,
    Release,
    Rename,
    RenameKind,
    Row,
    SubtaskStatistics,
)
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


def _changed(**changes: Any) -> str:
    return json.dumps(json.loads(encode(RELEASE, writer=WRITER)) | changes)


def test_a_newer_format_names_who_wrote_it_and_what_to_install() -> None:
    """The refusal names the way out, and is no validation error."""
    with pytest.raises(
        UnknownFormatError, match=r"written by tidemark 9\.1 in format 99.*install tidemark 9\.1 or newer"
    ):
        decode(_changed(format=99, writer="tidemark 9.1", row={"anything": 1}))


def test_an_unknown_kind_is_refused_as_a_newer_version() -> None:
    """If this version does not know a kind, a newer version wrote the entry."""
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
@pytest.mark.parametrize("number", [1, 2, 3, 4, 5])
def test_an_older_checkpoint_without_a_field_of_every_format_is_refused(number: int, field: str) -> None:
    """It is damaged. It is not read as a checkpoint without tables or vertices."""
    document = json.loads((Path(__file__).parent / "rows" / f"checkpoint_format_{number}.json").read_text())
    del document["row"][field]
    with pytest.raises(UnreadableRowError, match=f"row.{field}"):
        decode(json.dumps(document))


def test_a_checkpoint_of_format_1_is_read_unpinned() -> None:
    """The first release wrote this entry. All of it is read, and it is no savepoint."""
    text = (Path(__file__).parent / "rows" / "checkpoint_format_1.json").read_text()
    row = decode(text)
    assert isinstance(row, CheckpointRecord)
    assert (False, False, FORMAT) == (row.pinned, row.is_savepoint, row.format)
    written = json.loads(text)["row"] | {"format": FORMAT}
    assert [] == lost(written, json.loads(row.model_dump_json()))


def lost(written: Any, read: Any, at: str = "row") -> list[str]:
    """Return every place whose value was not read. The result may have more fields."""
    if isinstance(written, dict) and isinstance(read, dict):
        return [each for name in written for each in lost(written[name], read.get(name), f"{at}.{name}")]
    if isinstance(written, list) and isinstance(read, list) and len(written) == len(read):
        return [each for n, pair in enumerate(zip(written, read, strict=True)) for each in lost(*pair, f"{at}[{n}]")]
    return [] if written == read else [at]


@pytest.mark.parametrize("kind", ["claim", "release", "savepoint"])
def test_an_entry_of_format_1_of_any_kind_is_read(kind: str) -> None:
    """Claims and releases change only their number. A savepoint of format 1 is pinned because of its kind."""
    savepoint = {"kind": kind} if kind == "savepoint" else {}
    expected = {"a": 1, "format": 2, **savepoint, **({"pinned": True} if savepoint else {})}
    assert expected == migrate(kind, {"a": 1, "format": 1, **savepoint}, at=1, to=2)


def test_a_checkpoint_of_format_2_is_on_its_line_and_removes_nothing() -> None:
    """The second release wrote this entry. All of it is read, and no rollback is read into it."""
    text = (Path(__file__).parent / "rows" / "checkpoint_format_2.json").read_text()
    row = decode(text)
    assert isinstance(row, CheckpointRecord)
    assert (True, False, True, FORMAT) == (row.pinned, row.abandoned, row.commits, row.format)
    assert {()} == {table.removes for table in row.tables}
    assert [] == lost(json.loads(text)["row"] | {"format": FORMAT}, json.loads(row.model_dump_json()))


@pytest.mark.parametrize("kind", ["claim", "release"])
def test_an_entry_of_the_fence_of_format_2_changes_only_its_number(kind: str) -> None:
    """It has nothing to do with rollbacks."""
    assert {"a": 1, "format": 3} == migrate(kind, {"a": 1, "format": 2}, at=2, to=3)


def test_a_checkpoint_of_format_3_has_no_meanings_of_its_state() -> None:
    """The third release wrote this entry. All of it is read, and its state has no recorded meanings."""
    text = (Path(__file__).parent / "rows" / "checkpoint_format_3.json").read_text()
    row = decode(text)
    assert isinstance(row, CheckpointRecord)
    assert FORMAT == row.format
    assert {(None, ())} == {(vertex.meanings, vertex.table_keys) for vertex in row.vertices}
    assert [] == lost(json.loads(text)["row"] | {"format": FORMAT}, json.loads(row.model_dump_json()))


@pytest.mark.parametrize("kind", ["claim", "release"])
def test_an_entry_of_the_fence_of_format_3_changes_only_its_number(kind: str) -> None:
    """A claim and a release have no state."""
    assert {"a": 1, "format": 4} == migrate(kind, {"a": 1, "format": 3}, at=3, to=4)


def test_a_rename_from_before_columns_could_be_renamed_is_read() -> None:
    """Entries of format 5 from that time name no vertex in a rename."""
    document = json.loads((Path(__file__).parent / "rows" / "checkpoint_format_4.json").read_text())
    document["format"] = 5
    document["row"] |= {"format": 5, "renames": [{"kind": "vertex", "was": "a", "now": "b"}]}
    row = decode(json.dumps(document))
    assert isinstance(row, CheckpointRecord)
    assert (Rename(kind=RenameKind.VERTEX, was="a", now="b"),) == row.renames


@pytest.mark.parametrize(("kind", "was", "now"), [("vertex", "a", "b"), ("table", "x/a", "x/b")])
def test_a_rename_of_a_vertex_or_a_table_that_also_names_a_vertex_is_refused(kind: str, was: str, now: str) -> None:
    """Only a renamed column belongs to a vertex. Tidemark does not write such an entry."""
    document = json.loads((Path(__file__).parent / "rows" / "checkpoint_format_4.json").read_text())
    document["format"] = 5
    for vertex, is_valid in (("", True), ("e", False)):
        renames = [{"kind": kind, "was": was, "now": now, "vertex": vertex}]
        document["row"] |= {"format": 5, "renames": renames}
        if is_valid:
            decode(json.dumps(document))
            continue
        with pytest.raises(UnreadableRowError, match="renames"):
            decode(json.dumps(document))


def test_a_checkpoint_of_format_4_has_no_renames_subtasks_and_hooks() -> None:
    """The fourth release wrote this entry. All of it is read. Nothing was renamed, measured or kept by a hook."""
    text = (Path(__file__).parent / "rows" / "checkpoint_format_4.json").read_text()
    row = decode(text)
    assert isinstance(row, CheckpointRecord)
    assert (FORMAT, (), (), None) == (row.format, row.renames, row.hooks, row.statistics.counts)
    assert {SubtaskStatistics()} == {vertex.subtasks for vertex in row.statistics.vertices}
    measured = [(each.start_delay_ms, each.bytes_processed, each.async_ms) for each in row.statistics.vertices]
    assert {(None, None, None)} == set(measured)
    assert [] == lost(json.loads(text)["row"] | {"format": FORMAT}, json.loads(row.model_dump_json()))


@pytest.mark.parametrize("kind", ["claim", "release"])
def test_an_entry_of_the_fence_of_format_4_changes_only_its_number(kind: str) -> None:
    """A claim and a release have no vertices, tables and statistics."""
    assert {"a": 1, "format": 5} == migrate(kind, {"a": 1, "format": 4}, at=4, to=5)


def test_a_checkpoint_of_format_5_names_all_its_files() -> None:
    """The fifth release wrote this entry. All of it is read, and it has no manifests."""
    text = (Path(__file__).parent / "rows" / "checkpoint_format_5.json").read_text()
    row = decode(text)
    assert isinstance(row, CheckpointRecord)
    assert (FORMAT, (), (), True) == (row.format, row.manifests, row.held_in, row.is_whole)
    assert [] == lost(json.loads(text)["row"] | {"format": FORMAT}, json.loads(row.model_dump_json()))


@pytest.mark.parametrize("kind", ["claim", "release"])
def test_an_entry_of_the_fence_of_format_5_changes_only_its_number(kind: str) -> None:
    """A claim and a release name no file."""
    assert {"a": 1, "format": 6} == migrate(kind, {"a": 1, "format": 5}, at=5, to=6)


def test_the_places_of_manifests_are_never_read_from_a_text() -> None:
    """Clean-up keeps the manifests that an entry names. Only its references may say which these are."""
    text = json.loads((Path(__file__).parent / "rows" / "checkpoint_format_5.json").read_text())
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
    """The error names the format without a step."""
    with pytest.raises(UnknownFormatError, match="from format 0 of a claim row"):
        migrate("claim", {}, at=0)


def _reading(outputs: Any) -> str:
    """Return an entry of the present format whose vertices read these outputs. None leaves the field out."""
    text = (Path(__file__).parent / "rows" / "checkpoint_format_5.json").read_text()
    document = json.loads(encode(decode(text), writer=WRITER))
    for vertex in document["row"]["vertices"]:
        del vertex["outputs_read"]
        if outputs is not None:
            vertex["outputs_read"] = outputs
    return json.dumps(document)


@pytest.mark.parametrize(("written", "read"), [(None, None), ([], ()), ([None, "alerts"], (None, "alerts"))])
def test_an_entry_says_which_outputs_were_read_or_that_nobody_recorded_it(written: Any, read: Any) -> None:
    """An older entry does not have the field. That is not the same as an entry of main outputs alone."""
    row = decode(_reading(written))
    assert isinstance(row, CheckpointRecord)
    assert {read} == {vertex.outputs_read for vertex in row.vertices}


@pytest.mark.parametrize("name", ["../x", "", "Late", 7])
def test_an_output_without_a_valid_name_is_refused(name: Any) -> None:
    """Tidemark cannot have written it. The message names the field."""
    with pytest.raises(UnreadableRowError, match=r"vertices(\[0\]|\.0)\.outputs_read(\[0\]|\.0)"):
        decode(_reading([name]))


def test_an_entry_may_have_as_many_characters_as_the_limit_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """One more is too many. The limit keeps a broken file from filling the memory."""
    text = encode(RELEASE, writer=WRITER)
    monkeypatch.setattr(codec, "ROW_CHARACTERS_MAX", len(text))
    assert RELEASE == decode(text)
    with pytest.raises(UnreadableRowError, match="too long"):
        decode(f"{text} ")
