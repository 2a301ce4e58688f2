"""Turns PostgreSQL's texts of values into Arrow arrays with the types of their columns."""

from collections.abc import Sequence
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from jobs.sources.postgres.columns import arrow_type, element_of

_SHOWN_MAX: Final = 60


class UnfitValueError(Exception):
    """A value that the Spark type cannot hold, such as `infinity`."""

    def __init__(self, text: str) -> None:
        super().__init__(text[:_SHOWN_MAX])
        self.text = text[:_SHOWN_MAX]


def converted(texts: pa.Array, name: str, *, nulls_for_unfit: bool) -> pa.Array:
    """Return the values of a column of this Spark type. The texts are strings, or bytes as in the server's messages.

    Raises UnfitValueError for a value that does not fit, unless such a value becomes null.
    """
    try:
        return _converted(texts, name)
    except (pa.ArrowException, ValueError, UnicodeDecodeError):
        return pa.concat_arrays([_single(text, name, nulls_for_unfit=nulls_for_unfit) for text in texts.to_pylist()])


def _single(text: bytes | str | None, name: str, *, nulls_for_unfit: bool) -> pa.Array:
    try:
        return _converted(pa.array([text], pa.large_binary()), name)
    except (pa.ArrowException, ValueError, UnicodeDecodeError):
        if nulls_for_unfit:
            return pa.nulls(1, arrow_type(name))
        shown = text.decode(errors="replace") if isinstance(text, bytes) else str(text)
        raise UnfitValueError(shown) from None


def _converted(texts: pa.Array, name: str) -> pa.Array:
    element = element_of(name)
    if element is not None:
        return _arrays(texts.to_pylist(), name, element)
    if name == "binary":
        return pa.array([None if text is None else _bytes_of(text) for text in texts.to_pylist()], pa.binary())
    written = texts.cast(pa.string())
    match name:
        case "string":
            return written
        case "boolean":
            if pc.any(pc.invert(pc.is_in(written, pa.array(["t", "f", None])))).as_py():
                raise ValueError(name)
            return pc.equal(written, "t")
        case _:
            return written.cast(arrow_type(name))


def _bytes_of(text: bytes | str) -> bytes:
    shown = text.decode("ascii") if isinstance(text, bytes) else text
    if not shown.startswith("\\x"):
        raise ValueError(shown)
    return bytes.fromhex(shown[2:])


def _arrays(texts: Sequence[bytes | str | None], name: str, element: str) -> pa.Array:
    lists = [None if text is None else _elements(text.decode() if isinstance(text, bytes) else text) for text in texts]
    offsets: list[int | None] = []
    flat: list[str | None] = []
    for values in lists:
        offsets.append(None if values is None else len(flat))
        flat.extend(values or ())
    ends = pa.array([*offsets, len(flat)], pa.int32())
    return pa.ListArray.from_arrays(ends, _converted(pa.array(flat, pa.string()), element)).cast(arrow_type(name))


def _elements(text: str) -> list[str | None]:
    """Return the elements of an array with one dimension. Raise ValueError for several dimensions (`{{1,2},{3,4}}`)."""
    if text == "{}":
        return []
    if not (text.startswith("{") and text.endswith("}")) or text.startswith("{{"):
        raise ValueError(text)  # `[0:1]={1,2}` has explicit bounds, and Spark's arrays cannot have any
    found: list[str | None] = []
    at, end = 1, len(text) - 1
    while at < end:
        value, at = _quoted(text, at + 1) if text[at] == '"' else _plain(text, at)
        found.append(value)
        at += 1  # after the comma
    return found


def _plain(text: str, at: int) -> tuple[str | None, int]:
    stop = text.find(",", at)
    stop = len(text) - 1 if stop < 0 else stop
    value = text[at:stop]
    return None if value == "NULL" else value, stop


def _quoted(text: str, at: int) -> tuple[str, int]:
    value: list[str] = []
    while text[at] != '"':
        at += text[at] == "\\"
        value.append(text[at])
        at += 1
    return "".join(value), at + 1
