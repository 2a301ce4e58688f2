"""Formats numbers for people: rows, bytes, durations, times."""

from datetime import UTC, datetime
from typing import Final

_STEP: Final = 1024
_MINUTE_S: Final = 60
_HOUR_S: Final = 3600
_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB")


def count(number: int) -> str:
    """Return a number with commas: `336,776`."""
    return f"{number:,}"


def size(number_bytes: int) -> str:
    """Return bytes in the largest unit that leaves at least 1: `4.2 MiB`."""
    amount, unit = float(number_bytes), 0
    while amount >= _STEP and unit < len(_UNITS) - 1:
        amount, unit = amount / _STEP, unit + 1
    return f"{number_bytes} B" if unit == 0 else f"{amount:.1f} {_UNITS[unit]}"


def seconds(milliseconds: int) -> str:
    """Return a duration in seconds, `0.45 s`; from a minute on `2 min 05 s`, from an hour on `1 h 02 min`."""
    whole = milliseconds // 1000
    if whole >= _HOUR_S:
        return f"{whole // _HOUR_S} h {whole % _HOUR_S // _MINUTE_S:02} min"
    if whole >= _MINUTE_S:
        return f"{whole // _MINUTE_S} min {whole % _MINUTE_S:02} s"
    return f"{milliseconds / 1000:.2f} s"


def moment(at_ms: int) -> str:
    """Return a moment given in ms since the epoch, in UTC: `2026-03-01 12:00:05`."""
    return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")


def counted(number: int, estimated: int) -> str:
    """Return a number of rows, some of which may be an estimate: `12,000`, or `about 12,000`."""
    return f"about {count(number)}" if estimated else count(number)


def plural(number: int, word: str, more: str | None = None) -> str:
    """Return `1 file` or `2 files`; `more` is an irregular plural."""
    return f"{count(number)} {word if number == 1 else more or f'{word}s'}"
