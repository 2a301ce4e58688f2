"""Reads the planted bugs from the text files beside this module, and plants them.

A bug is a table of a TOML file:

- `name`: a sentence that says what goes wrong.
- `rule`: the rule that it breaks. Its judge must find it with this rule.
- `file`: the module, as a path from the root of the project.
- `change`: lines of the module (`old`), and the lines in their place (`new`). A few bugs have two changes.
- `judge`: the judge's name in `spec.bugs.judges`, or the path of a module of property tests.
- `flink`: the issues in which Flink had the bug, if any. `story` describes a bug that Tidemark once had.
- `slow`: its judge needs more than two seconds, so `make test` does not hunt the bug every time.
"""

import ast
import importlib
import inspect
import sys
import tomllib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import CodeType, FunctionType, ModuleType

import checkpointing
import spec
from spec.bugs.judges import JUDGES, Judge, by_tests

_HERE = Path(__file__).parent
_PREFIX = spec.__name__.removesuffix("spec")


class BugDoesNotFitError(Exception):
    """A bug's old lines are no longer in its module, or occur there twice. The message names the bug."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bug:
    """One planted bug."""

    name: str
    rule: str
    file: str
    judge: str
    changes: tuple[tuple[str, str], ...]
    """Old lines, and the new ones."""
    flink: tuple[str, ...] = ()
    story: str = ""
    slow: bool = False

    @property
    def module(self) -> str:
        """Return the name of the module to change."""
        return _PREFIX + self.file.removesuffix(".py").replace("/", ".")

    @property
    def judged_by(self) -> Judge:
        """Return the judge that must find the bug."""
        return by_tests(self.judge) if self.judge.endswith(".py") else JUDGES[self.judge]


def files() -> list[Path]:
    """Return the text files, ordered by name."""
    return sorted(_HERE.glob("*.toml"))


@cache
def bugs() -> dict[str, Bug]:
    """Return a dict from each bug's name to the bug, in the order of the files."""
    found: dict[str, Bug] = {}
    for file in files():
        for table in tomllib.loads(file.read_text(encoding="utf-8"))["bug"]:
            changes = tuple((change["old"], change["new"]) for change in table.pop("change"))
            bug = Bug(**{**table, "flink": tuple(table.get("flink", ()))}, changes=changes)
            if bug.name in found:
                raise ValueError(f"two bugs have the name {bug.name!r}")
            found[bug.name] = bug
    return found


@contextmanager
def planted(bug: Bug) -> Iterator[None]:
    """Plant a bug while the context is open. Raise BugDoesNotFitError if its module has changed."""
    module = importlib.import_module(bug.module)
    changed = replaced(bug, inspect.getsource(module))
    try:
        swaps = changed_code(module, ast.parse(changed))
    except SyntaxError as error:
        raise BugDoesNotFitError(f"the bug {bug.name!r} no longer fits: {bug.file} would be no Python") from error
    try:
        with swaps:
            yield
    except CannotBePlantedError as error:
        raise BugDoesNotFitError(f"the bug {bug.name!r} cannot be planted: {error}") from error


def replaced(bug: Bug, source: str) -> str:
    """Return the module's source with the bug in it. Raise BugDoesNotFitError unless its old lines occur there once."""
    found = f"\n{source}"
    for old, new in bug.changes:
        count = found.count(f"\n{old}")
        if count != 1:
            times = "no longer has" if count == 0 else f"has {count} times"
            raise BugDoesNotFitError(f"the bug {bug.name!r} no longer fits: {bug.file} {times} these lines:\n{old}")
        found = found.replace(f"\n{old}", f"\n{new}")
    return found[1:]


# ------------------------------------------------------------------
# Plants changed source in the running core: replaces the code of functions and the values of tables, and restores them.
#
# All importers of a changed function run the new code, because the function itself stays the same object.


Function = ast.FunctionDef | ast.AsyncFunctionDef
_Undo = Callable[[], None]
_PREFIX = checkpointing.__name__.removesuffix("checkpointing")
"""The prefix of all packages' names: nothing in the checkout, `tidemark.` in the wheel."""
_TOPS = ("checkpointing", "spec", "jobs")


class CannotBePlantedError(Exception):
    """A change that no swap of code can express, such as a change of a dataclass's field."""


@contextmanager
def changed_code(module: ModuleType, changed: ast.Module) -> Iterator[None]:
    """Let a module run changed code while the context is open.

    CannotBePlantedError is raised before anything changes.
    """
    swaps = prepared(module, changed)
    undo: list[_Undo] = []
    try:
        undo += [swap() for swap in swaps]
        yield
    finally:
        for each in reversed(undo):
            each()


def plant(module: ModuleType, changed: ast.Module) -> None:
    """Let a module run changed code for the rest of this process."""
    for swap in prepared(module, changed):
        swap()


