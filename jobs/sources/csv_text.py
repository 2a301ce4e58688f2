"""Reads the header of a CSV file as Spark does, and scans the file's text before Spark reads the file.

Spark's parser is univocity's, with `unescapedQuoteHandling=STOP_AT_DELIMITER`:

- A value is quoted if its first character is the quote. Inside of it, `escape` followed by the quote stands for a
  quote.
- If other characters follow the closing quote, the whole value is plain, quotes included, and ends at the separator.
- A quote inside of a plain value is a character like any other.
- A quoted value without a closing quote extends to the end of the file, across all lines.

Spark compares each header with the columns that the source gave to it (`enforceSchema=false`). So if Spark reads a
header differently from this module, Spark refuses the file and mixes no columns up.
"""

import codecs
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import chain
from typing import Final

Options = Mapping[str, str]

_ENCODINGS: Final = ("UTF-8", "ISO-8859-1", "US-ASCII", "UTF-16", "UTF-16LE", "UTF-16BE", "UTF-32")
"""The only encodings that Spark 4 accepts, by these names (`CharsetProvider`)."""


def option(options: Options, *names: str, default: str = "") -> str:
    """Return a reader's option under the first of its names. Spark ignores the case of these names."""
    said = {name.lower(): value for name, value in options.items()}
    return next((said[name.lower()] for name in names if name.lower() in said), default)


def is_on(options: Options, name: str) -> bool:
    """Return whether an option that is off by default is on."""
    return option(options, name, default="false").strip().lower() == "true"


def is_utf8(encoding: str) -> bool:
    """Return whether an encoding is UTF-8, by any of its names."""
    try:
        return codecs.lookup(encoding).name == "utf-8"
    except LookupError:
        return False


def why_unreadable(options: Options, *, is_json: bool) -> str | None:
    """Return why Spark cannot read text files in the options' encoding, with the way out, or None if it can."""
    name = option(options, "encoding", "charset", default="utf-8")
    if name.upper() not in _ENCODINGS:
        return f"Spark reads no encoding {name!r}: write one of {', '.join(_ENCODINGS)}, or convert the files to UTF-8"
    if not is_json or is_on(options, "multiLine") or name.upper() == "UTF-8":
        return None
    if name.upper() in {"UTF-16", "UTF-32"}:
        return f"Spark reads no JSON lines in {name}, whose byte order is in the file: convert the files to UTF-8"
    if not option(options, "lineSep"):
        return f'Spark asks for the line break of JSON lines in {name}: give options={{"lineSep": "\\n"}} too'
    return None


def reads_lines(options: Options) -> bool:
    """Return whether each line of a JSON file is a record in UTF-8."""
    return not is_on(options, "multiLine") and is_utf8(option(options, "encoding", "charset", default="utf-8"))


@dataclass(frozen=True, slots=True)
class Dialect:
    """How the values of a CSV file are separated and quoted.

    `quote`, `escape` and `comment` have one character, or none. `sep` may be longer.
    """

    sep: str
    quote: str
    escape: str
    comment: str
    encoding: str
    trims_left: bool
    trims_right: bool

    @classmethod
    def of(cls, options: Options) -> "Dialect":
        """Return the dialect that these options of Spark's reader select."""
        sep = option(options, "sep", "delimiter", default=",").replace("\\t", "\t")
        return cls(
            sep=sep or ",",
            quote=option(options, "quote", default='"')[:1].replace("\0", ""),
            escape=option(options, "escape", default="\\")[:1].replace("\0", ""),
            comment=option(options, "comment")[:1].replace("\0", ""),
            encoding=option(options, "encoding", "charset", default="utf-8"),
            trims_left=is_on(options, "ignoreLeadingWhiteSpace"),
            trims_right=is_on(options, "ignoreTrailingWhiteSpace"),
        )

    def plain(self, text: str) -> str:
        """Return an unquoted value as Spark reads it."""
        text = text.lstrip(" \t") if self.trims_left else text
        return text.rstrip(" \t") if self.trims_right else text

    def value(self) -> re.Pattern[str]:
        """Return the pattern of one value, and of what ends it: a separator, a line break, or the end of the text."""
        end = rf"(?P<end>{re.escape(self.sep)}|\r\n|\n|\r|\Z)"
        plain = rf"(?P<plain>(?:(?!{re.escape(self.sep)})[^\r\n])*)"
        if not self.quote:
            return re.compile(f"{plain}{end}")
        quote, escape = re.escape(self.quote), re.escape(self.escape or self.quote)
        inside = rf"(?:{escape}{quote}|{escape}{escape}|(?!{quote}).)*+"
        blank = r"[ \t]*" if self.trims_left else ""
        open_ = rf"{blank}{quote}(?P<open>{inside})\Z"
        closed = rf"{blank}{quote}(?P<quoted>{inside}){quote}[ \t]*(?={re.escape(self.sep)}|[\r\n]|\Z)"
        return re.compile(rf"{open_}|(?:{closed}|{plain}){end}", re.DOTALL)

    def unescaped(self, text: str) -> str:
        """Return a quoted value with its escapes resolved."""
        if not self.escape or self.escape == self.quote:
            return text.replace(self.quote * 2, self.quote)
        return re.sub(f"{re.escape(self.escape)}({re.escape(self.quote)}|{re.escape(self.escape)})", r"\1", text)


