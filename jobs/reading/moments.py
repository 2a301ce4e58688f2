"""Parses the word by which a user names a cut: a checkpoint id, `latest`, or a time."""

from dataclasses import dataclass
from datetime import UTC, datetime

from checkpointing.identifiers import CheckpointId
from jobs.suggestions import NotThereError, WrongInputError

# ------------------------------------------------------------------
# Errors of reading. Each message names what the caller asked for, what exists, and what to do.


class ReadingError(Exception):
    """A read failed; nothing was changed."""


class InvalidMomentError(ReadingError, WrongInputError):
    """A text is neither a checkpoint id nor `latest` nor a time."""

    def __init__(self, text: str) -> None:
        super().__init__(
            f"{text!r} names no cut: write a checkpoint id like 7, 'latest', or a time like 2026-11-21T08:00, "
            "2026-11-21T08:00Z or 2026-11-21"
        )


class NoSuchCutError(ReadingError, NotThereError):
    """No cut is recorded under that number, or none was published by that time."""


class NotReservedError(ReadingError):
    """A cut could not be reserved; the message says why, and how to read without a reservation."""


class CutGoneError(NoSuchCutError):
    """A cut is no longer retained, and its files have been deleted."""


class CutUnreadableError(ReadingError):
    """The log or files of a retained cut are missing or damaged."""


class NoSuchTableError(ReadingError, NotThereError):
    """The cut has no table of that name."""


class NoEventTimeError(ReadingError):
    """The cut does not record until when a table is complete. The message says what the pipeline lacks."""


class NoSuchOperatorError(ReadingError, NotThereError):
    """The cut has no operator with state of that name."""


LATEST = "latest"
PENDING = "pending"
"""The word for the cut that waits for approval, in commands that can show it."""


@dataclass(frozen=True, slots=True)
class Newest:
    """The newest published cut."""


@dataclass(frozen=True, slots=True)
class Numbered:
    """The cut of one checkpoint."""

    checkpoint: CheckpointId


@dataclass(frozen=True, slots=True)
class AsOf:
    """The newest cut whose publication was complete at that time; ms since the epoch."""

    at_ms: int


Moment = Newest | Numbered | AsOf


def is_moment(word: str) -> bool:
    """Return whether a word can only name a cut.

    No pipeline may begin with a digit or be called by one of these words.
    """
    return word in (LATEST, PENDING) or word[:1].isdigit()


def moment_of(text: str) -> Moment:
    """Parse `7`, `latest`, `2026-11-21T08:00` or a date; raise InvalidMomentError for anything else."""
    word = text.strip()
    if word == LATEST:
        return Newest()
    if word.isascii() and word.isdigit():
        return Numbered(CheckpointId(int(word)))
    return AsOf(at_ms_of(text))


def at_ms_of(moment: datetime | str) -> int:
    """Return a time in ms since the epoch. The text is in ISO 8601, and a date means its midnight.

    The time is local unless it names its zone. Raises InvalidMomentError for other text.
    """
    try:
        at = datetime.fromisoformat(moment.strip()) if isinstance(moment, str) else moment
        at_ms = round(at.timestamp() * 1000)
        shown(at_ms)  # or no message could name it
    except (OverflowError, OSError, ValueError) as error:
        raise InvalidMomentError(str(moment)) from error
    return at_ms


def time_of(at_ms: int) -> datetime:
    """Return a time in ms since the epoch as UTC."""
    return datetime.fromtimestamp(at_ms / 1000, UTC)


def shown(at_ms: int) -> str:
    """Return a time in a form that a user can read and type: local, to the millisecond, with its zone."""
    return time_of(at_ms).astimezone().isoformat(timespec="milliseconds")
