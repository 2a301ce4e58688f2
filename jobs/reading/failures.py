"""Errors of reading. Each message names what the caller asked for, what exists, and what to do."""

from jobs.suggestions import NotThereError, WrongInputError


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


class NoSuchOperatorError(ReadingError, NotThereError):
    """The cut has no operator with state of that name."""
