"""Writes a path in the way each engine reads it. No other module knows how an engine interprets a folder's name.

An engine that takes a path as text may interpret the text as a URI, a glob or an SQL literal. Each engine was tested
with every name in `tests/odd_names.py` (Spark 4.2, delta-rs 1.6, Polars 2.1, DuckDB 2.0):

| engine   | takes                          | what a name can break                                                   |
|----------|--------------------------------|-------------------------------------------------------------------------|
| delta-rs | a path, made a URI inside      | decodes `%20` twice; knows no brackets, carets, pipes, backslashes      |
| Polars   | a Delta table's file URIs      | does not decode them, and reads `* ? [` in them as a glob               |
| Spark    | a path, globbed by default     | `* ? [ { ,` and more are a glob; a file name with a colon is no path;   |
|          |                                | SQL replaces `${HOME}`                                                  |
| DuckDB   | a path in an SQL literal       | `* ? [` are a glob                                                      |
"""

import re
import shlex
import unicodedata
from collections.abc import Iterable
from pathlib import Path
from typing import Final
from urllib.parse import quote

_NOT_FOR_DELTA: Final = re.compile(r"%[0-9A-Fa-f]{2}|[\[\]^|\\\x00-\x1f\x7f\ud800-\udfff]")
_S3: Final = "s3://"
_SPARK_GLOB: Final = re.compile(r"[\\{}\[\]*?,^]")
_DUCKDB_GLOB: Final = re.compile(r"[*?\[]")
_AS_IT_IS_FOR_POLARS: Final = re.compile(r"[A-Za-z0-9/_.~!$&'()+,:;=@-]*")

_IN_JAVA_URI: Final = "/-_.!~*'(),;:$&+=@"
"""ASCII characters that java.net.URI leaves as they are in a path, besides letters and digits."""
_ASCII_MAX: Final = 0x7F
_QUOTED_CATEGORIES: Final = frozenset({"Cc", "Zs", "Zl", "Zp"})
"""Control characters and spaces. java.net.URI quotes them even if they are not ASCII."""

_LITERAL_PATHS: Final = {"recursiveFileLookup": "true", "__globPaths__": "false"}
"""With these options, Spark takes no path for a glob, and no folder named `a=b` for a partition column."""
_RAW_FILES: Final = {
    "fs.file.impl": "org.apache.hadoop.fs.RawLocalFileSystem",
    "fs.file.impl.disable.cache": "true",
}
"""Options for a Spark reader of file names with a colon.

Hadoop's local file system looks for a checksum file beside each file. It parses the path of the checksum file as a URI,
and takes a colon for the end of the scheme (HADOOP-3257). The raw local file system has no checksum files.
"""


class UnusableFolderError(ValueError):
    """The name of a folder forbids Delta tables in it. The message says which part of the name, and what to do."""


def must_suit_delta(folder: Path) -> None:
    """Raise UnusableFolderError if delta-rs cannot keep a table below this folder.

    A symbolic link does not help. delta-rs resolves it first, so the name of its target is checked too.
    """
    for path in dict.fromkeys((folder.absolute(), folder.resolve())):
        found = _NOT_FOR_DELTA.search(str(path))
        if found is not None:
            leads = "" if path == folder.absolute() else f", which leads to {_shown(path)},"
            raise UnusableFolderError(
                f"{_shown(folder)}{leads} cannot hold tables: delta-rs, which keeps their logs, cannot open a folder "
                f"with '{_shown(found[0])}' in its path. Rename the folder, or name another one"
            )


def spark_path(path: str) -> str:
    """Return a path in which no character is special in Spark's globs."""
    return _SPARK_GLOB.sub(lambda match: f"\\{match[0]}", spark_address(path))


def spark_address(address: str) -> str:
    """Return a path or URL as Spark names it. Spark reads `s3://` by the name `s3a://`."""
    return f"s3a://{address[len(_S3) :]}" if address.startswith(_S3) else address


def spark_uri_part(path: str) -> str:
    """Return a path as the end of the URI by which Spark names the file to a query (`_metadata.file_path`)."""
    return "".join(character if _in_java_uri(character) else quote(character, safe=_IN_JAVA_URI) for character in path)


def spark_options(paths: Iterable[str]) -> dict[str, str]:
    """Return the options with which a Spark reader reads exactly these files, whatever their names are."""
    colon = any(":" in path.rpartition("/")[2] for path in paths)
    return _LITERAL_PATHS | (_RAW_FILES if colon else {})


def spark_sql_table(folder: Path | str) -> str:
    """Return a Delta table's folder as Spark's SQL names it.

    Spark replaces `${...}` in the text of a query before it parses the query. Only a string literal can escape the
    dollar.
    """
    name = f"delta.`{spark_address(str(folder)).replace('`', '``')}`"
    if "${" not in name:
        return name
    text = name.replace("'", "\\'").replace("$", "\\u0024")
    return f"IDENTIFIER('{text}')"


def duckdb_path(path: str) -> str:
    """Return a path in which no character is special in DuckDB's globs."""
    return _DUCKDB_GLOB.sub(lambda match: f"[{match[0]}]", path)


def polars_reads(folder: Path | str) -> bool:
    """Return whether Polars' own reader finds the files of a Delta table in this folder.

    Otherwise use `scan_delta(..., use_pyarrow=True)`, which opens the files through delta-rs.
    """
    if "://" in str(folder):
        return True
    return _AS_IT_IS_FOR_POLARS.fullmatch(str(Path(folder).resolve())) is not None


def typed(path: object) -> str:
    """Return a path as a user types it in a shell, quoted if necessary."""
    return shlex.quote(str(path))


def _in_java_uri(character: str) -> bool:
    return ord(character) > _ASCII_MAX and unicodedata.category(character) not in _QUOTED_CATEGORIES


def _shown(path: Path | str) -> str:
    text = str(path)
    return text if text.isprintable() else repr(text)[1:-1]
