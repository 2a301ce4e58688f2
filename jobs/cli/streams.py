"""Standard output and error that may be closed, full, or read by nobody: they never end a command in the middle.

Work that a command has done stays done. What can no longer be shown is dropped.
"""

import os
import sys
from typing import Final, TextIO

_STANDARD: Final = (0, 1, 2)


class LastingStream:
    """A text stream that drops what it cannot write; `error` is the first failure. Everything else is the stream's."""

    def __init__(self, stream: TextIO) -> None:
        """Write to this stream for as long as it can be written."""
        self._stream = stream
        self.error: OSError | None = None

    def write(self, text: str) -> int:
        """Write the text, or drop it."""
        if self.error is None:
            try:
                return self._stream.write(text)
            except OSError as error:
                self._lost(error)
        return len(text)

    def flush(self) -> None:
        """Hand on what is buffered, or drop it."""
        if self.error is None:
            try:
                self._stream.flush()
            except OSError as error:
                self._lost(error)

    def __getattr__(self, name: str) -> object:
        """Return what the stream itself has."""
        return getattr(self._stream, name)

    def _lost(self, error: OSError) -> None:
        """Let what is still buffered run into nothing, so that the last flush of the process succeeds."""
        self.error = error
        nothing = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nothing, self._stream.fileno())
        os.close(nothing)


def standard_streams() -> tuple[LastingStream, LastingStream]:
    """Return stdout and stderr as lasting streams, and make them the process's.

    A closed descriptor is opened on nothing first: a file that a tick opens later must not take its number.
    """
    for descriptor in _STANDARD:
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free number, which is this one
    out, err = (
        LastingStream(stream or os.fdopen(number, "w", closefd=False))
        for number, stream in ((1, sys.stdout), (2, sys.stderr))
    )
    sys.stdout, sys.stderr = out, err
    return out, err
