"""What can't be read: each message names what was asked for, what there is, and what to do."""

from jobs.suggestions import NotThereError


class ReadingError(Exception):
    """Whatever keeps a reader from what he asked for; nothing was changed."""


class InvalidMomentError(ReadingError):
    """Text that is no checkpoint id, no `latest` and no time."""

    def __init__(self, text: str) -> None:
        super().__init__(
            f"{text!r} names no cut: write a checkpoint id like 7, 'latest', or a time like 2026-11-21T08:00, "
            "2026-11-21T08:00Z or 2026-11-21"
        )


class NoSuchCutError(ReadingError, NotThereError):
    """No cut is recorded under that number, or none was published by that time."""


class NotReservedError(ReadingError):
    """A cut that could not be kept for a reader: says why, and how to read without that."""


class CutGoneError(NoSuchCutError):
    """A cut that was there is no longer retained, and its files have been deleted."""


class CutUnreadableError(ReadingError):
    """A retained cut whose log or files are missing or damaged."""


class NoSuchTableError(ReadingError, NotThereError):
    """The cut has no table of that name."""


class NoSuchOperatorError(ReadingError, NotThereError):
    """The cut has no operator with state of that name."""
