"""Falsifies the text of an entry, so that Tidemark cannot have written it. The codec must refuse each such text.

A lie keeps the text well-formed JSON. It changes one thing that a reader would otherwise believe: the kind on the
envelope, a name that occurs twice, a number out of range, a path that leaves the job's folders.
"""

from collections.abc import Callable, Iterator
from random import Random
from typing import Any, Final

from spec.older_formats import PRESENT, Fields

Lie = Callable[[Fields, Random], bool]
"""Falsifies an envelope. Returns False if this entry cannot tell the lie; it is unchanged then."""

_KINDS: Final = ("claim", "release", "checkpoint", "savepoint", "rollback", "reset")
_NAMED_ONCE: Final = ("vertices", "tables", "columns", "hooks")
_MUST_BE_THERE: Final = (
    *("generation", "nonce", "at_ms", "holder", "first_id", "last_id", "next_id"),
    *("job", "checkpoint", "parent", "max_parallelism", "vertices", "tables", "statistics"),
)
_NUMBERS: Final = ("generation", "checkpoint", "parent", "first_id", "last_id", "next_id", "at_ms")
_TOO_LARGE: Final = 2**53
_NAMES: Final = ("vertex", "table", "upstream", "downstream", "hook")
"""Fields that hold a name, wherever they are."""
_MAY_BE_NEGATIVE: Final = ("crc32", "alignment_ms", "busy_ms", "start_delay_ms", "bytes_processed", "async_ms")
"""Durations, since clocks are set back, and the checksum of a file that nobody has read."""
DEEP: Final = 0.7
"""The probability that a lie about a name or a number is told anywhere in the entry, and not in its first fields."""


def another_kind_outside(envelope: Fields, random: Random) -> bool:
    """Call the entry another kind on its envelope."""
    envelope["kind"] = random.choice([kind for kind in _KINDS if kind != envelope["kind"]])
    return True


def a_kind_or_format_of_nobody(envelope: Fields, random: Random) -> bool:
    """Say a kind or a format that no version has written yet."""
    field, value = random.choice([("kind", "barrier"), ("format", PRESENT + 1), ("format", 0), ("format", -1)])
    envelope[field] = value
    return True


def a_name_twice(envelope: Fields, random: Random) -> bool:
    """Let a list name one thing twice."""
    row = envelope["row"]
    lists = [row[name] for name in _NAMED_ONCE if row.get(name)]
    lists += [vertex["splits"] for vertex in row.get("vertices", ()) if vertex["splits"]]
    lists += [table["columns"] for table in row.get("columns", ()) if table["columns"]]
    if not lists:
        return False
    chosen = random.choice(lists)
    chosen.insert(random.randint(0, len(chosen)), random.choice(chosen))
    return True


def a_field_less(envelope: Fields, random: Random) -> bool:
    """Leave out a field that every format has."""
    del envelope["row"][random.choice([name for name in _MUST_BE_THERE if name in envelope["row"]])]
    return True


def a_field_more(envelope: Fields, _: Random) -> bool:
    """Add a field that no format has."""
    envelope["row"]["colour"] = "blue"
    return True


def a_number_out_of_range(envelope: Fields, random: Random) -> bool:
    """Write a number that no counter of Tidemark reaches, somewhere in the entry."""
    row = envelope["row"]
    owner, field = random.choice([(row, name) for name in _NUMBERS if name in row])
    if random.random() < DEEP:
        places = _fields(row)
        owner, field = random.choice([(each, name) for each, name in places if _counts(each, name)])
    owner[field] = _TOO_LARGE if field in _MAY_BE_NEGATIVE else random.choice([-1, _TOO_LARGE])
    return True


def an_end_before_its_beginning(envelope: Fields, _: Random) -> bool:
    """Let a checkpoint be its own parent, or a block of ids end before it begins."""
    row = envelope["row"]
    if "parent" in row:
        row["parent"] = row["checkpoint"]
    elif "last_id" in row:
        row["last_id"] = row["first_id"] - 1
    return "parent" in row or "last_id" in row


def a_path_that_leads_out(envelope: Fields, random: Random) -> bool:
    """Let a file lie outside the job's folders."""
    files = list(_objects(envelope["row"], "path"))
    if not files:
        return False
    file = random.choice(files)
    file["path"] = random.choice([f"../{file['path']}", f"/{file['path']}", file["path"].replace("_data", "..")])
    return True


def a_file_of_impossible_size(envelope: Fields, random: Random) -> bool:
    """Write a size, a checksum or statistics that no file has."""
    files = list(_objects(envelope["row"], "crc32"))
    if not files:
        return False
    random.choice(files).update([random.choice([("bytes", -1), ("rows", -1), ("crc32", 2**32), ("stats", "[]")])])
    return True


def key_groups_of_nobody(envelope: Fields, random: Random) -> bool:
    """Let a file belong to key groups that the job does not have."""
    files = list(_objects(envelope["row"], "first_key_group"))
    if not files:
        return False
    file = random.choice(files)
    most = envelope["row"]["max_parallelism"]
    file.update([random.choice([("first_key_group", file["last_key_group"] + 1), ("last_key_group", most)])])
    return True


def a_name_that_is_none(envelope: Fields, random: Random) -> bool:
    """Give the job, a vertex or a table a name that nobody can declare, or the entry a nonce that no screen shows."""
    row = envelope["row"]
    owner, field = random.choice([(row, "nonce"), *([(row, "job")] if "job" in row else [])])
    if random.random() < DEEP:
        named = [place for place in _fields(row) if place[1] in _NAMES and place[0][place[1]] is not None]
        owner, field = random.choice(named) if named else (owner, field)
    owner[field] = "..\n"
    return True


LIES: Final[tuple[Lie, ...]] = (
    another_kind_outside,
    another_kind_outside,  # there are as many kinds as lists of names
    a_kind_or_format_of_nobody,
    a_name_twice,
    a_name_twice,
    a_field_less,
    a_field_more,
    a_number_out_of_range,
    an_end_before_its_beginning,
    a_path_that_leads_out,
    a_file_of_impossible_size,
    key_groups_of_nobody,
    a_name_that_is_none,
)


def falsify(envelope: Fields, random: Random) -> str:
    """Falsify an envelope. Return the name of the lie."""
    told = next(lie for lie in random.sample(LIES, len(LIES)) if lie(envelope, random))
    return told.__name__.replace("_", " ")


def _fields(found: Any) -> list[tuple[Fields, str]]:  # noqa: ANN401 - any JSON
    """Return each field of each object, however deep it lies."""
    inner = found.values() if isinstance(found, dict) else found if isinstance(found, list) else ()
    own = [(found, name) for name in found] if isinstance(found, dict) else []
    return own + [place for each in inner for place in _fields(each)]


def _counts(owner: Fields, field: str) -> bool:
    """Return whether the field is a number that counts. The format in the entry counts nothing: the envelope's does."""
    return type(owner[field]) is int and field != "format"


def _objects(found: Any, field: str) -> Iterator[Fields]:  # noqa: ANN401 - any JSON
    """Yield each object that has this field, however deep it lies."""
    if isinstance(found, list):
        for each in found:
            yield from _objects(each, field)
    elif isinstance(found, dict):
        if field in found:
            yield found
        for each in found.values():
            yield from _objects(each, field)
