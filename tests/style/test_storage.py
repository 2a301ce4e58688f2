"""Only `jobs.storage` touches a warehouse's files by itself; everything else asks the port (ADR 12)."""

import ast
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TOUCHES_FILES = {"fcntl", "glob", "os", "pathlib", "shutil", "tempfile"}
OTHER_FILES = (
    "jobs/cli/",
    "jobs/init/",
    "jobs/packing/",
    "jobs/pipelines/",
    "jobs/sources/",
    "jobs/spark/",
    "jobs/testing/",
)
"""These know the terminal, a project, installed packages, input, the machine, a trial: no file of a warehouse."""
OTHERS = {
    "jobs/doctor/findings.py": "compares the warehouse with the default one",
    "jobs/engine_paths.py": "writes paths for engines, and follows links in a folder's name",
    "jobs/warehouse/boundaries.py": "reads the environment, and kills its own process for a test",
    "jobs/project.py": "finds pyproject.toml",
    "jobs/quality/judge.py": "sets the environment of Great Expectations",
    "jobs/reading/cuts.py": "takes a path from a reader",
    "jobs/tick/class_archive.py": "keeps an archive of the JVM's classes",
    "jobs/tick/driver.py": "names the file of a trace",
    "jobs/tick/interrupts.py": "sends a signal to its own process",
    "jobs/tick/tick_settings.py": "names the file of a trace",
    "jobs/tick/trace_files.py": "writes a trace bit by bit, where `jobs.storage.place` says",
    "jobs/settings.py": "reads the environment, and takes paths from a user",
    "jobs/warehouse/lease.py": "reads /proc",
    "jobs/warehouse/savepoint_copy.py": "tells a path from a URL",
    "jobs/warehouse/warehouse.py": "tells a path from a URL",
    "jobs/user_code.py": "finds a user's own lines in a traceback",
    "orchestration/checks.py": "reads the trace of the tick that has just ended in this process",
    "orchestration/pipelines.py": "takes a path from a user",
    "orchestration/tick_config.py": "takes a path from a user",
}
"""What each other module that imports such a library does with it."""


def test_no_module_outside_the_port_touches_a_warehouses_files():
    """A module that imports a library for files is named here with what it uses it for; none calls `open`."""
    found = {
        name
        for folder in ("jobs", "orchestration")
        for path in sorted((ROOT / folder).rglob("*.py"))
        if not (name := str(path.relative_to(ROOT))).startswith(("jobs/storage/", *OTHER_FILES)) and touches(path)
    }
    assert set(OTHERS) == found


def touches(path):
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        match node:
            case ast.Import(names=names) if TOUCHES_FILES & {each.name.partition(".")[0] for each in names}:
                return True
            case ast.ImportFrom(module=str(module)) if module.partition(".")[0] in TOUCHES_FILES:
                return True
            case ast.Call(func=ast.Name(id="open")):
                return True
    return False
