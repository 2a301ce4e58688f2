"""Style as a test: the remarks that a reviewer would otherwise repeat (after TigerBeetle's `tidy`)."""

import ast
import importlib
import inspect
import re
import tomllib
from collections import Counter, defaultdict
from functools import cache
from pathlib import Path

import pytest

import spec
from checkpointing import key_groups as core
from spec.rules import invariants

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("checkpointing", "jobs", "orchestration", "spec", "tidemark")
FILE_LINES_MAX = 1000
FUNCTION_LINES_MAX = 60
PORT_METHODS_MAX = 6

BANNED_MODULES = {"utils", "util", "helpers", "helper", "manager", "misc", "common"}
BANNED_WORDS = re.compile(
    r"\bTODO\b|\bFIXME\b|NotImplementedError|pragma: no cover|\bimport pickle|cloudpickle"
    r"|pytest\.(mark\.)?(skip|xfail|importorskip)|unittest\.skip"
)
CORE_MAY_IMPORT = {"checkpointing", "pydantic", "pydantic_core", "typing", "collections", "dataclasses", "enum", "json"}
CORE_MAY_IMPORT |= {"re", "functools", "itertools", "math", "abc", "types", "operator", "heapq", "bisect", "hashlib"}
CORE_MAY_IMPORT |= {"__future__", "copy", "contextlib", "zlib", "base64"}
# Modules that are not started by an import.
ENTRY_POINTS = {"jobs.cli.main", "jobs.pipelines.flights_data", "jobs.spark.jars", "orchestration.definitions"}
# The public interface, which no module of the product imports.
ENTRY_POINTS |= {"tidemark.dagster", "tidemark.prepare", "tidemark.reporting", "tidemark.testing", "tidemark.__main__"}

# The command finds pipelines under their names, and the judge of the vectors finds its runners under theirs.
FOUND_BY_NAME = ("jobs.pipelines.", "spec.flink.")


def sources(*folders):
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


PRODUCT = sources(*PACKAGES)
EVERYTHING = [*PRODUCT, *sources("tests", "bench", ".ci"), ROOT / "hatch_build.py"]


@cache
def tree(path):
    return ast.parse(path.read_text(encoding="utf-8"))


@cache
def nodes(path):
    return tuple(ast.walk(tree(path)))


@pytest.fixture(scope="module", autouse=True)
def _forgotten():
    yield
    nodes.cache_clear()
    tree.cache_clear()


def name(path):
    return str(path.relative_to(ROOT))


def module(path):
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported(path):
    """Yield the full names that a module imports: modules, and names from modules, which may be modules too."""
    package = module(path).split(".")[: None if path.name == "__init__.py" else -1]
    for node in nodes(path):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = ".".join([*package[: len(package) - node.level + 1], *filter(None, [node.module])])
            origin = base if node.level else str(node.module)
            yield origin
            yield from (f"{origin}.{alias.name}" for alias in node.names)


def functions(path):
    return [node for node in nodes(path) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]


def test_files_and_functions_are_short():
    """A file holds one idea, in at most a thousand lines. A function fits on a screen."""
    files = [f"{name(p)}: {n} lines" for p in EVERYTHING if (n := len(p.read_text().splitlines())) > FILE_LINES_MAX]
    long = [
        f"{name(path)}:{node.lineno} {node.name}: {lines} lines"
        for path in EVERYTHING
        for node in functions(path)
        if (lines := (node.end_lineno or node.lineno) - node.lineno + 1) > FUNCTION_LINES_MAX
    ]
    assert [] == files + long


