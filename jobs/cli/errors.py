"""Turns an error into an exit code and one sentence, which names what is wrong and what to do."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from enum import IntEnum
from typing import Final

from jobs import user_code
from jobs.disk_errors import accident_of
from jobs.suggestions import NotThereError, WrongInputError

_UNNAMED: Final = "PIPELINE"
"""Stands for the pipeline in commands that a source's messages quote. A source does not know how the user named it."""


class ExitCode(IntEnum):
    """The exit codes."""

    DONE = 0
    """The tick ended normally, caught up or at a limit; or the report was shown."""
    FAILED = 1
    """The tick failed, or something could not be read."""
    USAGE = 2
    """A wrong command, argument or setting: nothing was started."""
    HELD = 3
    """Another tick holds the job: nothing was changed."""
    NOT_THERE = 4
    """The pipeline, checkpoint, table, operator, source or job does not exist: nothing was changed."""


class CommandError(Exception):
    """Ends a command. The user sees `sentence`, and from the traceback `story` the lines that show the user's own code.

    With --debug the user sees the whole traceback.
    """

    def __init__(self, sentence: str, code: ExitCode = ExitCode.FAILED, *, story: str = "") -> None:
        self.sentence = sentence
        self.code = code
        self.story = story
        super().__init__(sentence)


def with_story(message: str, code: ExitCode = ExitCode.FAILED) -> CommandError:
    """Return the CommandError for a message of `jobs.user_code`: a sentence, and a traceback below it."""
    return CommandError(user_code.sentence_of(message), code, story=user_code.traceback_of(message))


def code_of(error: BaseException) -> ExitCode:
    """Return the exit code that a command ends with after an error."""
    if isinstance(error, CommandError):
        return error.code
    from jobs.warehouse.refusals import JobHeldError  # noqa: PLC0415 - imports pydantic, which `--help` must not

    kinds = ((JobHeldError, ExitCode.HELD), (WrongInputError, ExitCode.USAGE), (NotThereError, ExitCode.NOT_THERE))
    return next((code for kind, code in kinds if isinstance(error, kind)), ExitCode.FAILED)


def sentence_of(error: BaseException) -> str:
    """Return an exception as one sentence.

    For Tidemark's own exceptions that is the message. For others it is the type, the first line, the user's file and
    line if the user's code raised it, and a hint to --debug.
    """
    if isinstance(error, CommandError):
        return error.sentence
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if _is_ours(error) and lines:
        return " ".join(lines)
    said = user_code.sentence_of(user_code.message_of(error))
    accident = accident_of(error)
    if accident is not None:
        return f"{accident}. The system said: {said}"
    return f"{said}; add --debug for the traceback"


def with_pipeline(message: str, typed: str, job: str) -> str:
    """Return the message with commands that can be typed as they are, since they name the pipeline as the user did.

    Most commands find a pipeline only by its registered name or by `module:attribute`. A job knows neither of them.
    """
    names = f"(?:{_UNNAMED}|{re.escape(job)})"
    return re.sub(
        rf"\b(tidemark (?:checkpoints )?[a-z]+) {names}(?![\w:.-])", lambda found: f"{found[1]} {typed}", message
    )


@contextmanager
def naming_pipeline(typed: str, job: str) -> Iterator[None]:
    """Rewrite the commands in an error's message, so that they name the pipeline as the user typed it."""
    try:
        yield
    except Exception as error:
        said = sentence_of(error)
        named = with_pipeline(said, typed, job)
        if named == said:
            raise
        raise CommandError(named, code_of(error), story=story_of(error)) from error


@contextmanager
def needing_rest(what: str, job: str) -> Iterator[None]:
    """Run a block that needs a job at rest. If a tick holds the job, raise CommandError, with how to stop that tick."""
    from jobs.warehouse.refusals import JobHeldError  # noqa: PLC0415 - imports pydantic, which `--help` must not

    try:
        yield
    except JobHeldError as held:
        raise CommandError(
            f"{held.holder} holds {job} (generation {held.generation}), and {what} needs a job that no tick holds: "
            f"'tidemark stop {job} --suspend' ends its tick; nothing was changed",
            ExitCode.HELD,
        ) from held


def story_of(error: BaseException) -> str:
    """Return the traceback that an error carries in its message, from a worker or a pipeline."""
    return error.story if isinstance(error, CommandError) else ""


def own_code_of(error: BaseException) -> tuple[str, ...]:
    """Return the lines of an error's traceback that show the user's own code."""
    if _is_ours(error):
        return user_code.own_lines(story_of(error))
    return user_code.own_lines(user_code.traceback_of(user_code.message_of(error)))


def _is_ours(error: BaseException) -> bool:
    """Return whether Tidemark defines the exception. Its messages are written for users; a library's may not be."""
    return type(error).__module__.startswith(user_code.OUR_MODULES)
