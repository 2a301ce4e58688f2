"""Tests that the guide on errors quotes existing messages and exit codes, and misses no important one."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from jobs.cli.errors import ExitCode
from jobs.storage import objects

ROOT = Path(__file__).resolve().parents[3]
GUIDE = (ROOT / "docs/guides/troubleshooting.md").read_text(encoding="utf-8")


# The functions and classes of each module whose errors end a tick of a job that ran before. A user may meet these at
# any time.
LATE = {
    "storage/objects": ("store_error", "worded", "known_failure"),
    "sources/kafka/client_settings": ("failure",),
    "sources/kafka/kafka_source": ("held",),
    "sources/postgres/slot": ("state_of", "state_at", "create", "advance", "SlotCopy"),
}


@cache
def tree(path):
    """Return a module's syntax tree without its docstrings, which no user reads."""
    module = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(module):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            node.value = ast.Constant(None)
    return module


def texts_in(node):
    return [part.value for part in ast.walk(node) if isinstance(part, ast.Constant) and isinstance(part.value, str)]


@cache
def texts():
    files = (path for folder in ("jobs", "checkpointing", "tidemark") for path in (ROOT / folder).rglob("*.py"))
    return [text for path in files for text in texts_in(tree(path))]


def parts():
    """Return the parts of the quoted messages. Names or numbers stand between the parts."""
    rows = GUIDE.partition("## Messages")[2].splitlines()
    first = (row.split(" | ")[0] for row in rows if row.startswith("| `"))
    quoted = [message for cell in first for message in re.findall(r"`([^`]+)`", cell)]
    return [part.strip(" ") for message in quoted for part in message.split("…") if part.strip(" :")]


def errors_of(module):
    late = [node for node in tree(ROOT / f"jobs/{module}.py").body if getattr(node, "name", "") in LATE[module]]
    calls = (node for each in late for node in ast.walk(each) if isinstance(node, ast.Call))
    named = (call for call in calls if isinstance(call.func, ast.Name) and call.func.id.endswith("Error"))
    return [found for call in named if (found := texts_in(call)) and max(map(len, found)) > 20]


def test_every_exit_code_is_documented_with_its_name():
    """The guide's table has one row for each exit code."""
    rows = re.findall(r"^\| (\d) \| `(\w+)` \|", GUIDE, re.MULTILINE)
    assert [(str(code.value), code.name) for code in ExitCode] == rows


def test_every_message_of_the_guide_is_one_of_the_code():
    assert len(parts()) > 90
    assert [] == [part for part in parts() if not any(part in text for text in texts())]


@pytest.mark.parametrize("module", LATE)
def test_the_guide_has_every_error_that_ends_a_running_job(module):
    """The guide quotes a part of each message of the module."""
    found = errors_of(module)
    assert found
    assert [] == [texts for texts in found if not any(part in text for part in parts() for text in texts)]


def test_the_guide_has_every_cause_of_a_stores_error():
    """An error that a store returns is shown as one of these sentences."""
    assert [] == [cause for _, cause, _ in objects._KINDS if not any(part in cause for part in parts())]
