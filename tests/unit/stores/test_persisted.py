"""Tests that persisted records do not change without a new format number.

`rows/persisted.json` has a digest of the fields of each record: entries, manifests, positions, leases, requests,
reservations and the small files of sources. Two builds with the same number and different fields could not read each
other's entries, and reported them as damaged.
"""

import json
from hashlib import sha256
from pathlib import Path
from tomllib import loads

import pytest
from pydantic import TypeAdapter

from checkpointing.commit.manifests import ManifestContent
from checkpointing.metadata.codec import UnknownFormatError, UnreadableRowError, decode, encode
from checkpointing.metadata.record import FORMAT, CheckpointRecord, Claim, Release
from jobs.quality.verdict import Verdict
from jobs.sources.committed_positions import Committed
from jobs.sources.debezium.staging import DebeziumNote
from jobs.sources.delta.cut_source import CutPosition
from jobs.sources.delta.delta_reader import DeltaPosition, DeltaSlice
from jobs.sources.files.file_matching import Ledger
from jobs.sources.files.file_position import FilePosition, SliceDetail
from jobs.sources.files.file_source import FoundColumns
from jobs.sources.kafka.position import FirstLook, KafkaPosition, OffsetRange
from jobs.sources.postgres.catalog import Note
from jobs.sources.python.readers import OffsetPosition
from jobs.sources.staged.position import ChangesPosition
from jobs.warehouse import checkpoints, cuts_table
from jobs.warehouse.cleanup import _LooksFile
from jobs.warehouse.cuts_table import ReservationFile
from jobs.warehouse.lease import LeaseFile
from jobs.warehouse.requests import CancelRequest, SavepointAnswer, SavepointRequest
from jobs.warehouse.savepoint_copy import CopyManifest

ROOT = Path(__file__).parents[3]
ROWS = Path(__file__).parent / "rows"
NOTED = json.loads((ROWS / "persisted.json").read_text())
FORMAT_6 = (ROWS / "entries_format_6.ndjson").read_text().splitlines()
"""Entries of a small job that version 0.1.0 wrote (commit 2826e2cd): of ticks, a savepoint, a rollback and a reset."""
RECORDS = (
    CheckpointRecord,
    Claim,
    Release,
    ManifestContent,
    LeaseFile,
    SavepointRequest,
    CancelRequest,
    SavepointAnswer,
    ReservationFile,
    CopyManifest,
    _LooksFile,
    Verdict,
    Committed,
    Ledger,
    FoundColumns,
    CutPosition,
    DeltaPosition,
    DeltaSlice,
    FilePosition,
    SliceDetail,
    KafkaPosition,
    FirstLook,
    OffsetRange,
    ChangesPosition,
    Note,
    DebeziumNote,
    OffsetPosition,
)


def lost(written, read, at="row"):
    """Return every place whose value was lost by reading. The result may have more fields."""
    if isinstance(written, dict) and isinstance(read, dict):
        return [each for name in written for each in lost(written[name], read.get(name), f"{at}.{name}")]
    if isinstance(written, list) and isinstance(read, list) and len(written) == len(read):
        return [each for n, pair in enumerate(zip(written, read, strict=True)) for each in lost(*pair, f"{at}[{n}]")]
    return [] if written == read else [at]


def fields(schema):
    if isinstance(schema, dict):
        return {name: fields(each) for name, each in schema.items() if name != "description" or isinstance(each, dict)}
    return [fields(each) for each in schema] if isinstance(schema, list) else schema


def digest(content) -> str:
    return sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]


def persisted() -> dict[str, str]:
    found = {each.__name__: digest(fields(TypeAdapter(each).json_schema())) for each in RECORDS}
    tables = {"checkpoints": checkpoints.SCHEMA, "cuts": cuts_table.SCHEMA}
    return found | {f"table {name}": digest(str(schema)) for name, schema in tables.items()}


def test_what_is_persisted_changes_with_the_format_number():
    """If this test fails, a persisted record has changed.

    If a released version writes this format, raise `FORMAT` and the version in pyproject.toml, and add a migration
    step. Then write the new digests, the format and the version into `rows/persisted.json`.
    """
    found = persisted()
    assert {"format": FORMAT, "records": found} == {name: NOTED[name] for name in ("format", "records")}, (
        f"other fields than noted: {sorted(name for name in found if found[name] != NOTED['records'].get(name))}"
    )


def test_the_version_rises_with_the_format_number():
    """A message tells users to install the version that wrote an entry. So each new format needs a new version."""
    version = loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert numbers(version) >= numbers(NOTED["since"])


def numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))


def test_a_record_with_another_field_has_another_digest():
    """The digest depends on each field's name, type and default, at any depth, but not on its description."""
    schema = TypeAdapter(CheckpointRecord).json_schema()
    words = json.loads(json.dumps(schema).replace("The columns", "All columns"))
    assert digest(fields(schema)) == digest(fields(words))
    schema["$defs"]["FileHandle"]["properties"]["colour"] = {"type": "string", "default": ""}
    assert NOTED["records"]["CheckpointRecord"] != digest(fields(schema))


@pytest.mark.parametrize("text", FORMAT_6)
def test_an_entry_of_version_0_1_0_is_read(text):
    """The whole entry is read. Written again, it has the present format, and can have fields that were added since."""
    row, written = decode(text), json.loads(text)
    again = json.loads(encode(row, writer="tidemark-spark 0.2.0"))
    assert (written["kind"], FORMAT) == (again["kind"], again["format"])
    assert [] == lost(written["row"] | {"format": FORMAT}, again["row"])


def test_the_entries_of_version_0_1_0_are_of_every_kind():
    """The fixture has a claim, a release, a checkpoint, a savepoint, a rollback and a reset."""
    kinds = {json.loads(text)["kind"] for text in FORMAT_6}
    assert {"claim", "release", "checkpoint", "savepoint", "rollback", "reset"} == kinds


def newer(change, **envelope):
    row = next(decode(text) for text in FORMAT_6 if '"kind":"checkpoint"' in text[:30])
    document = json.loads(encode(row, writer="tidemark-spark 0.3.0")) | envelope
    change(document["row"])
    return json.dumps(document)


@pytest.mark.parametrize(
    ("where", "change"),
    [
        ("colour", lambda row: row.update(colour="blue")),
        ("tables.0.colour", lambda row: row["tables"][0].update(colour="blue")),
        ("vertices.1.subtasks.0.colour", lambda row: row["vertices"][1]["subtasks"][0].update(colour={"a": [1]})),
        ("tables.0.adds.0.colour", lambda row: [each.update(colour=1) for each in row["tables"][0]["adds"]]),
    ],
)
def test_an_entry_with_a_later_field_is_called_newer(where, change):
    """Such an entry is not damaged, so no backup would help. The message names the field and what to install."""
    with pytest.raises(UnknownFormatError) as refused:
        decode(newer(change))
    said = str(refused.value)
    assert "written by tidemark-spark 0.3.0, newer than this version" in said
    assert f"its field {where}: install tidemark-spark 0.3.0 or newer" in said
    assert "damaged" not in said


def test_an_entry_with_a_later_field_and_a_wrong_one_is_damaged():
    """The error names a value that no version can have written, or a later field in an entry of an older format."""
    with pytest.raises(UnreadableRowError, match="damaged"):
        decode(newer(lambda row: row.update(colour="blue", checkpoint="x")))
    with pytest.raises(UnreadableRowError, match=r"row\.colour"):
        decode(newer(lambda row: row.update(colour="blue"), format=FORMAT - 1))