def prepared(module: ModuleType, changed: ast.Module) -> list[Callable[[], _Undo]]:
    """Return the swaps to make.

    Each swap returns its undo function. Raise CannotBePlantedError if one is impossible.
    """
    made = compile(ast.fix_missing_locations(changed), module.__file__ or module.__name__, "exec")
    before, after = _parts(tree_of(module)), _parts(changed)
    swaps: list[Callable[[], _Undo]] = []
    for name in sorted(set(before) | set(after)):
        was, is_ = before.get(name), after.get(name)
        if was is not None and is_ is not None and ast.dump(was) == ast.dump(is_):
            continue
        match is_:
            case ast.FunctionDef() | ast.AsyncFunctionDef() if isinstance(was, Function) and _same_head(was, is_):
                swaps.append(_code_swap(module, name, made))
            case ast.Assign(value=ast.expr() as value) | ast.AnnAssign(value=ast.expr() as value) if name in vars(
                module
            ):
                swaps.append(_value_swap(module, name, value))
            case _:
                raise CannotBePlantedError(
                    f"{module.__name__}.{name} is no function and no table that was there before"
                )
    return swaps


def tree_of(module: ModuleType) -> ast.Module:
    """Return the syntax tree of the module's source."""
    return ast.parse(inspect.getsource(module))


def functions(tree: ast.Module) -> Iterator[tuple[str, Function]]:
    """Yield the module's functions and the methods of its classes, each with its qualified name."""
    for node in tree.body:
        if isinstance(node, Function):
            yield node.name, node
        elif isinstance(node, ast.ClassDef):
            for inner in node.body:
                if isinstance(inner, Function):
                    yield f"{node.name}.{inner.name}", inner


def code_in(made: CodeType, function: FunctionType) -> CodeType:
    """Return the code of this function in a newly compiled module."""
    return next(code for code in _codes(made) if code.co_qualname == function.__code__.co_qualname)


def function_of(module: ModuleType, name: str) -> FunctionType:
    """Return the function of this qualified name. Raise TypeError if its code cannot be replaced."""
    return _inner(module, name)[0]


def _same_head(one: Function, other: Function) -> bool:
    return ast.dump(one.args) == ast.dump(other.args) and one.name == other.name


def _parts(tree: ast.Module) -> Mapping[str, ast.AST]:
    """Return a dict from names to the functions, methods and all other statements of a module.

    A planted change of a statement does not alter its name.
    """
    found: dict[str, ast.AST] = dict(functions(tree))
    for place, (owner, node) in enumerate(_others(tree)):
        target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
        name = target.id if isinstance(target, ast.Name) and not owner else f"{owner} statement {place}"
        found[name] = node
    return found


def _others(tree: ast.Module) -> Iterator[tuple[str, ast.stmt]]:
    """Yield the statements that are no functions, each with the name of its class, or with an empty string."""
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            yield from ((node.name, inner) for inner in node.body if not isinstance(inner, Function))
        elif not isinstance(node, Function):
            yield "", node


def _code_swap(module: ModuleType, name: str, made: CodeType) -> Callable[[], _Undo]:
    function, forget = _inner(module, name)
    code = code_in(made, function)
    if code.co_freevars != function.__code__.co_freevars:
        raise CannotBePlantedError(f"{module.__name__}.{name} uses super() only before or only after the change")

    def put(new: CodeType) -> None:
        function.__code__ = new
        forget()

    def swap() -> _Undo:
        was = function.__code__
        put(code)
        return lambda: put(was)

    return swap


def _value_swap(module: ModuleType, name: str, value: ast.expr) -> Callable[[], _Undo]:
    real = vars(module)[name]
    holders = [
        each
        for each in list(sys.modules.values())
        if getattr(each, "__name__", "").startswith(tuple(f"{_PREFIX}{top}" for top in _TOPS))
        and vars(each).get(name) is real
    ]

    def put(new: object) -> None:
        for each in holders:
            setattr(each, name, new)

    def swap() -> _Undo:
        put(eval(compile(ast.Expression(value), module.__file__ or "", "eval"), dict(vars(module))))  # noqa: S307
        return lambda: put(real)

    return swap


def _inner(module: ModuleType, name: str) -> tuple[FunctionType, Callable[[], None]]:
    """Return the function of this qualified name, and the function that clears its cache."""
    owner: object = module
    *owners, last = name.split(".")
    for part in owners:
        owner = getattr(owner, part)
    found = inspect.getattr_static(owner, last)
    if isinstance(found, property):
        found = found.fget
    found = getattr(found, "__func__", getattr(found, "func", found))
    forget = getattr(found, "cache_clear", lambda: None)
    found = inspect.unwrap(found)
    if not isinstance(found, FunctionType):
        raise TypeError(f"{module.__name__}.{name} is no function whose code can be replaced")
    return found, forget


def _codes(code: CodeType) -> Iterator[CodeType]:
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield inner
            yield from _codes(inner)
