"""What a command says when it can't go on: one sentence that names the thing and the way out, and an exit code."""

from enum import IntEnum


class ExitCode(IntEnum):
    """What the shell gets."""

    DONE = 0
    """The tick ended in order, caught up or at a limit; or the report was shown."""
    FAILED = 1
    """The tick failed, or what was asked for could not be read."""
    USAGE = 2
    """A wrong command, argument or setting: nothing was started."""
    HELD = 3
    """Another tick holds the job: nothing was changed."""


class CommandError(Exception):
    """The end of a command: `sentence` is all that a user sees of it, unless he asks with --debug."""

    def __init__(self, sentence: str, code: ExitCode = ExitCode.FAILED) -> None:
        self.sentence = sentence
        self.code = code
        super().__init__(sentence)


def sentence_of(error: BaseException) -> str:
    """Return an exception as one sentence: its message if it is ours, else its kind and first line, and --debug."""
    if isinstance(error, CommandError):
        return error.sentence
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if _is_ours(error) and lines:
        return " ".join(lines)
    first = f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
    return f"{first}; add --debug for the whole story"


def _is_ours(error: BaseException) -> bool:
    """Our own exceptions are written for users; a library's may not be."""
    return type(error).__module__.partition(".")[0] in ("jobs", "checkpointing")
