"""Carries out a guide in a folder as a reader does: writes its files, types its commands, runs its Python.

`python -m tests.scenarios.guides.blocks GUIDE FOLDER` does all of this, in order, in one process.
"""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_BLOCK = re.compile(r"^```(?P<kind>\w+)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
_FILE = re.compile(r"# (?P<path>[\w/]+\.\w+)\n")


@dataclass(frozen=True)
class Block:
    """One block: its language, its text, its line in the guide, and the file that it names, if any."""

    kind: str
    text: str
    path: str | None
    line: int


def blocks(guide: Path) -> Iterator[Block]:
    text = guide.read_text(encoding="utf-8")
    for found in _BLOCK.finditer(text):
        named = _FILE.match(found["text"])
        line = text.count("\n", 0, found.start()) + 2
        yield Block(found["kind"], found["text"], named["path"] if named else None, line)


def write(block: Block, folder: Path) -> None:
    path = folder / block.path
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".py":
        (path.parent / "__init__.py").touch()
    path.write_text(block.text, encoding="utf-8")
    for name, module in list(sys.modules.items()):
        if (getattr(module, "__file__", None) or "").startswith(f"{folder}/"):
            del sys.modules[name]


def python(*words: str) -> int:
    """Run a program of this environment as a process of its own. Return its exit code."""
    return subprocess.run([sys.executable, "-m", *words], check=False).returncode


def main(guide: Path, folder: Path) -> None:
    from jobs.cli.main import execute

    os.chdir(folder)
    names: dict[str, object] = {}
    for block in blocks(guide):
        print(f"line {block.line}: {block.path or block.kind}", flush=True)
        if block.path is not None:
            write(block, folder)
        elif block.kind == "python":
            exec(compile("\n" * (block.line - 1) + block.text, str(guide), "exec"), names)  # noqa: S102 - the guide's own code
        else:
            for command in block.text.splitlines():
                program, *words = command.split()
                if execute(words) if program == "tidemark" else python(program, *words):
                    sys.exit(f"line {block.line}: '{command}' failed")


if __name__ == "__main__":
    main(Path(sys.argv[1]).absolute(), Path(sys.argv[2]).absolute())
