"""Changes an entry where its fields must agree, and says whether Tidemark may have written what results (H1).

Most changes make the entry false. Each change that leaves it true is close to one that makes it false.
"""

from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

from spec.full_entry import OWN, Fields, claim, full_entry, handle, release, staged
from spec.older_formats import PRESENT

_COMPACTED_MOST: Final = 1_000


class Told(NamedTuple):
    """An entry, and whether Tidemark may have written it."""

    what: str
    envelope: Fields
    is_true: bool
    newer: bool = False
    """True if a newer version wrote the entry. Its `writer` names the version that a user must install."""
    stored: bool = False
    """True if the entry is read in its stored form, in which manifests may hold its files."""


Change = Callable[[Fields], None]


def told() -> Iterator[Told]:
    """Yield the changed entries."""
    for what, change in {**_twice(), **_false()}.items():
        yield _told(what, change, is_true=False)
    for what, change in _true().items():
        yield _told(what, change, is_true=True)
    for entry in (full_entry(), claim(), release()):
        yield Told(f"a {entry['kind']} as it is", entry, is_true=True)
        yield from _without(entry)
    yield from _kinds()
    yield from _of_others()
    yield from _in_manifests()


def _told(what: str, change: Change, *, is_true: bool) -> Told:
    envelope = full_entry()
    change(envelope["row"])
    return Told(what, envelope, is_true)


def _without(entry: Fields) -> Iterator[Told]:
    """Leave out each field of the envelope, or one that every format has. Or add a field that no format has."""
    may_lack = {"format", "kind", "pinned", "abandoned", "columns", "renames", "hooks", "outside", "manifests"}
    row = entry["row"]
    for name in entry:
        yield Told(
            f"a {entry['kind']} with no {name} outside",
            {key: entry[key] for key in entry if key != name},
            is_true=False,
        )
    for name in row:
        less = {key: row[key] for key in row if key != name}
        pinned = {key: less[key] for key in less if key != "pinned"}
        yield Told(
            f"no {name} in a {entry['kind']}", entry | {"row": less if name != "kind" else pinned}, name in may_lack
        )
    yield Told(
        f"a {entry['kind']} with a field that this version does not know",
        entry | {"row": row | {"colour": "blue"}},
        is_true=False,
        newer=True,
    )
    yield Told(
        f"a {entry['kind']} of an older format with such a field",
        entry | {"row": row | {"colour": "blue"}, "format": PRESENT - 1},
        is_true=False,
    )
    yield Told(
        f"a {entry['kind']} with such a field and a wrong one",
        entry | {"row": row | {"colour": "blue", "generation": "three"}},
        is_true=False,
    )
    yield Told(f"a {entry['kind']} with a truth for a format", entry | {"format": True}, is_true=False)
    yield Told(f"a {entry['kind']} with a falsehood for a format", entry | {"format": False}, is_true=False)
    yield Told(f"a {entry['kind']} with a number for a writer", entry | {"writer": 6}, is_true=False)


def _kinds() -> Iterator[Told]:
    """Change the kind in the envelope, in the entry, or in both."""
    cuts = ("checkpoint", "savepoint", "rollback", "reset", "held")
    for kind in cuts:
        entry = full_entry()
        entry["row"]["kind"] = kind
        yield Told(f"a {kind} that calls itself a checkpoint outside", entry, kind == "checkpoint")
        yield Told(f"a {kind}", entry | {"kind": kind}, is_true=True)
    for kind in ("claim", "release"):
        yield Told(f"a checkpoint that calls itself a {kind} outside", full_entry() | {"kind": kind}, is_true=False)
    for entry, kind in ((claim(), "release"), (release(), "claim"), (claim(), "checkpoint")):
        yield Told(f"a {entry['kind']} that calls itself a {kind} outside", entry | {"kind": kind}, is_true=False)


def _of_others() -> Iterator[Told]:
    """Give an entry a format or a kind that this version does not know."""
    for number in (PRESENT + 1, PRESENT + 2):
        yield Told(f"format {number}", full_entry() | {"format": number}, is_true=False, newer=True)
    for kind in ("barrier", ""):
        yield Told(f"kind {kind!r}", full_entry() | {"kind": kind}, is_true=False, newer=True)
    yield Told(
        "a kind of a newer format", claim() | {"kind": "barrier", "format": PRESENT + 1}, is_true=False, newer=True
    )


