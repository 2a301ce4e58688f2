"""Finds out where a slip would make a difference: a changed expression often has the same value as the code's own.

If the core runs `a < b` only where `a` and `b` differ, `a <= b` cannot be noticed there, though its line runs. So
probes are put into the core before a trial runs on it. A probe evaluates both expressions, goes on with the core's own
value, and records whether the values differ. Only expressions that change nothing are evaluated a second time. A slip
without a probe counts as one that makes a difference wherever its lines run.
"""

import ast
import importlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from types import CodeType, FunctionType, ModuleType
from typing import Final, TypeVar

from spec.bugs.plant import code_in, function_of, tree_of
from spec.sharpness.slips import Slip, all_slips, places

_ALWAYS: Final = ("negation", "negation dropped", "off by one", "other truth", "dropped call")
"""Operators whose slips change the value each time, or whose effect cannot be foreseen."""
_ORDERS: Final = (ast.Lt, ast.LtE, ast.Gt, ast.GtE)
_HARMLESS: Final = frozenset({"len", "isinstance", "max", "min", "bool", "int", "str", "abs", "range", "type"})
_READING: Final = frozenset({"get", "items", "keys", "values", "isdisjoint", "startswith", "endswith"})
_EVALUATED: Final = (
    ast.Name,
    ast.Attribute,
    ast.Constant,
    ast.Compare,
    ast.BoolOp,
    ast.UnaryOp,
    ast.BinOp,
    ast.Subscript,
    ast.Slice,
    ast.Tuple,
    ast.Starred,
    ast.IfExp,
    ast.expr_context,
    ast.operator,
    ast.unaryop,
    ast.boolop,
    ast.cmpop,
)
_PROBE: Final = "_probe_of_a_slip"
_Wrap = Callable[[ast.expr], ast.expr]
T = TypeVar("T")


class Probes:
    """The probes of some slips, ready to be put into the core."""

    def __init__(self, slips: Iterable[Slip]) -> None:
        by_module: dict[str, list[Slip]] = defaultdict(list)
        for slip in slips:
            by_module[slip.module].append(slip)
        self.slips: frozenset[str] = frozenset()
        """The identities of the slips that have a probe."""
        self._codes: list[tuple[FunctionType, CodeType]] = []
        self._modules: list[ModuleType] = []
        for name in sorted(by_module):
            self._prepare(importlib.import_module(name), by_module[name])

    @contextmanager
    def planted(self) -> Iterator[set[str]]:
        """Put the probes into the core while the context is open.

        Yield the set of slips for which they record a difference.
        """
        noted: set[str] = set()
        for module in self._modules:
            setattr(module, _PROBE, _Noting(noted))
        known = [(function, function.__code__) for function, _ in self._codes]
        for function, code in self._codes:
            function.__code__ = code
        try:
            yield noted
        finally:
            for function, code in known:
                function.__code__ = code

    def _prepare(self, module: ModuleType, slips: list[Slip]) -> None:
        tree = tree_of(module)
        wraps: dict[ast.AST, list[_Wrap]] = defaultdict(list)
        probed: list[Slip] = []
        for slip in slips:
            found = dict(_wraps(places(tree, slip)[slip.node], slip))
            for node, wrap in found.items():
                wraps[node].append(wrap)
            probed += [slip] if found else []
        if not probed:
            return
        _Wrapping(wraps).visit(tree)
        made = compile(ast.fix_missing_locations(tree), module.__file__ or "", "exec")
        self.slips |= {slip.identity for slip in probed}
        self._modules.append(module)
        for name in {slip.function for slip in probed}:
            function = function_of(module, name)
            self._codes.append((function, code_in(made, function)))


@cache
def probes() -> Probes:
    """Return the probes of all slips. A process that is forked later has them too."""
    return Probes(all_slips())


class _Noting:
    """The object that a probe calls. Each method returns the value with which the core goes on."""

    def __init__(self, noted: set[str]) -> None:
        self._noted = noted

    def differs(self, slip: str, own: T, other: Callable[[], object]) -> T:
        if slip not in self._noted:
            try:
                value = other()
                if value is not own and not (type(value) is type(own) and value == own):
                    self._noted.add(slip)
            except Exception:  # noqa: BLE001 - the slip would raise, so it makes a difference
                self._noted.add(slip)
        return own

    def rejects(self, slip: str, condition: T) -> T:
        if not condition:
            self._noted.add(slip)
        return condition

    def full(self, slip: str, value: T) -> T:
        if value:
            self._noted.add(slip)
        return value


class _Wrapping(ast.NodeTransformer):
    """Wraps nodes, the inner ones first."""

    def __init__(self, wraps: Mapping[ast.AST, list[_Wrap]]) -> None:
        self._wraps = wraps

    def visit(self, node: ast.AST) -> ast.AST:
        made = super().generic_visit(node)
        for wrap in self._wraps.get(node, ()):
            if isinstance(made, ast.expr):
                made = ast.copy_location(wrap(made), node)
        return made


def _wraps(node: ast.AST, slip: Slip) -> Iterator[tuple[ast.AST, _Wrap]]:
    """Yield the nodes to wrap for a slip of this node, each with its wrapper. A slip without a probe has none."""
    match node:
        case _ if slip.operator in _ALWAYS:
            return
        case ast.comprehension() if slip.operator == "filter dropped":
            yield from ((each, lambda made: _call("rejects", slip, made)) for each in node.ifs)
        case ast.Return(value=ast.ListComp() | ast.DictComp() | ast.SetComp() as value):
            yield value, lambda made: _call("full", slip, made)
        case ast.AugAssign(op=ast.Add() | ast.Sub() | ast.BitOr()):
            yield node.value, lambda made: _call("full", slip, made)
        case ast.Assign(targets=[ast.Attribute() | ast.Subscript() as target]) if is_harmless(target):
            before = ast.parse(ast.unparse(target), mode="eval").body
            yield node.value, lambda made: _call("differs", slip, made, _later(before))
        case ast.Call(args=[first, second, *_]) if slip.operator == "swapped arguments" and is_harmless(second):
            other = ast.parse(ast.unparse(second), mode="eval").body
            yield first, lambda made: _call("differs", slip, made, _later(other))
        case ast.Compare(ops=[op]) if not isinstance(op, _ORDERS):
            return
        case ast.expr() if slip.operator != "swapped arguments":
            changed = ast.parse(slip.after, mode="eval").body
            if is_harmless(changed):
                yield node, lambda made: _call("differs", slip, made, _later(changed))


def is_harmless(node: ast.AST) -> bool:
    """Return whether the expression certainly changes nothing when it is evaluated once more."""
    for each in ast.walk(node):
        if isinstance(each, ast.Call):
            by_name = isinstance(each.func, ast.Name) and each.func.id in _HARMLESS and len(each.args) > 1
            of_one = isinstance(each.func, ast.Name) and each.func.id in {"len", "bool", "int", "str", "abs", "type"}
            reads = isinstance(each.func, ast.Attribute) and each.func.attr in _READING
            if not (by_name or of_one or reads) or each.keywords:
                return False
        elif not isinstance(each, _EVALUATED):
            return False
    return True


def _call(method: str, slip: Slip, *args: ast.expr) -> ast.Call:
    probe = ast.Attribute(ast.Name(_PROBE, ast.Load()), method, ast.Load())
    return ast.Call(probe, [ast.Constant(slip.identity), *args], [])


def _later(node: ast.expr) -> ast.Lambda:
    return ast.Lambda(ast.arguments([], [], None, [], [], None, []), node)
