"""A file's path shows what the file holds and which process wrote it. A wrong path is refused (K1)."""

from typing import Final

from hypothesis import given
from hypothesis import strategies as st

from checkpointing.identifiers import (
    Generation,
    JobName,
    TableName,
    VertexId,
)
from checkpointing.metadata import paths
from checkpointing.metadata.paths import ProtocolPaths, StagedName
from checkpointing.partitions import TableVersion, Value, VersionKind, folder_of, version_of_folder
from spec.machines.judging import expect

NAMES: Final = "names-tell-files"
"""A staged file's path contains its table, generation, partition, version, vertex and micro-batch.

The kind of a version decides how it is compared. A file with another writer's rows is recognised by its name, in every
partition. No other name is recognised."""

_OWN: Final = ProtocolPaths(JobName("small"))
_FOLDERS: Final = (
    TableName("gold/sums"),
    _OWN.state_table(VertexId("sums")),
    _OWN.channel(VertexId("sums")),
)
_columns = st.lists(st.sampled_from(["day", "city", "a b", "größe", "a=b"]), unique=True, max_size=3)
_values = st.sampled_from([None, "2024-05-01", "a/b", "", "%41", "..", "others-1", "ö", "a=b"])
_versions = st.sampled_from(
    [
        None,
        TableVersion(VersionKind.NUMBER, "-12"),
        TableVersion(VersionKind.DATE, "2024-05-01"),
        TableVersion(VersionKind.TIME, "2024-05-01T10:00:00.000000Z"),
        TableVersion(VersionKind.TEXT, "v 1.2/ö"),
    ]
)
_ORDERED: Final = {
    VersionKind.NUMBER: ("-12", "-9", "0", "7", "10"),
    VersionKind.DATE: ("1999-12-31", "2024-05-01", "2024-10-01"),
    VersionKind.TIME: ("2024-05-01T09:00:00.000000", "2024-05-01T10:00:00.000000"),
    VersionKind.TEXT: ("", "B", "a", "a b", "a!", "a/b", "é"),
}
"""Texts of versions, in ascending order."""
_numbers = st.sampled_from([0, 1, 10, 123_456])
_generations = st.integers(1, 120)
_UNIQUE: Final = f"{11:032x}"
_PLAIN: Final = f"sums-4-{_UNIQUE}.parquet"
_WRONG: Final = (
    f"Sums-4-{_UNIQUE}.parquet",
    f"sums-x-{_UNIQUE}.parquet",
    f"sums-4-{_UNIQUE}.csv",
    f"sums-4-{_UNIQUE[1:]}.parquet",
    f"sums-4-{_UNIQUE}{_UNIQUE[:5]}.parquet",
    f"day=%61/{_PLAIN}",
    f"day=1/version.number.x/{_PLAIN}",
    f"version.text.%61/{_PLAIN}",
    f"version.number.1/day=1/{_PLAIN}",
    f"day/{_PLAIN}",
    f"../{_PLAIN}",
    f"day=1//{_PLAIN}",
)
"""Names in a generation's folder that no micro-batch gives to a file."""
_OUTSIDE: Final = (
    "gold/sums",
    "gold/sums/",
    "gold/sumsx/a",
    "gold/sums/../a",
    "gold/sums//a",
    "gold/sums/./a",
    "gold/sums/_delta_log/a",
    "gold/sums/_Delta_Log/a",
    "gold/sums/a\\b",
    "gold/sums/s3:/a",
    f"gold/sums/{'a' * 256}",
)
"""Paths of files that cannot belong to the table."""


@given(
    table=st.sampled_from(_FOLDERS),
    generation=_generations,
    micro_batch=_numbers,
    columns=_columns,
    values=st.lists(_values, min_size=3, max_size=3),
    version=_versions,
)
def test_names_stage(table, generation, micro_batch, columns, values, version):
    """A micro-batch stages a file."""
    partition = tuple(zip(columns, (value or "x" for value in values), strict=False))
    name = StagedName(VertexId("sums"), micro_batch, _UNIQUE, folder_of(partition), version.folder if version else "")
    path = _OWN.staged_file(table, Generation(generation), name)
    said = paths.staged_name_in(path), paths.staging_folder(path), paths.partition_of(path)
    expect(said == (name, table, partition), NAMES, f"{path} says {said}")
    read = version_of_folder(name.version)
    expect(read == version, NAMES, f"folder {name.version} says {read} of {version}")
    folder, _, inside = path.removeprefix(f"{table}/_data/").partition("/")
    expect(paths.parse_generation(folder) == generation, NAMES, f"{folder} is {paths.parse_generation(folder)}")
    told = paths.parse_staged_name(inside), paths.is_foreign_name(inside), paths.relative_to_table(table, path)
    expect(told == (name, False, path.removeprefix(f"{table}/")), NAMES, f"{inside} says {told}")


