"""Finds the slips that a maintainer could make: a fixed set of operators looks for them in a module's source."""

import ast
import importlib
import pkgutil
import tomllib
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import Final

import checkpointing
from spec.bugs.plant import Function, functions, tree_of
from spec.bugs.plant import plant as plant_code

_FLIPPED: Final[Mapping[type[ast.cmpop], type[ast.cmpop]]] = MappingProxyType(
    {
        ast.Lt: ast.LtE,
        ast.LtE: ast.Lt,
        ast.Gt: ast.GtE,
        ast.GtE: ast.Gt,
        ast.Eq: ast.NotEq,
        ast.NotEq: ast.Eq,
        ast.Is: ast.IsNot,
        ast.IsNot: ast.Is,
        ast.In: ast.NotIn,
        ast.NotIn: ast.In,
    }
)
_OTHER: Final = MappingProxyType({"max": "min", "min": "max", "any": "all", "all": "any"})
_EMPTY: Final = (ast.Tuple, ast.List, ast.Dict, ast.Set, ast.ListComp, ast.DictComp, ast.SetComp, ast.GeneratorExp)
_SYMMETRIC: Final = ("max", "min")
_TOLD_ONLY: Final = ("__repr__", "__str__")
"""Methods whose result only people read."""

Change = Callable[[ast.AST], ast.AST]


@dataclass(frozen=True, slots=True)
class Slip:
    """A change of one node of the syntax tree.

    `function` is the outermost function around the node, and `node` is the node's number there.
    """

    module: str
    function: str
    node: int
    operator: str
    line: int
    before: str
    after: str

    def __str__(self) -> str:
        before, after = self.before.partition("\n")[0], self.after.partition("\n")[0]
        return f"{self.module}:{self.function} {self.operator}: {before} -> {after} (line {self.line})"

    @property
    def key(self) -> str:
        """Return a name that stays the same when the module changes elsewhere."""
        return f"{self.module}:{self.function} {self.operator}: {self.before} -> {self.after}"

    @property
    def identity(self) -> str:
        """Return a name that no other slip has. It stays the same when other functions change."""
        return f"{self.key} [{self.node}]"


def slips(module: ModuleType) -> Iterator[Slip]:
    """Yield every slip that the operators find in the functions of a module, ordered by line."""
    for name, function in functions(tree_of(module)):
        if name.rpartition(".")[2] in _TOLD_ONLY:
            continue
        nodes = list(_nodes(function))
        guards = {id(node.value) for node in nodes if isinstance(node, ast.keyword) and node.arg == "strict"}
        for number, node in enumerate(nodes):
            if id(node) in guards:
                continue  # `zip` only guards against our own mistakes
            for operator, change in _changes(node):
                before, after = ast.unparse(node), ast.unparse(change(_copy(node)))
                if before != after:  # a change may do nothing, for example swap two equal arguments
                    yield Slip(module.__name__, name, number, operator, getattr(node, "lineno", 0), before, after)


def planted(module: ModuleType, slip: Slip) -> ast.Module:
    """Return the module's tree with the slip in it."""
    tree = tree_of(module)
    target = places(tree, slip)[slip.node]
    change = next(
        change
        for operator, change in _changes(target)
        if operator == slip.operator and ast.unparse(change(_copy(target))) == slip.after
    )
    _Replacing(target, change(_copy(target))).visit(tree)
    return ast.fix_missing_locations(tree)


def lines(module: ModuleType, slip: Slip) -> frozenset[int]:
    """Return some lines of the module. Python runs at least one of them whenever it runs the changed code."""
    nodes = places(tree_of(module), slip)
    target = nodes[slip.node]
    statement = next(
        each
        for each in reversed(nodes[: slip.node + 1])
        if isinstance(each, ast.stmt) and any(inner is target for inner in ast.walk(each))
    )
    body = getattr(statement, "body", None) or [each for case in getattr(statement, "cases", ()) for each in case.body]
    last = body[0].lineno - 1 if body else statement.end_lineno or statement.lineno
    own = [node for node in ast.walk(target) if isinstance(node, ast.expr)] if target is not statement else []
    found = [range(statement.lineno, max(statement.lineno, last) + 1)]
    found += [range(node.lineno, (node.end_lineno or node.lineno) + 1) for node in own]
    return frozenset(line for each in found for line in each)


def places(tree: ast.Module, slip: Slip) -> list[ast.AST]:
    """Return the nodes of the slip's function in the order in which slips count them."""
    return list(_nodes(dict(functions(tree))[slip.function]))


