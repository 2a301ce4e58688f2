"""Turns errors of a user's code into messages: a sentence with file and line, and below it the traceback.

A user's function can fail in this process or in a Python worker, whose traceback Spark passes on as text. The message
is the same in both cases. Its first line is the sentence, and the other lines are the traceback.
"""

import re
import sysconfig
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import checkpointing
import jobs
from jobs.credentials import without_credentials

TRACEBACK_CHARS_MAX: Final = 8_000
"""The limit for a traceback. A longer one loses its beginning, because the trace of a tick stores every message."""

_WORKERS: Final = "Traceback (most recent call last)"
_FRAME: Final = re.compile(r'^ +File "(?P<file>[^"]+)", line (?P<line>\d+)(?:, in (?P<function>.+))?$')
_RAISED: Final = re.compile(r"^(?P<kind>[A-Za-z_][\w.]*)(?:: (?P<message>.*))?$")
_ROOT: Final = Path(__file__).resolve().parent
_OURS: Final = tuple(f"{_ROOT.parent / package}/" for package in ("jobs", "checkpointing", "orchestration"))
_EXAMPLES: Final = (f"{_ROOT / 'pipelines' / 'flights.py'}", f"{_ROOT / 'pipelines' / 'offsets_100_105.py'}")
_STDLIB: Final = (f"{sysconfig.get_path('stdlib')}/", "<frozen ")
OUR_MODULES: Final = (f"{checkpointing.__name__}.", f"{jobs.__name__}.")
"""The beginnings of the names of Tidemark's modules. In a wheel, all packages are in one package."""
_INSTALLED: Final = ("/site-packages/", "/dist-packages/", "/pyspark.zip/")


@dataclass(frozen=True, slots=True)
class Frame:
    """One call in a traceback: where the code is, and how the traceback shows it."""

    file: str
    line: int
    function: str
    shown: tuple[str, ...]

    def __str__(self) -> str:
        """Return the place as a sentence names it."""
        return (
            f"in {self.function}, {self.file}, line {self.line}" if self.function else f"{self.file}, line {self.line}"
        )

    @property
    def is_own(self) -> bool:
        """Whether the file is the user's own, and does not belong to Python, to a package or to Tidemark."""
        if self.file in _EXAMPLES:
            return True
        return not self.file.startswith((*_OURS, *_STDLIB)) and not any(part in self.file for part in _INSTALLED)


def message_of(error: BaseException, way_out: str = "") -> str:
    """Return an error as a message: kind, text, file and line in the first line, the traceback below it.

    The way out is added if the user's own code raised the error. Tidemark's own errors name their way out themselves.
    """
    text = str(error)
    if _WORKERS not in text:
        text = "".join(traceback.format_exception(error))
    text = text[text.find(_WORKERS) :] if _WORKERS in text else text
    kind, said = _last_words(text) or (type(error).__name__, _first_line(error))
    place = None if kind.startswith(OUR_MODULES) else _place(text)
    sentence = said if said.startswith("[") else ": ".join(filter(None, (kind.rpartition(".")[2], said)))
    if place is not None:
        sentence = f"{sentence} ({place}){way_out}"
    return without_credentials(f"{sentence}\n{text.strip()[-TRACEBACK_CHARS_MAX:]}")


def kind_of(error: BaseException) -> str:
    """Return the full name of an error's type. For an error in a Python worker, its traceback has the name."""
    words = _last_words(str(error)) if _WORKERS in str(error) else None
    return f"{type(error).__module__}.{type(error).__qualname__}" if words is None else words[0]


def sentence_of(message: str) -> str:
    """Return the first line of a message."""
    return message.partition("\n")[0]


def traceback_of(message: str) -> str:
    """Return the traceback below a message's sentence, or an empty text if there is none."""
    return message.partition("\n")[2]


def own_lines(text: str) -> tuple[str, ...]:
    """Return the lines of a traceback that show the user's own code."""
    return tuple(line for frame in _frames(text) if frame.is_own for line in frame.shown)


def noted(message: str, note: str) -> str:
    """Return the message with a note at the end of its sentence."""
    sentence, newline, below = message.partition("\n")
    return f"{sentence} {note}{newline}{below}"


def _frames(text: str) -> Iterator[Frame]:
    lines = text.splitlines()
    for number, line in enumerate(lines):
        found = _FRAME.match(line)
        if found is not None:
            shown = [line, *_code_below(lines[number + 1 :])]
            yield Frame(found["file"], int(found["line"]), found["function"] or "", tuple(shown))


def _code_below(lines: list[str]) -> Iterator[str]:
    for line in lines:
        if not line.startswith("    "):
            return
        yield line


def _place(text: str) -> Frame | None:
    """Return the innermost line of the user's own code."""
    return next((frame for frame in reversed(list(_frames(text))) if frame.is_own), None)


def _first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0]


def _last_words(text: str) -> tuple[str, str] | None:
    """Return the type of the last error in a traceback, with its module, and the first line of its message."""
    found = None
    below_frame = False
    for line in text.splitlines():
        below_frame = below_frame or _FRAME.match(line) is not None
        raised = _RAISED.match(line) if below_frame else None
        if raised is not None:
            found = raised["kind"], raised["message"] or ""
            below_frame = False
    return found
