"""Builds the layout of the wheel: every package of the checkout becomes a part of `tidemark`.

In the checkout `checkpointing`, `jobs`, `orchestration` and `spec` lie beside `tidemark`. Many projects use these names
for folders of their own, and Python can have only one package of each name. So the wheel installs `tidemark.jobs`
instead of `jobs`, and so on. The sources are the same, except for the names of modules in imports, strings and
comments. An editable install uses the checkout as it is.
"""

import atexit
import io
import re
import shutil
import tempfile
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

PUBLIC: Final = "tidemark"
MOVED: Final = ("checkpointing", "jobs", "orchestration", "spec")
_NAMED: Final = re.compile(rf"(?<![\w./-])(?P<top>{'|'.join(MOVED)})\.(?P<next>[a-z_]\w*)")
_BEGINS: Final = {tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENCODING}
_SKIPPED: Final = {tokenize.NL, tokenize.COMMENT}
_TEXTS: Final = {tokenize.STRING, tokenize.COMMENT, getattr(tokenize, "FSTRING_MIDDLE", tokenize.STRING)}

_Edit = tuple[tuple[int, int], tuple[int, int], str]
"""Where a token begins and ends, and the text that replaces it."""


class NotMovableError(Exception):
    """An import would find another module in the wheel. The message names the line, and what to write instead."""


class WheelLayout(BuildHookInterface[Any]):
    """Fills the wheel, unless it is the wheel of an editable install."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Write the sources of the wheel into a temporary folder, from which hatchling takes them."""
        if version == "editable":
            return
        folder = Path(tempfile.mkdtemp(prefix="tidemark-wheel-"))
        atexit.register(shutil.rmtree, folder)
        lay_out(Path(self.root), folder)
        build_data["force_include"][str(folder)] = PUBLIC


def lay_out(root: Path, package: Path) -> None:
    """Write the sources of a checkout as the one package that the wheel installs. Raise NotMovableError."""
    for top in (PUBLIC, *MOVED):
        for source in sorted((root / top).rglob("*")):
            inside = source.relative_to(root / PUBLIC if top == PUBLIC else root)
            if source.is_file() and "__pycache__" not in inside.parts:
                (package / inside).parent.mkdir(parents=True, exist_ok=True)
                if source.suffix == ".py":
                    text = source.read_text(encoding="utf-8")
                    (package / inside).write_text(_moved(text, source, root), encoding="utf-8")
                else:
                    shutil.copyfile(source, package / inside)


def _moved(text: str, source: Path, root: Path) -> str:
    """Return a module's text in which every module that moves has its new name."""
    starts = [0]
    for line in text.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    edits = [*_edits(list(tokenize.generate_tokens(io.StringIO(text).readline)), source, root)]
    for (row, column), (end_row, end_column), new in reversed(edits):
        text = text[: starts[row - 1] + column] + new + text[starts[end_row - 1] + end_column :]
    return text


def _edits(tokens: list[tokenize.TokenInfo], source: Path, root: Path) -> Iterator[_Edit]:
    before = tokenize.ENCODING
    for token, name, after in zip(tokens, tokens[1:], tokens[2:], strict=False):
        if token.type in _TEXTS:
            new = _NAMED.sub(lambda found: _renamed(found, root), token.string)
            if new != token.string:
                yield token.start, token.end, new
        if token.string in ("from", "import") and before in _BEGINS and name.string in MOVED:
            if token.string == "from":
                yield name.start, name.end, f"{PUBLIC}.{name.string}"
            elif after.type == tokenize.NEWLINE:
                yield token.start, name.end, f"from {PUBLIC} import {name.string}"
            else:
                message = f"{source}, line {token.start[0]}: write the import as 'from package.module import name'"
                raise NotMovableError(message)
        if token.type not in _SKIPPED:
            before = token.type


def _renamed(found: re.Match[str], root: Path) -> str:
    """Return a dotted name as the wheel has it. A text that only looks like a module's name stays as it is."""
    module = root / found["top"] / found["next"]
    return f"{PUBLIC}.{found[0]}" if module.is_dir() or module.with_suffix(".py").is_file() else found[0]