def _nodes(function: Function) -> Iterator[ast.AST]:
    """Yield the nodes of a function's body in a fixed order. Skip messages, docstrings and annotations."""
    waiting: list[ast.AST] = list(reversed(function.body))
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Raise | ast.JoinedStr) or (
            isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        ):
            continue
        yield node
        skipped = {"annotation", "returns", "decorator_list"}
        inner = [value for name, value in ast.iter_fields(node) if name not in skipped]
        children = [child for value in inner for child in (value if isinstance(value, list) else [value])]
        waiting.extend(reversed([child for child in children if isinstance(child, ast.AST)]))


def _changes(node: ast.AST) -> Iterator[tuple[str, Change]]:
    for operator, applies, change in _OPERATORS:
        if applies(node):
            yield operator, change
    if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
        for sibling in _siblings().get(node.attr, ()):
            yield "other field", partial(_set, attr=sibling)


def _copy(node: ast.AST) -> ast.AST:
    return ast.parse(ast.unparse(node), mode="exec").body[0] if isinstance(node, ast.stmt) else _expression(node)


def _expression(node: ast.AST) -> ast.AST:
    if isinstance(node, ast.comprehension):
        made = ast.parse(f"[0 {ast.unparse(node)}]", mode="eval").body
        return made.generators[0] if isinstance(made, ast.ListComp) else node
    if isinstance(node, ast.expr):
        return ast.parse(ast.unparse(node), mode="eval").body
    return node


def _set(node: ast.AST, **fields: object) -> ast.AST:
    for name, value in fields.items():
        setattr(node, name, value)
    return node


class _Replacing(ast.NodeTransformer):
    def __init__(self, target: ast.AST, made: ast.AST) -> None:
        self._target = target
        self._made = made

    def visit(self, node: ast.AST) -> ast.AST:
        if node is self._target:
            return ast.copy_location(self._made, node)
        return super().generic_visit(node)


# ---------------------------------------------------------------------- the operators


def _flips(node: ast.AST) -> bool:
    return isinstance(node, ast.Compare) and len(node.ops) == 1


def _flip(node: ast.AST) -> ast.AST:
    assert isinstance(node, ast.Compare)  # noqa: S101 - the operator applies to nothing else
    return _set(node, ops=[_FLIPPED[type(node.ops[0])]()])


def _has_test(node: ast.AST) -> bool:
    return isinstance(node, ast.If | ast.IfExp | ast.While)


def _negate(node: ast.AST) -> ast.AST:
    assert isinstance(node, ast.If | ast.IfExp | ast.While)  # noqa: S101
    return _set(node, test=ast.UnaryOp(ast.Not(), node.test))


def _filters(node: ast.AST) -> bool:
    return isinstance(node, ast.comprehension) and bool(node.ifs)


def _is_number(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and type(node.value) is int


def _next_number(node: ast.AST) -> ast.AST:
    assert isinstance(node, ast.Constant) and isinstance(node.value, int)  # noqa: S101, PT018
    return _set(node, value=node.value + 1)


def _is_truth(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, bool)


def _adds(node: ast.AST) -> bool:
    return isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Sub)


def _other_sign(node: ast.AST) -> ast.AST:
    assert isinstance(node, ast.BinOp)  # noqa: S101
    return _set(node, op=ast.Sub() if isinstance(node.op, ast.Add) else ast.Add())


def _joins(node: ast.AST) -> bool:
    return isinstance(node, ast.BoolOp)


def _other_join(node: ast.AST) -> ast.AST:
    assert isinstance(node, ast.BoolOp)  # noqa: S101
    return _set(node, op=ast.Or() if isinstance(node.op, ast.And) else ast.And())


def _denies(node: ast.AST) -> bool:
    return isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not)


def _affirm(node: ast.AST) -> ast.AST:
    assert isinstance(node, ast.UnaryOp)  # noqa: S101
    return ast.Call(ast.Name("bool", ast.Load()), [node.operand], [])


def _calls(node: ast.AST) -> bool:
    called = ast.unparse(node.value.func) if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) else ""
    return bool(called) and "super()" not in called and called != "assert_never"  # it is never called


def _assigns_a_field(node: ast.AST) -> bool:
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AugAssign) else []
    return bool(targets) and all(isinstance(target, ast.Attribute | ast.Subscript) for target in targets)


def _takes_two(node: ast.AST) -> bool:
    if not isinstance(node, ast.Call) or any(isinstance(arg, ast.Starred) for arg in node.args):
        return False
    return len(node.args) > 1 and ast.unparse(node.func) not in _SYMMETRIC