def _in_manifests() -> Iterator[Told]:
    """Let manifests hold the files. Each reference has a generation, a digest and a number of handles."""
    for false in ({}, {"generation": 0}, {"digest": "1"}, {"handles": 0}, {"left_out": "0"}, {"left_out": "x"}):
        entry = full_entry()
        entry["row"]["manifests"] = [_manifest() | false]
        yield Told(f"a manifest with {false}", entry, not false, stored=True)
    entry = full_entry()
    entry["row"]["tables"][1]["of_snapshots"] = True
    yield Told("files that only snapshots name, in a stored form", entry, is_true=True, stored=True)


def _twice() -> dict[str, Change]:
    """Let a list name one thing twice."""
    lists: dict[str, Callable[[Fields], list[Any]]] = {
        "vertices": lambda row: row["vertices"],
        "tables": lambda row: row["tables"],
        "tables with columns": lambda row: row["columns"],
        "hooks": lambda row: row["hooks"],
        "columns": lambda row: row["columns"][0]["columns"],
        "compacted files": lambda row: row["tables"][0]["compactions"][0]["of"],
    }

    def again(of: Callable[[Fields], list[Any]]) -> Change:
        return lambda row: of(row).append(of(row)[0])

    return {f"{what} twice": again(of) for what, of in lists.items()}


def _false() -> dict[str, Change]:
    """Return changes after which two fields contradict each other."""
    return {
        "one split twice": lambda row: row["vertices"][0].update(splits=["a", "a"]),
        "a split too few": lambda row: row["vertices"][0]["splits"].pop(),
        "a split too many": lambda row: row["vertices"][0]["splits"].append("c"),
        "measurements of a subtask too few": lambda row: _measured(row).update(task_ms=[6]),
        "measurements of a subtask too many": lambda row: _measured(row).update(rows_in=[6, 6, 6]),
        "a renamed column of no vertex": lambda row: row["renames"][2].update(vertex=""),
        "a renamed column of a wrong name": lambda row: row["renames"][2].update(vertex="A"),
        "a renamed column without a name": lambda row: row["renames"][2].update(was=""),
        "a renamed vertex of a vertex": lambda row: row["renames"][0].update(vertex="totals"),
        "a renamed table of a vertex": lambda row: row["renames"][1].update(vertex="totals"),
        "a vertex that was called as no vertex": lambda row: row["renames"][0].update(was="Older"),
        "a vertex that is called as a table": lambda row: row["renames"][0].update(now="gold/newer"),
        "a table that was called as a vertex": lambda row: row["renames"][1].update(was="older"),
        "a table that is called as no table": lambda row: row["renames"][1].update(now="gold/newer/x"),
        "too many compacted files": lambda row: _compact(row, _COMPACTED_MOST + 1),
        "a file compacted into itself": lambda row: _compaction(row)["of"].append(_compaction(row)["into"]["path"]),
        "a compacted file of others": lambda row: _compaction(row)["of"].append("silver/rows/part-0.parquet"),
        "a compacted file of another table": lambda row: _compaction(row)["of"].append(staged("a/b", "silver", 1)),
        "a compaction in an upsert table": _compact_upserts,
        "content of an output's file": lambda row: row["tables"][1]["files"][0].update(bytes=3, inline="QUJD"),
        "content of a file that was added": lambda row: row["tables"][0]["adds"][0].update(bytes=3, inline="QUJD"),
        "content of a staged file": lambda row: _subtask(row)["staged"][0]["file"].update(bytes=3, inline="QUJD"),
        "content of a file of a range": lambda row: _range(row)["file"].update(bytes=3, inline="QUJD"),
        "content that is no base64": lambda row: _subtask(row)["state"][1]["file"].update(inline="QU!JD"),
        "key groups that end before they begin": lambda row: _subtask(row)["state"][0].update(
            first_key_group=3, last_key_group=2
        ),
        "a range of another table": lambda row: _subtask(row)["ranges"][0].update(table="gold/other"),
        "a range of no table": lambda row: _subtask(row)["ranges"][1].update(table="gold"),
        "a staged file of another table": lambda row: _subtask(row)["staged"][0].update(table="gold/other"),
        "a staged file of no table": lambda row: _false_table(row["vertices"][1]["subtasks"][0]["staged"][0]),
        "a table with files of another one": lambda row: row["tables"][1].update(table="gold/other"),
        "a table of no name": lambda row: row["tables"].append(_empty_table(row, "gold")),
        "a table of another job": lambda row: row["tables"].append(_empty_table(row, "_tidemark/large/state/totals")),
        "state in a table's folder": lambda row: _subtask(row)["state"][0]["file"].update(
            path=staged("gold/totals", "totals", 9)
        ),
        "state in a channel's folder": lambda row: _subtask(row)["state"][0]["file"].update(
            path=staged(f"{OWN}/channels/totals", "totals", 9)
        ),
        "files in manifests": lambda row: row.update(manifests=[_manifest()]),
        "files that only snapshots name": lambda row: row["tables"][1].update(of_snapshots=True),
        "manifests in which it was held": lambda row: row.update(held_in=["a"]),
    }