def header_of(text: str, dialect: Dialect) -> tuple[str, ...]:
    """Return the values of the first record that is neither blank nor a comment, or nothing for an empty text.

    Raises ValueError if the record's last value opens a quote and does not close it.
    """
    text = text.removeprefix("\ufeff")
    while text:
        line = re.split("\r\n|\n|\r", text, maxsplit=1)[0]
        if line.strip() and not (dialect.comment and line.startswith(dialect.comment)):
            break
        text = text[len(line) :].lstrip("\r\n")
    return tuple(_record(text, dialect)) if text else ()


def _record(text: str, dialect: Dialect) -> Iterator[str]:
    place, pattern = 0, dialect.value()
    while True:
        found = pattern.match(text, place)
        if found is None or found.groupdict().get("open") is not None:
            raise ValueError("a quote of the header is not closed")
        quoted = found.groupdict().get("quoted")
        yield dialect.plain(found["plain"]) if quoted is None else dialect.unescaped(quoted)
        place = found.end()
        if found["end"] != dialect.sep:
            return


@dataclass(frozen=True, slots=True)
class TextLook:
    """What a scan of a whole text file finds.

    `lines` is about the number of records. `break_` is the line break outside of quotes, or None if the file has
    several kinds. `broken_at` is the first line with bytes that are invalid in the file's encoding. `open_at` is the
    first line with a quote that is never closed.
    """

    lines: int
    has_quotes: bool = False
    breaks_inside: bool = False
    break_: str | None = "\n"
    broken_at: int | None = None
    open_at: int | None = None


def looked_through(read: Callable[[], Iterable[bytes]], dialect: Dialect) -> TextLook:
    """Return what a scan of a file's text finds. Each call of `read` yields the file's bytes from the start.

    Raises LookupError if Python does not know the encoding.
    """
    counted = _Counted(dialect)
    broken_at = None
    for text, broken in _decoded(read(), dialect.encoding):
        if broken is not None:
            broken_at = counted.newlines + broken + 1
        counted.count(text)
    counted.end()
    open_at, has_quotes, breaks_inside = None, counted.quotes > 0, counted.breaks_inside
    if counted.is_doubtful:
        whole = "".join(text for text, _ in _decoded(read(), dialect.encoding))
        open_at, breaks_inside = _opened_at(whole, dialect), True
        counted = _Counted(replace(dialect, quote=""))
        counted.count(whole)
        counted.end()
    kinds = [kind for kind, times in counted.kinds.items() if times]
    return TextLook(
        lines=counted.lines,
        has_quotes=has_quotes,
        breaks_inside=breaks_inside,
        break_=(kinds or ["\n"])[0] if len(kinds) < 2 else None,  # noqa: PLR2004 - one kind or none
        broken_at=broken_at,
        open_at=open_at,
    )