def _swap(node: ast.AST) -> ast.AST:
    assert isinstance(node, ast.Call)  # noqa: S101
    first, second, *rest = node.args
    return _set(node, args=[second, first, *rest])


def _chooses(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _OTHER


def _choose_other(node: ast.AST) -> ast.AST:
    assert isinstance(node, ast.Call) and isinstance(node.func, ast.Name)  # noqa: S101, PT018
    return _set(node, func=ast.Name(_OTHER[node.func.id], ast.Load()))


def _returns_many(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.Return)
        and isinstance(node.value, _EMPTY)
        and bool(ast.unparse(node.value).strip("()[]{}"))
    )


def _return_none_of_them(node: ast.AST) -> ast.AST:
    assert isinstance(node, ast.Return)  # noqa: S101
    made: ast.expr = ast.Tuple([], ast.Load())
    if isinstance(node.value, ast.List | ast.ListComp):
        made = ast.List([], ast.Load())
    elif isinstance(node.value, ast.Dict | ast.DictComp):
        made = ast.Dict([], [])
    elif isinstance(node.value, ast.Set | ast.SetComp):
        made = ast.Call(ast.Name("set", ast.Load()), [], [])
    return _set(node, value=made)


_OPERATORS: Final[tuple[tuple[str, Callable[[ast.AST], bool], Change], ...]] = (
    ("comparison flipped", _flips, _flip),
    ("negation", _has_test, _negate),
    ("negation dropped", _denies, _affirm),
    ("and for or", _joins, _other_join),
    ("filter dropped", _filters, lambda node: _set(node, ifs=[])),
    ("off by one", _is_number, _next_number),
    ("other truth", _is_truth, lambda node: _set(node, value=not getattr(node, "value", False))),
    ("other sign", _adds, _other_sign),
    ("other choice", _chooses, _choose_other),
    ("dropped call", _calls, lambda _: ast.Pass()),
    ("dropped assignment", _assigns_a_field, lambda _: ast.Pass()),
    ("swapped arguments", _takes_two, _swap),
    ("empty for full", _returns_many, _return_none_of_them),
)


@cache
def _siblings() -> Mapping[str, tuple[str, ...]]:
    """Return, for each field name, the fields that could be confused with it: fields of the same class and type.

    If several classes have a field of this name, only fields of all these classes are listed.
    """
    from spec.sharpness.slips import modules  # noqa: PLC0415 - it finds its modules by this one's operators

    found: dict[str, list[set[str]]] = defaultdict(list)
    for module in modules():
        for node in tree_of(module).body:
            if isinstance(node, ast.ClassDef):
                fields = {
                    inner.target.id: ast.unparse(inner.annotation)
                    for inner in node.body
                    if isinstance(inner, ast.AnnAssign) and isinstance(inner.target, ast.Name)
                }
                for name, kind in fields.items():
                    found[name].append({other for other, same in fields.items() if same == kind and other != name})
    return {name: tuple(sorted(set.intersection(*others))) for name, others in found.items()}


# ------------------------------------------------------------------
# Finds the core's modules and their slips, and plants a slip.


ROOT: Final = Path(*checkpointing.__path__).parent


@cache
def modules() -> tuple[ModuleType, ...]:
    """Return all modules of the core, ordered by name."""
    names = sorted(found.name for found in pkgutil.walk_packages(checkpointing.__path__, "checkpointing."))
    return tuple(importlib.import_module(name) for name in names)


def all_slips() -> tuple[Slip, ...]:
    """Return every slip that can be planted."""
    return tuple(slip for module in modules() for slip in slips(module))


@cache
def lines_of(slip: Slip) -> tuple[str, frozenset[int]]:
    """Return the slip's file, and lines of which Python runs at least one whenever it runs what the slip changes.

    The file is a path from the root of the project.
    """
    module = importlib.import_module(slip.module)
    return str(Path(str(module.__file__)).relative_to(ROOT)), lines(module, slip)


def plant(slip: Slip) -> None:
    """Give the slip's function the changed code for the rest of this process."""
    module = importlib.import_module(slip.module)
    plant_code(module, planted(module, slip))


@cache
def equivalent() -> Mapping[str, str]:
    """Return the slips that change nothing visible, each with the reason. They are not counted."""
    rows = tomllib.loads((Path(__file__).parent / "equivalent.toml").read_text(encoding="utf-8"))["slip"]
    return {row["slip"]: row["why"] for row in rows}


def is_equivalent(slip: Slip) -> bool:
    return slip.key in equivalent() or slip.identity in equivalent()
