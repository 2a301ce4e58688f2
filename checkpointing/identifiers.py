"""Names and numbers of the protocol, each with its own type.

A name from outside (a pipeline's id, a folder's name) is validated here, once, before it becomes a path, a column or a
key.
"""

import re
from dataclasses import dataclass
from typing import NamedTuple, NewType

CheckpointId = NewType("CheckpointId", int)
"""The coordinator's number of a checkpoint. It rises, and no number is used twice.

Epoch n is the rows between barriers n-1 and n.
"""

Generation = NewType("Generation", int)
"""The number of one claim on the job. Fencing uses it."""

JobName = NewType("JobName", str)
VertexId = NewType("VertexId", str)
TableName = NewType("TableName", str)
"""`schema/table`, which is also the table's folder in the warehouse."""
SplitId = NewType("SplitId", str)
HookName = NewType("HookName", str)

NO_CHECKPOINT = CheckpointId(0)
"""The cut before the first checkpoint: every source is at its start, and every table is empty."""

COLUMN_NAME_MAX = 1_024
"""The most characters of a column's name."""

_WORD = re.compile(r"[a-z][a-z0-9_]{0,62}")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]")
_SPLIT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._=-]{0,127}")


class InvalidNameError(ValueError):
    """A name from outside that may not become a path. The message says which rule it breaks."""


def job_name(text: str) -> JobName:
    """Return `text` as a job's name. Raise InvalidNameError if it may not be a folder's name."""
    return JobName(_matched(_WORD, "job name", text))


def vertex_id(text: str) -> VertexId:
    """Return `text` as a vertex's id. Raise InvalidNameError, naming the rule that it breaks."""
    return VertexId(_matched(_WORD, "id", text))


def output_name(text: str) -> str:
    """Return `text` as the name of a vertex's output. Raise InvalidNameError, naming the rule that it breaks."""
    return _matched(_WORD, "output", text)


def hook_name(text: str) -> HookName:
    """Return `text` as a master hook's name. Raise InvalidNameError, naming the rule that it breaks."""
    return HookName(_matched(_WORD, "hook name", text))


def split_id(text: str) -> SplitId:
    """Return `text` as a source split's id. Raise InvalidNameError, naming the rule that it breaks."""
    return SplitId(_matched(_SPLIT, "split", text))


def table_name(text: str) -> TableName:
    """Return `schema/table` as a table's name. Raise InvalidNameError, naming the rule that it breaks."""
    parts = text.split("/")
    if len(parts) != 2:  # noqa: PLR2004 - a schema and a table
        raise InvalidNameError(f"table {text!r}: write it as 'schema/table'")
    for part in parts:
        _matched(_WORD, f"part of table {text!r}", part)
    return TableName(text)


def column_name(text: str) -> str:
    """Return `text` if a column may have that name, or raise InvalidNameError. A column's name becomes no path."""
    if not text or len(text) > COLUMN_NAME_MAX:
        raise InvalidNameError(f"column {text[:200]!r}: a name has 1 to {COLUMN_NAME_MAX} characters")
    return text


def has_control_characters(text: str) -> bool:
    """Return whether a text has characters that no name may have: control characters, or half a surrogate pair."""
    return _CONTROL.search(text) is not None


def _matched(pattern: re.Pattern[str], what: str, text: str) -> str:
    if not pattern.fullmatch(text):
        raise InvalidNameError(f"{what} {text!r} does not match {pattern.pattern}")
    return text


class SubtaskId(NamedTuple):
    """One subtask of a vertex: one range of key groups, or one source split.

    It is a tuple, because each acknowledgement looks it up several times: the interpreter computes a tuple's hash fast
    (P10).
    """

    vertex: VertexId
    index: int  # type: ignore[assignment]  # nobody looks for an item's place in an id

    def __str__(self) -> str:
        """Return `vertex/index`, the form used in messages and metadata."""
        return f"{self.vertex}/{self.index}"


@dataclass(frozen=True, slots=True, order=True)
class EdgeId:
    """An edge of the job graph. `input` is the number of the downstream vertex's input."""

    upstream: VertexId
    downstream: VertexId
    input: int = 0

    def __str__(self) -> str:
        """Return `upstream->downstream:input`."""
        return f"{self.upstream}->{self.downstream}:{self.input}"


@dataclass(frozen=True, slots=True, order=True)
class ChannelId:
    """The way from one upstream subtask into one vertex: (edge, index of the upstream subtask)."""

    edge: EdgeId
    subtask: int

    def __str__(self) -> str:
        """Return `upstream->downstream:input[subtask]`."""
        return f"{self.edge}[{self.subtask}]"