PIECE_LINES_MAX = 130
FOLDER_MODULES_MAX = 30
NAMESAKES_MAX = 6
ROOMS = {
    "jobs.catalogs.glue": "only it imports its library, which is an extra",
    "jobs.catalogs.hive": "only it imports its library, which is an extra",
    "jobs.outside_sinks.postgres.prepared": "what PostgreSQL's two-phase commit is, beside a sink that may do without",
    "jobs.pipelines.flights_report": "the demo's page, which its tests read alone",
    "jobs.tick.reporters.catalog": "what a catalog is told, beside the threads that tell it",
    "jobs.tick.reporters.prometheus": "only it imports its library, which is an extra",
    "spec.oracle.flink": "a script of `.ci` fetches Flink's classes with it",
}
"""Small modules that only one sibling imports, with the reason why they are separate modules."""


def test_a_module_is_a_room_and_no_piece_of_its_sibling():
    """A small module that only a sibling imports is part of it, and a reader would have to open both files."""
    modules = {module(path): path for path in PRODUCT}
    importers = {}
    for path in PRODUCT:
        for full in {each for each in imported(path) if each in modules}:
            importers.setdefault(full, set()).add(module(path))
    small = {each for each, path in modules.items() if len(path.read_text().splitlines()) <= PIECE_LINES_MAX}
    pieces = {
        each
        for each, by in importers.items()
        if each in small and len(by) == 1 and each.rpartition(".")[0] == next(iter(by)).rpartition(".")[0]
    }
    assert set(ROOMS) == {each for each in pieces if each.startswith(("checkpointing.", "jobs.", "spec."))}


def test_folders_are_not_crowded():
    """Few modules have the same name, so that a name identifies a module."""
    folders = Counter(path.parent for path in EVERYTHING if path.name != "__init__.py" and "tests" not in path.parts)
    assert {} == {name(folder): many for folder, many in folders.items() if many > FOLDER_MODULES_MAX}
    names = Counter(path.stem for path in EVERYTHING if path.stem not in ("__init__", "__main__", "conftest"))
    assert {} == {stem: many for stem, many in names.items() if many > NAMESAKES_MAX}


def test_every_module_says_what_it_is_for():
    """Each file begins with a docstring, `__init__.py` included."""
    assert [] == [name(path) for path in EVERYTHING if not ast.get_docstring(tree(path))]


def test_no_module_is_called_after_nothing():
    """A module has one job, and its name says which."""
    parts = {path: path.relative_to(ROOT).with_suffix("").parts for path in EVERYTHING}
    assert [] == [name(path) for path in EVERYTHING if BANNED_MODULES & set(parts[path])]


def test_nothing_is_left_for_later_or_skipped():
    """No placeholder, no switched-off test, nothing hidden from coverage, no pickle."""
    found = [
        f"{name(path)}:{number} {line.strip()}"
        for path in EVERYTHING
        if path != Path(__file__)  # this file has to name the words
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1)
        if BANNED_WORDS.search(line)
    ]
    assert [] == found


def test_the_core_imports_only_what_is_pure():
    """The list has the allowed imports and not the forbidden ones, so that each new import is a decision."""
    found = {
        f"{name(path)}: {full}"
        for path in sources("checkpointing")
        for full in imported(path)
        if full.split(".")[0] not in CORE_MAY_IMPORT
    }
    assert [] == sorted(found)


def test_ports_are_narrow():
    """A protocol has at most five methods, because fakes of a wider one become wrong."""
    wide = [
        f"{name(path)}: {node.name} has {count}"
        for path in PRODUCT
        for node in nodes(path)
        if isinstance(node, ast.ClassDef) and any("Protocol" in ast.unparse(base) for base in node.bases)
        if (count := sum(isinstance(item, ast.FunctionDef) for item in node.body)) > PORT_METHODS_MAX
    ]
    assert [] == wide


def test_no_module_is_dead():
    """Each module of the product is imported by another one, or something else starts it."""
    used = {full for path in PRODUCT for full in imported(path) if not full.startswith(f"{module(path)}.")}
    started = {module(path) for path in PRODUCT if "__main__" in path.read_text(encoding="utf-8")} | ENTRY_POINTS
    modules = {module(path) for path in PRODUCT if path.name != "__init__.py"}
    dead = {one for one in modules - used - started if not one.startswith(FOUND_BY_NAME)}
    assert [] == sorted(dead)