@given(columns=_columns, values=st.lists(_values, min_size=3, max_size=3), others=st.sampled_from(["", "x/", "v=/"]))
def test_names_write_again(columns, values, others):
    """The rows of another writer's file are written again, in the folder of its partition."""
    partition: tuple[Value, ...] = tuple(zip(columns, (value or "x" for value in values), strict=False))
    folders = f"{folder_of(partition)}/" if partition else ""
    path = _OWN.foreign_file(_FOLDERS[0], Generation(3), f"gold/sums/{others}{folders}part-1.parquet", _UNIQUE)
    inside = path.removeprefix("gold/sums/_data/3/")
    said = paths.is_foreign_name(inside), paths.parse_staged_name(inside), paths.staged_name_in(path)
    expect(said == (True, None, None), NAMES, f"{inside} says {said}")
    expect(inside == f"{folders}others-{_UNIQUE}.parquet", NAMES, f"{inside} is not in {folders}")


@given(columns=st.permutations(["day", "city", "a b"]), many=st.integers(0, 3), other=st.integers(0, 3))
def test_names_lay_out(columns, many, other):
    """A table's files are laid out by some columns, in their order. The second file may be laid out otherwise."""
    by, then = columns[:many], columns[::-1][:other]
    made = [
        _OWN.staged_file(
            _FOLDERS[0],
            Generation(3),
            StagedName(VertexId("sums"), 4, _UNIQUE, folder_of((each, "1") for each in of)),
        )
        for of in (by, then)
    ]
    due = None if by == then else made[1]
    found = paths.laid_out_otherwise(by, made)
    expect(found == due, NAMES, f"{found} is laid out otherwise than by {by}, due is {due}")


@given(kind=st.sampled_from(VersionKind), one=st.integers(0, 6), other=st.integers(0, 6))
def test_names_compare(kind, one, other):
    """Two versions of a kind are compared, as their folders tell them."""
    places = [place % len(_ORDERED[kind]) for place in (one, other)]
    folders = [TableVersion(kind, _ORDERED[kind][place]).folder for place in places]
    first, second = (version_of_folder(folder) for folder in folders)
    found = first is not None and second is not None and first.order < second.order
    expect(found == (places[0] < places[1]), NAMES, f"{folders[0]} is less than {folders[1]}: {found}")


@given(wrong=st.sampled_from(_WRONG), table=st.sampled_from(_FOLDERS))
def test_names_believe_nothing_else(wrong, table):
    """A file has a name that no micro-batch gives."""
    path = f"{table}/_data/3/{wrong}"
    said = paths.parse_staged_name(wrong), paths.staged_name_in(path), paths.is_foreign_name(wrong)
    expect(said == (None, None, False), NAMES, f"{wrong} says {said}")


@given(path=st.sampled_from(_OUTSIDE))
def test_names_stay_inside(path):
    """A path from outside leads out of the table, or into its log."""
    found = paths.relative_to_table(_FOLDERS[0], path)
    expect(found is None, NAMES, f"{path} is taken for {found} of the table")


@given(digest=st.sampled_from([f"{5:064x}", f"{5:063x}", f"{5:065x}", "g" * 64]), generation=_generations)
def test_names_write_a_manifest(digest, generation):
    """A manifest is written."""
    folder, _, name = _OWN.manifest(Generation(generation), digest).rpartition("/")
    expect(folder == f"_tidemark/small/manifests/_data/{generation}", NAMES, f"a manifest lies in {folder}")
    is_known, due = paths.is_manifest_name(name), digest == f"{5:064x}"
    expect(is_known is due, NAMES, f"{name} is known: {is_known}")
