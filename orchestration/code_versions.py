"""Computes a version of each table's code from the pipeline's definition, the same in every process and warehouse.

The version changes with what a vertex computes: its steps, function, keys, columns, row rules and suites. It does not
change with settings, paths or parallelism. For Python code, the version includes the byte code, and the constants and
functions of the same package that the code names. So a changed comment does not change the version.
"""

import hashlib
from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import partial
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Final

from checkpointing.graph import Vertex
from checkpointing.identifiers import VertexId
from jobs.pipeline.job_plan import JobPlan
from jobs.user_code import OUR_MODULES

_DIGITS: Final = 12
_NOT_CODE: Final = frozenset(
    {"parallelism", "max_parallelism", "backend", "outdated", "columns_renamed_from", "reader"}
)
"""Fields of a specification that change only how or where something is computed."""


_Met = dict[int, object]
"""The visited values, by identity. They are kept, so that Python does not reuse an identity."""

_LIBRARIES: Final = frozenset(
    {"tidemark", "pyspark", "polars", "pyarrow", "pandas", "numpy", "builtins", "functools", "typing", "abc"}
)
_WORKED_EXAMPLES: Final = "jobs.pipelines."
_ADDRESS: Final = " at 0x"


def code_version(plan: JobPlan, vertex: Vertex) -> str:
    """Return the version of the code that writes a vertex's tables."""
    planned = plan.vertices[VertexId(vertex.id)]
    suites = [plan.suites[table.name] for table in vertex.tables if table.name in plan.suites]
    digest = hashlib.sha256()
    for word in _words((planned, suites), {}):
        digest.update(word.encode())
        digest.update(b"\0")
    return digest.hexdigest()[:_DIGITS]


def _words(value: object, met: _Met) -> Iterator[str]:
    """Yield a value as text that is the same in every process."""
    if value is None or isinstance(value, str | int | float | bytes):
        yield f"{type(value).__name__}:{value!r}"
        return
    if id(value) in met:
        yield "met before"
        return
    met[id(value)] = value
    yield f"{type(value).__module__}.{type(value).__qualname__}"
    match value:
        case Enum():
            yield value.name
        case FunctionType():
            yield from _function(value, met)
        case MethodType():
            yield from _words(value.__func__, met)
            yield from _words(value.__self__, met)
        case type():
            yield from _class(value, met)
        case ModuleType():
            yield value.__name__
        case partial():
            yield from _words((value.func, value.args, value.keywords), met)
        case _:
            yield from _parts(value, met)


def _parts(value: object, met: _Met) -> Iterator[str]:
    match value:
        case Mapping():
            for name in sorted(value, key=repr):
                yield from _words(name, met)
                yield from _words(value[name], met)
        case AbstractSet():
            for each in sorted(value, key=repr):
                yield from _words(each, met)
        case list() | tuple():
            yield str(len(value))
            for each in value:
                yield from _words(each, met)
        case _:
            yield from _object(value, met)


def _object(value: object, met: _Met) -> Iterator[str]:
    """Yield an object's class and fields.

    For an object without fields, yield its text if that is the same everywhere.
    """
    yield from _words(type(value), met)
    shown = repr(value)
    if is_dataclass(value):
        names = [each.name for each in fields(value)]
    elif _ADDRESS not in shown:
        yield shown
        return
    else:
        names = sorted(getattr(value, "__dict__", ()))
    for name in names:
        if name not in _NOT_CODE:
            yield name
            yield from _words(getattr(value, name), met)


def _class(kind: type, met: _Met) -> Iterator[str]:
    """Yield a class's name and its methods' code. For a library's class, yield only the name."""
    yield f"{kind.__module__}.{kind.__qualname__}"
    for name, method in sorted(vars(kind).items()) if _users(kind.__module__) else ():
        if isinstance(method, FunctionType):
            yield name
            yield from _words(method, met)


def _function(function: FunctionType, met: _Met) -> Iterator[str]:
    yield f"{function.__module__}.{function.__qualname__}"
    if _users(function.__module__):
        yield from _code(function.__code__, met)
        for name in _names(function.__code__):
            if name in function.__globals__ and _counts(function.__globals__[name], function):
                yield from _words(function.__globals__[name], met)
    for cell in function.__closure__ or ():
        yield from _words(cell.cell_contents, met)
    yield from _words((function.__defaults__, function.__kwdefaults__), met)


def _users(module: str) -> bool:
    """Return whether a module is the user's. A newer Tidemark, Spark or Polars does not change a pipeline's version."""
    if module.startswith(_WORKED_EXAMPLES):
        return True
    return not module.startswith(OUR_MODULES) and module.partition(".")[0] not in _LIBRARIES


def _counts(named: object, by: FunctionType) -> bool:
    """Return whether a named value is part of a function's code: a plain constant, or code of the same package."""
    if isinstance(named, FunctionType | type):
        return named.__module__.partition(".")[0] == by.__module__.partition(".")[0]
    return named is None or isinstance(named, str | int | float | bytes | tuple | frozenset)


def _names(code: CodeType) -> Iterator[str]:
    yield from sorted(set(code.co_names))
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)


def _code(code: CodeType, met: _Met) -> Iterator[str]:
    yield code.co_code.hex()
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _code(constant, met)
        else:
            yield from _words(constant, met)
