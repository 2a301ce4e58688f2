"""Entries that somebody else wrote are refused by name, or name nothing outside the job."""

import copy
import json
import posixpath
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkpointing.identifiers import InvalidNameError, job_name
from checkpointing.metadata.codec import UnknownFormatError, UnreadableRowError, decode, encode
from checkpointing.metadata.files import handles_of
from checkpointing.metadata.paths import ProtocolPaths, is_data_file
from checkpointing.metadata.record import CheckpointRecord, Row
from tests.unit.stores.valid_rows import rows

ROW = json.loads((Path(__file__).parent / "rows" / "checkpoint_format_3.json").read_text())
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
    """One field of a real entry is changed. The refusal names the entry, the field and the way out."""
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
    """It raises one of two errors. The message has no control characters."""
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
    """The examples are an output table and a state."""
    paths = ProtocolPaths(job_name("flights"))
    for name in ("gold/routes", "_tidemark/flights/state/join"):
        assert name == paths.known_table(name)


@pytest.mark.parametrize("path", ["x.parquet", "year=2013/ä b%20.parquet", "_data/1/x", "12:00.parquet", "a/b:c"])
def test_any_name_of_a_data_file_in_the_tables_folder_is_accepted(path: str) -> None:
    """Other writers may choose the names of their files in the table's folder."""
    assert is_data_file(path)
