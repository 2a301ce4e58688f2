"""Explains file system errors that a user can repair: a full disk, a read-only mount, missing rights.

Python raises them as OSError. delta-rs, Arrow and Spark use the same wording in errors of their own.
"""

import errno
import re
from typing import Final

DISK_FULL: Final = (
    "the disk is full, or a quota is used up: make room where the warehouse lies and in the folder for temporary files "
    "(TMPDIR), then run again"
)
SERVER_DISK_FULL: Final = "the disk of the target server is full: make room there, then run again"
"""The message of a sink if the disk of its target is full. DISK_FULL is about the disks of this machine."""
READ_ONLY: Final = (
    "the file system is read-only: mount it so that it can be written, or name another folder with --warehouse"
)
FORBIDDEN: Final = (
    "the system forbids this user to write there: give the user the right to, or name another folder with --warehouse"
)

_BY_NUMBER: Final = {
    errno.ENOSPC: DISK_FULL,
    errno.EDQUOT: DISK_FULL,
    errno.EFBIG: DISK_FULL,
    errno.EROFS: READ_ONLY,
    errno.EACCES: FORBIDDEN,
    errno.EPERM: FORBIDDEN,
}
_BY_WORDS: Final = (
    (re.compile(re.escape(SERVER_DISK_FULL)), SERVER_DISK_FULL),
    (re.compile(r"No space left on device|Disk quota exceeded|File too large|os error (?:28|122|27)\b"), DISK_FULL),
    (re.compile(r"Read-only file system|os error 30\b"), READ_ONLY),
    (re.compile(r"Permission denied|Operation not permitted|os error (?:13|1)\b"), FORBIDDEN),
)


def accident_of(error: BaseException) -> str | None:
    """Return the sentence that explains such an error, or None for any other error."""
    if isinstance(error, OSError) and error.errno in _BY_NUMBER:
        return _BY_NUMBER[error.errno]
    return accident_in(str(error))


def accident_in(text: str) -> str | None:
    """Return the sentence for the first such error in a text, or None."""
    return next((sentence for words, sentence in _BY_WORDS if words.search(text)), None)


def explained(message: str) -> str:
    """Return a message with the explanation of such an error in front, or unchanged if it has no such error."""
    sentence = accident_in(message)
    return message if sentence is None or sentence in message else f"{sentence}. The system said: {message}"
