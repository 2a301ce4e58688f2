"""Rows as JSON text: what is written is read back, by this version or by one that says what to install."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given

from checkpointing.identifiers import CheckpointId, Generation
from checkpointing.metadata.codec import UnknownFormatError, UnreadableRowError, decode, encode, kind_of
from checkpointing.metadata.migrations import migrate
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
def test_a_row_is_read_back_as_it_was_written(row: Row) -> None:
    """Every row, with whatever its snapshots hold, survives its text exactly."""
    assert row == decode(encode(row, writer=WRITER))


@given(row=rows)
def test_the_envelope_says_kind_format_and_writer(row: Row) -> None:
    """A row is JSON that says what it is and which software wrote it."""
    envelope = json.loads(encode(row, writer=WRITER))
    assert (kind_of(row).value, FORMAT, WRITER) == (envelope["kind"], envelope["format"], envelope["writer"])


def _changed(**changes: Any) -> str:
    return json.dumps(json.loads(encode(RELEASE, writer=WRITER)) | changes)


def test_a_newer_format_names_who_wrote_it_and_what_to_install() -> None:
    """A row that is too new is refused with the way out, not with a validation error."""
    with pytest.raises(
        UnknownFormatError, match=r"written by tidemark 9\.1 in format 99.*install tidemark 9\.1 or newer"
    ):
        decode(_changed(format=99, writer="tidemark 9.1", row={"anything": 1}))


def test_an_unknown_kind_is_a_newer_version_too() -> None:
    """A kind of row that this version has never heard of is one that a newer one wrote."""
    with pytest.raises(UnknownFormatError, match="kind 'foretold'"):
        decode(_changed(kind="foretold"))


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", _changed(row=[]), _changed(row={"generation": 1}), _changed(format="1"), _changed()[:-3]]
)
def test_a_damaged_row_is_said_to_be_damaged(text: str) -> None:
    """A text that is no row raises one clear error."""
    with pytest.raises(UnreadableRowError):
        decode(text)


def test_a_checkpoint_of_format_1_is_read_unpinned() -> None:
    """A row that the first release wrote: nothing of it is lost, and no savepoint was ever such a row."""
    text = (Path(__file__).parent / "rows" / "checkpoint_format_1.json").read_text()
    row = decode(text)
    assert isinstance(row, CheckpointRecord)
    assert (False, False, FORMAT) == (row.pinned, row.is_savepoint, row.format)
    written = json.loads(text)["row"] | {"format": FORMAT}
    assert [] == _lost(written, json.loads(row.model_dump_json()))


def _lost(written: Any, read: Any, at: str = "row") -> list[str]:
    """Return every place whose value was not read; what is read may know more fields."""
    if isinstance(written, dict) and isinstance(read, dict):
        return [lost for name in written for lost in _lost(written[name], read.get(name), f"{at}.{name}")]
    if isinstance(written, list) and isinstance(read, list) and len(written) == len(read):
        return [lost for n, pair in enumerate(zip(written, read, strict=True)) for lost in _lost(*pair, f"{at}[{n}]")]
    return [] if written == read else [at]


@pytest.mark.parametrize("kind", ["claim", "release", "savepoint"])
def test_a_row_of_format_1_of_any_kind_is_read(kind: str) -> None:
    """Claims and releases change their number only; a savepoint of format 1 is pinned by its kind."""
    savepoint = {"kind": kind} if kind == "savepoint" else {}
    expected = {"a": 1, "format": 2, **savepoint, **({"pinned": True} if savepoint else {})}
    assert expected == migrate(kind, {"a": 1, "format": 1, **savepoint}, at=1, to=2)


def test_a_checkpoint_of_format_2_is_on_its_line_and_takes_nothing_out() -> None:
    """A row that the second release wrote: all of it is read, and no rollback is read into it."""
    text = (Path(__file__).parent / "rows" / "checkpoint_format_2.json").read_text()
    row = decode(text)
    assert isinstance(row, CheckpointRecord)
    assert (True, False, True, FORMAT) == (row.pinned, row.abandoned, row.commits, row.format)
    assert {()} == {table.removes for table in row.tables}
    assert [] == _lost(json.loads(text)["row"] | {"format": FORMAT}, json.loads(row.model_dump_json()))


@pytest.mark.parametrize("kind", ["claim", "release"])
def test_a_row_of_the_fence_of_format_2_changes_its_number_only(kind: str) -> None:
    """Rollbacks are none of its business."""
    assert {"a": 1, "format": 3} == migrate(kind, {"a": 1, "format": 2}, at=2, to=3)


def test_a_checkpoint_of_format_3_says_nothing_of_what_its_state_means() -> None:
    """A row that the third release wrote: all of it is read, and the meanings of its state are not recorded."""
    text = (Path(__file__).parent / "rows" / "checkpoint_format_3.json").read_text()
    row = decode(text)
    assert isinstance(row, CheckpointRecord)
    assert FORMAT == row.format
    assert {(None, ())} == {(vertex.meanings, vertex.table_keys) for vertex in row.vertices}
    assert [] == _lost(json.loads(text)["row"] | {"format": FORMAT}, json.loads(row.model_dump_json()))


@pytest.mark.parametrize("kind", ["claim", "release"])
def test_a_row_of_the_fence_of_format_3_changes_its_number_only(kind: str) -> None:
    """A claim and a release hold no state."""
    assert {"a": 1, "format": 4} == migrate(kind, {"a": 1, "format": 3}, at=3, to=4)


def test_a_rename_that_was_written_before_columns_could_be_renamed_is_read() -> None:
    """Entries of format 5 from then name no vertex beside a rename."""
    document = json.loads((Path(__file__).parent / "rows" / "checkpoint_format_4.json").read_text())
    document["format"] = 5
    document["row"] |= {"format": 5, "renames": [{"kind": "vertex", "was": "a", "now": "b"}]}
    row = decode(json.dumps(document))
    assert isinstance(row, CheckpointRecord)
    assert (Rename(kind=RenameKind.VERTEX, was="a", now="b"),) == row.renames


def test_a_checkpoint_of_format_4_says_nothing_of_renames_subtasks_and_hooks() -> None:
    """A row that the fourth release wrote: all of it is read, nothing was renamed, measured or kept by a hook."""
    text = (Path(__file__).parent / "rows" / "checkpoint_format_4.json").read_text()
    row = decode(text)
    assert isinstance(row, CheckpointRecord)
    assert (FORMAT, (), (), None) == (row.format, row.renames, row.hooks, row.statistics.counts)
    assert {SubtaskStatistics()} == {vertex.subtasks for vertex in row.statistics.vertices}
    measured = [(each.start_delay_ms, each.bytes_processed, each.async_ms) for each in row.statistics.vertices]
    assert {(None, None, None)} == set(measured)
    assert [] == _lost(json.loads(text)["row"] | {"format": FORMAT}, json.loads(row.model_dump_json()))


@pytest.mark.parametrize("kind", ["claim", "release"])
def test_a_row_of_the_fence_of_format_4_changes_its_number_only(kind: str) -> None:
    """A claim and a release name no vertex and no table, and have no statistics."""
    assert {"a": 1, "format": 5} == migrate(kind, {"a": 1, "format": 4}, at=4, to=5)


def test_a_checkpoint_of_format_5_names_all_its_files_itself() -> None:
    """A row that the fifth release wrote: all of it is read, and it has no manifests."""
    text = (Path(__file__).parent / "rows" / "checkpoint_format_5.json").read_text()
    row = decode(text)
    assert isinstance(row, CheckpointRecord)
    assert (FORMAT, (), (), True) == (row.format, row.manifests, row.held_in, row.is_whole)
    assert [] == _lost(json.loads(text)["row"] | {"format": FORMAT}, json.loads(row.model_dump_json()))


@pytest.mark.parametrize("kind", ["claim", "release"])
def test_a_row_of_the_fence_of_format_5_changes_its_number_only(kind: str) -> None:
    """A claim and a release name no file."""
    assert {"a": 1, "format": 6} == migrate(kind, {"a": 1, "format": 5}, at=5, to=6)


def test_where_the_manifests_lie_is_never_read_from_a_text() -> None:
    """Clean-up keeps what an entry names: a text must not say which manifests these are besides its references."""
    text = json.loads((Path(__file__).parent / "rows" / "checkpoint_format_5.json").read_text())
    text["row"]["held_in"] = ["somewhere"]
    with pytest.raises(UnreadableRowError, match="held_in"):
        decode(json.dumps(text))


def test_an_older_row_goes_through_every_step_of_the_chain_in_order() -> None:
    """A row two formats back is brought forward step by step."""
    steps = {1: lambda kind, row: {**row, "one": kind}, 2: lambda _, row: {**row, "two": row["one"]}}
    assert {"a": 1, "one": "claim", "two": "claim"} == migrate("claim", {"a": 1}, at=1, to=3, steps=steps)
    assert {"a": 1, "one": "x", "two": "x"} == migrate("claim", {"a": 1, "one": "x"}, at=2, to=3, steps=steps)


def test_a_gap_in_the_chain_is_refused() -> None:
    """A format that no step leaves is named."""
    with pytest.raises(UnknownFormatError, match="from format 0 of a claim row"):
        migrate("claim", {}, at=0)