def test_the_command_line_names_no_pipeline():
    """Facts about the demo are in the demo's modules. The names of the included pipelines are in `jobs.project`."""
    texts = {name(path): path.read_text(encoding="utf-8") for path in sources("jobs/cli", "jobs/showing")}
    assert [] == [path for path, text in texts.items() if "flights" in text or "offsets_100" in text]


@pytest.mark.parametrize("lock", ["requirements.lock", "bootstrap.lock"])
def test_lock_files_name_hashes_and_no_host(lock):
    """Every package has one exact version with hashes. The user's own settings decide where it comes from."""
    text = (ROOT / lock).read_text(encoding="utf-8")
    entries = re.split(r"\n(?=\S)", text.strip())
    assert "://" not in text
    assert [] == [entry for entry in entries if "==" not in entry or "--hash=sha256:" not in entry]


def test_every_direct_dependency_has_its_reason():
    """docs/dependencies.md has a row for each name in pyproject.toml, and no other rows."""
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    extras = declared["project"]["optional-dependencies"]
    wanted = [declared["project"]["dependencies"], *extras.values(), *declared["dependency-groups"].values()]
    expected = {re.split(r"[^a-z0-9-]", requirement)[0] for group in wanted for requirement in group}
    expected.discard(declared["project"]["name"])  # the extra `dev` asks for the other extras
    text = (ROOT / "docs" / "dependencies.md").read_text(encoding="utf-8")
    assert expected == set(re.findall(r"^\| `([a-z0-9-]+)", text, re.MULTILINE))


# ------------------------------------------------------------------
# One name, one meaning: no two classes of the core, the dataflow and Dagster's layer have the same name.


SHARED = {
    "Column": "a column of a state, of a table's rules, and of a shown statistic: each module is read alone",
    "Deleted": "files of a cancelled job, and of a clean-up: both are counts that one command shows",
    "Problem": "of a setting, and of a table: texts that name the thing",
    "Refused": "a claim that the core refuses, and an append that a store refuses",
    "Standing": "how a table stands to its cut, and how a job stands in Dagster",
}
"""Names that two modules share, and their meanings there."""


def test_a_class_name_has_one_meaning():
    """Public classes of `checkpointing`, `jobs` and `orchestration` have names of their own, or are listed."""
    homes = defaultdict(list)
    for path in sources("checkpointing", "jobs", "orchestration"):
        for node in tree(path).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes[node.name].append(module(path))
    twice = {name: places for name, places in homes.items() if len(places) > 1}
    assert {} == {name: places for name, places in twice.items() if name not in SHARED}
    assert sorted(SHARED) == sorted(name for name in SHARED if name in twice)


# ------------------------------------------------------------------
# One module has all functions and classes of key groups, and callers pass numbers to it as keyword arguments.


def named_here(home):
    """Return the functions and classes that a module defines for others."""
    return {
        name: found
        for name, found in vars(home).items()
        if not name.startswith("_") and getattr(found, "__module__", None) == home.__name__
    }


def test_every_number_is_given_by_its_name():
    """A parallelism and a max parallelism are both integers, so a wrong order would go unnoticed."""
    numbers = [
        f"{name}({parameter.name})"
        for name, found in named_here(core).items()
        for parameter in inspect.signature(found).parameters.values()
        if parameter.annotation in (int, "int") and parameter.kind is not inspect.Parameter.KEYWORD_ONLY
    ]
    assert [] == numbers


def test_what_is_said_of_key_groups_is_said_in_one_module():
    """No other module has a function or a class with one of these names."""
    names = {*named_here(core)}
    again = [
        f"{module(path)}.{node.name}"
        for path in sources("checkpointing", "jobs", "orchestration", "tidemark", "spec")
        if module(path) != core.__name__
        for node in nodes(path)
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name in names
    ]
    assert [] == again