def _true() -> dict[str, Change]:
    """Return changes that leave the entry true. Each is close to a change that makes it false."""
    return {
        "no splits": lambda row: row["vertices"][0].update(splits=[]),
        "no measurements": lambda row: _measured(row).update(task_ms=[], rows_in=[]),
        "measurements of a vertex that left": lambda row: row["statistics"]["vertices"][1].update(vertex="left"),
        "as many compacted files as may be": lambda row: _compact(row, _COMPACTED_MOST),
        "key groups that are one": lambda row: _subtask(row)["state"][0].update(first_key_group=3, last_key_group=3),
        "a job of one key group": _in_one_key_group,
        "a range of another table without files": lambda row: _subtask(row)["ranges"][1].update(table="gold/other"),
        "a state table's range": lambda row: _subtask(row)["ranges"][1].update(table=f"{OWN}/state/totals"),
        "a table without files": lambda row: row["tables"].append(_empty_table(row, "gold/other")),
        "a state file without content": lambda row: _subtask(row)["state"][1]["file"].update(inline=""),
        "no name of what an input reads": lambda row: row["vertices"][1].update(outputs_read=None),
        "no meanings": lambda row: row["vertices"][2].update(meanings=None),
        "no counts": lambda row: row["statistics"].update(counts=None),
        "no state of a coordinator": lambda row: row["vertices"][0].update(coordinator=None),
    }


def _subtask(row: Fields) -> Fields:
    found: Fields = row["vertices"][2]["subtasks"][1]
    return found


def _range(row: Fields) -> Fields:
    found: Fields = _subtask(row)["ranges"][0]["files"][0]
    return found


def _measured(row: Fields) -> Fields:
    found: Fields = row["statistics"]["vertices"][1]["subtasks"]
    return found


def _compaction(row: Fields) -> Fields:
    found: Fields = row["tables"][0]["compactions"][0]
    return found


def _compact(row: Fields, files: int) -> None:
    _compaction(row)["of"] = [staged("silver/rows", "silver", 100 + number) for number in range(files)]


def _in_one_key_group(row: Fields) -> None:
    row["max_parallelism"] = 1
    for subtask in row["vertices"][2]["subtasks"]:
        for keyed in (*subtask["state"], *subtask["ranges"][0]["files"]):
            keyed.update(first_key_group=0, last_key_group=0)


def _compact_upserts(row: Fields) -> None:
    into = handle(staged("gold/totals", "totals", 9))
    row["tables"][1]["compactions"] = [{"into": into, "of": [staged("gold/totals", "totals", 60)]}]


def _false_table(entry: Fields) -> None:
    """Let a file be staged for a table of another job, in its folder."""
    table = "_tidemark/large/state/totals"
    entry.update(table=table, file=handle(staged(table, "silver", 1)))


def _empty_table(row: Fields, name: str) -> Fields:
    return {**row["tables"][1], "table": name, "files": []}


def _manifest() -> Fields:
    return {"generation": 3, "digest": f"{1:064x}", "handles": 4, "left_out": "a"}