def _decoded(parts: Iterable[bytes], encoding: str) -> Iterator[tuple[str, int | None]]:
    """Yield the text part by part, with U+FFFD for invalid bytes, as Spark decodes it.

    The part with the first invalid bytes comes with the number of line breaks before them in this part, other parts
    with None.
    """
    decoder = codecs.getincrementaldecoder(encoding)("replace")
    strict: codecs.IncrementalDecoder | None = codecs.getincrementaldecoder(encoding)("strict")
    for part in chain(parts, (None,)):
        broken = None
        try:
            if strict is not None:
                strict.decode(part or b"", final=part is None)
        except UnicodeDecodeError as error:
            strict, broken = None, error.object[: error.start].decode(encoding, "replace").count("\n")
        yield decoder.decode(part or b"", final=part is None), broken


class _Counted:
    """Counts the lines and quotes of a text, part by part."""

    def __init__(self, dialect: Dialect) -> None:
        """Begin with nothing."""
        self._quote, self._escape = dialect.quote, "" if dialect.escape == dialect.quote else dialect.escape
        near, quote = (
            f"[^{re.escape(dialect.sep[0] + dialect.sep[-1] + dialect.quote)}\\r\\n]",
            re.escape(dialect.quote),
        )
        # The pattern begins with the quote, which Python finds fast, and then looks behind.
        self._stray = re.compile(f"{quote}(?<={near}{quote})(?={near})") if dialect.quote else None
        self._rest, self._inside, self._has_stray = "", False, False
        self.kinds = {"\r\n": 0, "\n": 0, "\r": 0}
        self.lines = self.newlines = self.quotes = 0
        self.breaks_inside = False
        self._last = "\n"

    def count(self, text: str) -> None:
        """Count a part. A last character that can belong to the next part is counted with that part."""
        text, self._rest = self._rest + text, ""
        while text and text[-1] in f"\r{self._escape}":
            text, self._rest = text[:-1], text[-1] + self._rest
        self._add(text)

    def end(self) -> None:
        """Count what is left."""
        self._add(self._rest)
        self.lines += self._last not in "\r\n"

    @property
    def is_doubtful(self) -> bool:
        """Return whether a quote may be open at the end, or is inside a value. Then only a parser can decide."""
        return self._inside or self._has_stray

    def _add(self, text: str) -> None:
        if not text:
            return
        self._last = text[-1]
        self.newlines += text.count("\n")
        if not self._quote or (self._quote not in text and not self._inside):
            self._breaks(text, text.count("\n\n") + text.count("\r\n\r\n"))
            return
        self.quotes += text.count(self._quote)
        if self._escape and self._escape in text:
            text = text.replace(self._escape * 2, "").replace(self._escape + self._quote, "")
        self._has_stray = self._has_stray or (self._stray is not None and self._stray.search(text) is not None)
        pieces = text.split(self._quote)
        outside, inside = (pieces[1::2], pieces[::2]) if self._inside else (pieces[::2], pieces[1::2])
        quoted = "".join(inside)
        self.breaks_inside = self.breaks_inside or "\n" in quoted or "\r" in quoted
        self._inside ^= len(pieces) % 2 == 0
        self._breaks(self._quote.join(outside), 0)

    def _breaks(self, text: str, empty: int) -> None:
        both, feeds, returns = text.count("\r\n"), text.count("\n"), text.count("\r")
        self.kinds["\r\n"] += both
        self.kinds["\n"] += feeds - both
        self.kinds["\r"] += returns - both
        self.lines += feeds + returns - both - empty


def _opened_at(text: str, dialect: Dialect) -> int | None:
    """Return the line with a quote that opens a value and is never closed, or None."""
    quote, escape = re.escape(dialect.quote), re.escape(dialect.escape or dialect.quote)
    inside = rf"(?:{escape}{quote}|{escape}{escape}|(?!{quote}).)*+"
    begins = rf"(?:\A|(?<=[\r\n])|(?<={re.escape(dialect.sep)}))" + (r"[ \t]*" if dialect.trims_left else "")
    value = re.compile(rf"{begins}{quote}{inside}(?P<closed>{quote})?", re.DOTALL)
    found = next((each for each in value.finditer(text) if each["closed"] is None), None)
    return None if found is None else text.count("\n", 0, found.start()) + 1
