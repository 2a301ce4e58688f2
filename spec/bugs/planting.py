"""Plants changed source in the running core: replaces the code of functions and the values of tables, and undoes it.

Everybody who has imported a changed function runs the new code, because the function itself stays the same object.
`spec.bugs` and `spec.sharpness` plant in this way.
"""

import ast
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import CodeType, FunctionType, ModuleType

import checkpointing

Function = ast.FunctionDef | ast.AsyncFunctionDef
_Undo = Callable[[], None]
_PREFIX = checkpointing.__name__.removesuffix("checkpointing")
"""What stands before the names of all packages: nothing in the checkout, `tidemark.` in the wheel."""
_TOPS = ("checkpointing", "spec", "jobs")


class CannotBePlantedError(Exception):
    """A change that no swap of code can express, as of a dataclass's field."""


@contextmanager
def planted(module: ModuleType, changed: ast.Module) -> Iterator[None]:
    """Let a module run changed code while the context is open. Raise CannotBePlantedError before anything changes."""
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
    """Return the swaps to make. Each returns how to undo it. Raise CannotBePlantedError if one is impossible."""
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
    """Return the code of this function in a module that was compiled anew."""
    return next(code for code in _codes(made) if code.co_qualname == function.__code__.co_qualname)


def function_of(module: ModuleType, name: str) -> FunctionType:
    """Return the function of this qualified name. Raise TypeError if its code cannot be replaced."""
    return _inner(module, name)[0]


def _same_head(one: Function, other: Function) -> bool:
    return ast.dump(one.args) == ast.dump(other.args) and one.name == other.name


def _parts(tree: ast.Module) -> Mapping[str, ast.AST]:
    """Return functions, methods and all other statements of a module, by a name that a change leaves as it is."""
    found: dict[str, ast.AST] = dict(functions(tree))
    for place, (owner, node) in enumerate(_others(tree)):
        target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
        name = target.id if isinstance(target, ast.Name) and not owner else f"{owner} statement {place}"
        found[name] = node
    return found


def _others(tree: ast.Module) -> Iterator[tuple[str, ast.stmt]]:
    """Yield the statements that are no functions, each with the class that it is in, or an empty string."""
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
    """Return the function of this qualified name, and what makes it forget the values that it has cached."""
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
