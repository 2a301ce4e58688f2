"""Checks single fields of an entry that was read. Each check raises InvalidFieldError, which names the field."""

from collections.abc import Callable, Collection, Iterable
from typing import Final, TypeVar

from checkpointing.identifiers import InvalidNameError, has_control_characters
from checkpointing.metadata.inline_state import InvalidInlineStateError

NUMBER_MAX: Final = 2**53 - 1
"""The largest number that every reader of JSON takes exactly. Ids, generations, rows and bytes stay below it."""

TIME_MS_MAX: Final = 253_402_300_799_999
"""The last millisecond of the year 9999."""

TEXT_MAX: Final = 1_024
"""The most characters of a nonce, or of a channel's name in the statistics."""

MESSAGE_MAX: Final = 4_000
"""The most characters of the message of a failure."""

_T = TypeVar("_T")


class InvalidFieldError(ValueError):
    """A field whose value Tidemark cannot have written. The message names the field, the value and the rule."""

    def __init__(self, field: str, why: str) -> None:
        self.field = field
        self.why = why
        super().__init__(f"{field} {why}")

    def within(self, outer: str) -> "InvalidFieldError":
        """Return the same error for a field that lies inside another one."""
        return InvalidFieldError(f"{outer}.{self.field}" if self.field else outer, self.why)


def each_valid(name: str, items: Iterable[_T], judge: Callable[[_T], None]) -> None:
    """Judge each item of a field. An error names the item by its number."""
    for number, item in enumerate(items):
        valid_inside(f"{name}[{number}]", item, judge)


def valid_inside(name: str, item: _T, judge: Callable[[_T], None]) -> None:
    """Judge what lies inside a field. An error names the field too."""
    try:
        judge(item)
    except InvalidFieldError as error:
        raise error.within(name) from error
    except InvalidInlineStateError as error:
        raise InvalidFieldError(name, str(error)) from error


def valid_name(field: str, validator: Callable[[str], str], text: str) -> None:
    """Refuse a text that the validator does not accept as a name."""
    try:
        validator(text)
    except InvalidNameError as error:
        raise InvalidFieldError(field, f"is no name ({error})") from error


def all_differ(field: str, names: Collection[str]) -> None:
    """Refuse a field that names one thing twice."""
    if len(set(names)) < len(names):
        raise InvalidFieldError(field, "names one thing twice")


def valid_text(field: str, text: str) -> None:
    """Refuse a text that is too long, or that holds control characters."""
    if len(text) > TEXT_MAX or has_control_characters(text):
        raise InvalidFieldError(field, f"{text[:200]!r} is too long, or holds control characters")


def valid_message(field: str, text: str) -> None:
    """Refuse a message that is too long, or that holds control characters other than the ends of its lines."""
    if len(text) > MESSAGE_MAX or has_control_characters(text.replace("\n", "")):
        raise InvalidFieldError(field, f"{text[:200]!r} is too long, or holds control characters")


def valid_numbers(of: object, *fields: str) -> None:
    """Refuse an object of which one of these fields is no number of ours. None counts as 0."""
    for field in fields:
        valid_number(field, getattr(of, field) or 0)


def valid_number(field: str, number: int) -> None:
    """Refuse a number that is not between 0 and NUMBER_MAX."""
    if not 0 <= number <= NUMBER_MAX:
        raise InvalidFieldError(field, f"{number} is not between 0 and {NUMBER_MAX}")


def valid_times(of: object, *fields: str) -> None:
    """Refuse an object of which one of these fields is no time."""
    for field in fields:
        if not 0 <= getattr(of, field) <= TIME_MS_MAX:
            raise InvalidFieldError(field, f"{getattr(of, field)} is no time in milliseconds since the epoch")
