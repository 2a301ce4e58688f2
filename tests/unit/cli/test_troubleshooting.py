"""The guide to what can go wrong speaks of messages and exit codes that exist."""

import ast
import re
from functools import cache
from pathlib import Path

from jobs.cli.errors import ExitCode

ROOT = Path(__file__).resolve().parents[3]
GUIDE = (ROOT / "docs/guides/troubleshooting.md").read_text(encoding="utf-8")


@cache
def texts():
    """Return every text that the code holds, those inside f-strings too."""
    files = (path for folder in ("jobs", "checkpointing", "tidemark") for path in (ROOT / folder).rglob("*.py"))
    nodes = (node for path in files for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
    return [node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)]


def messages():
    rows = GUIDE.partition("## Messages")[2].splitlines()
    first = (row.split("|")[1] for row in rows if row.startswith("| `"))
    return [message for cell in first for message in re.findall(r"`([^`]+)`", cell)]


def test_every_exit_code_is_documented_with_its_name():
    """The guide's table has one row for each exit code."""
    rows = re.findall(r"^\| (\d) \| `(\w+)` \|", GUIDE, re.MULTILINE)
    assert [(str(code.value), code.name) for code in ExitCode] == rows


def test_every_message_of_the_guide_is_one_of_the_code():
    """Each message that the guide quotes is still a message in the code."""
    parts = [part.strip(" ") for message in messages() for part in message.split("…") if part.strip(" :")]
    assert len(parts) > 20
    assert [] == [part for part in parts if not any(part in text for text in texts())]