# ------------------------------------------------------------------
# Only `jobs.storage` touches a warehouse's files itself. All other code goes through the port (ADR 12).


TOUCHES_FILES = {"fcntl", "glob", "os", "pathlib", "shutil", "tempfile"}
OTHER_FILES = (
    "jobs/cli/",
    "jobs/init/",
    "jobs/packing/",
    "jobs/pipelines/",
    "jobs/sources/",
    "jobs/spark/",
    "jobs/testing/",
    "jobs/tick/reporters/",
)
"""Folders whose modules touch other files than a warehouse's, such as files of a project, of packages or of input."""
OTHERS = {
    "jobs/catalogs/unity.py": "reads a token from the environment",
    "jobs/doctor/findings.py": "compares the warehouse with the default one",
    "jobs/engine_paths.py": "writes paths for engines, and follows links in a folder's name",
    "jobs/warehouse/boundaries.py": "reads the environment, and kills its own process for a test",
    "jobs/project.py": "finds pyproject.toml",
    "jobs/quality/judge.py": "sets the environment of Great Expectations",
    "jobs/reading/cuts.py": "takes a path from a reader",
    "jobs/state/mapped_files.py": "keeps files on a local disk of Spark's",
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
    "orchestration/alerts.py": "takes a path from a user",
    "orchestration/checks.py": "reads the trace of the tick that has just ended in this process",
    "orchestration/pipelines.py": "takes a path from a user",
    "orchestration/tick_config.py": "takes a path from a user",
}
"""Maps each other module that imports such a library to its use of the library."""


def test_no_module_outside_the_port_touches_a_warehouses_files():
    """A module that imports a library for files is listed here with its use of the library. No module calls `open`."""
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


DELTA_DOOR = "jobs.warehouse.table_snapshot"


def test_tables_of_delta_rs_are_opened_in_one_place():
    """`delta_table` gives up a store that never answers. A direct call would repeat its requests for three minutes."""
    opening = {
        module(path)
        for path in sources("jobs", "orchestration", "tidemark")
        for node in nodes(path)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "DeltaTable"
    }
    assert {DELTA_DOOR} == opening


# ------------------------------------------------------------------
# Judges share no code with what they judge, so that they do not share an error of the product.


PACKAGE = spec.__name__
NAMING = {"checkpointing.metadata.paths.table_of_state", "checkpointing.metadata.paths.table_of_broadcast"}
"""Functions that judges may call, because they only name a folder and decide nothing."""


def judged_imports(module):
    nodes = ast.walk(ast.parse(inspect.getsource(module)))
    froms = [node for node in nodes if isinstance(node, ast.ImportFrom) and node.module]
    return {(node.module, alias.name) for node in froms for alias in node.names}


def judges():
    """Return the modules of all invariants, and the modules of the specification that they use."""
    found, waiting = {}, [invariants]
    while waiting:
        module = waiting.pop()
        found[module.__name__] = module
        for package, name in judged_imports(module):
            home = f"{package}.{name}" if package == PACKAGE else package
            if home.startswith(f"{PACKAGE}.") and home not in found:
                waiting.append(importlib.import_module(home))
    return found.values()


def judging_functions(module):
    for package, name in sorted(judged_imports(module)):
        if not package.startswith("checkpointing") or f"{package}.{name}" in NAMING:
            continue
        if inspect.isfunction(getattr(importlib.import_module(package), name, None)):
            yield f"{module.__name__}: {package}.{name}"


def test_judges_call_no_function_of_the_product():
    """Judges know the product's entries, files and messages. They work out the consequences themselves."""
    assert [] == [name for module in judges() for name in judging_functions(module)]


def test_the_rule_is_not_blind():
    """The check finds the product's functions in the simulated stores, which are no judges."""
    world = importlib.import_module("spec.world.stores")
    assert "spec.world.stores: checkpointing.commit.fencing.newest_checkpoint" in set(judging_functions(world))
    assert world not in judges()
