"""Finds out by an AST walk which definitions of the core a product run can reach, and which classes it constructs.

The walk begins with all code of `jobs`, `orchestration` and `tidemark`. It follows names into `checkpointing`, from
definition to definition. It does not look at `spec` and `tests`. Three rules make it more exact than a walk over
imports:

- A method is reached if its class is, and if reached code calls a method of this name or passes it on. A name that is
  also a field of some class does not count as passed on. A property is reached wherever reached code reads its name.
- The arm `case Fact():` is reached once reached code constructs that fact.
- An annotation, `isinstance` and a pattern name a class. They do not construct it.

Code that the walk calls reached may still be dead, for example if two classes have a method of one name. Code that it
calls unreached is certainly dead.
"""

import ast
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from tests.style.test_style import module, sources, tree

USERS = ("jobs", "orchestration", "tidemark")
CORE = "checkpointing"
ASKING = {"isinstance", "issubclass"}
"""Functions that take a class and construct nothing."""
CALLED_BY_LIBRARIES = {"field_validator", "model_validator", "field_serializer", "model_serializer"}
"""The decorators of methods that pydantic calls."""


@dataclass(frozen=True)
class Definition:
    """A function, class, method or constant of the core. `name` is qualified within its module."""

    module: str
    name: str

    def __str__(self) -> str:
        return f"{self.module}.{self.name}"


@dataclass
class Names:
    """The meaning of each name at a module's top level: (module, name) of an import, or an own definition."""

    imported: dict[str, tuple[str, str | None]] = field(default_factory=dict)
    own: dict[str, ast.AST] = field(default_factory=dict)


def _names(code: ast.Module) -> Names:
    names = Names()
    for node in ast.walk(code):
        if isinstance(node, ast.Import):
            for alias in node.names:
                names.imported[alias.asname or alias.name] = (alias.name, None)
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                names.imported[alias.asname or alias.name] = (str(node.module), alias.name)
    for node in code.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.own[node.name] = node
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names.own.update((target.id, node) for target in targets if isinstance(target, ast.Name))
    return names


class Reach:
    """The walk: the sets `reached`, `constructed` and `heard` grow until nothing new is found.

    `heard` has the classes that patterns of `case` name.
    """

    def __init__(self, code: Mapping[str, ast.Module] | None = None, uses: Iterable[str] = ()) -> None:
        """Walk from every module of the users. `code` maps names to modules, by default those of the repository.

        `uses` are names of methods that the walk treats as called.
        """
        self._code = {module(path): tree(path) for path in sources(*USERS, CORE)} if code is None else dict(code)
        self._names = {name: _names(parsed) for name, parsed in self._code.items()}
        self.reached: set[Definition] = set()
        self.constructed: set[Definition] = set()
        self.heard: set[Definition] = set()
        self._read: set[str] = set()
        self._called: set[str] = set(uses)
        self._fields = {name for parsed in self._code.values() for name in _fields(parsed)}
        self._methods: dict[str, list[tuple[Definition, str, ast.FunctionDef]]] = defaultdict(list)
        self._arms: dict[Definition, list[tuple[str, list[ast.stmt]]]] = defaultdict(list)
        self._work: list[tuple[str, ast.AST]] = []
        self._work.extend((name, parsed) for name, parsed in self._code.items() if name.startswith(USERS))
        while self._work:
            self._visit(*self._work.pop())

    # -------------------------------------------------------------- what a name stands for

    def _resolve(self, where: str, name: str) -> Definition | str | None:
        """Return the definition in the core, or the name of a module. Return None for anything else."""
        names = self._names.get(where)
        if names is None:
            return None
        if name in names.own:
            return Definition(where, name)
        if name not in names.imported:
            return None
        origin, attribute = names.imported[name]
        if attribute is None:
            return origin
        if f"{origin}.{attribute}" in self._names:
            return f"{origin}.{attribute}"
        return self._resolve(origin, attribute)

    def _meant(self, where: str, node: ast.AST) -> Definition | None:
        if isinstance(node, ast.Name):
            found = self._resolve(where, node.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            origin = self._resolve(where, node.value.id)
            found = self._resolve(origin, node.attr) if isinstance(origin, str) else None
        else:
            return None
        return found if isinstance(found, Definition) else None

    # -------------------------------------------------------------- the walk

    def _visit(self, where: str, node: ast.AST) -> None:
        match node:
            case ast.Match():
                self._work.append((where, node.subject))
                for case in node.cases:
                    self._case(where, case)
                return
            case ast.Call() if isinstance(node.func, ast.Name) and node.func.id in ASKING:
                self._work.append((where, node.args[0]))
                return
            case ast.Call():
                self._construct(self._meant(where, node.func))
                if isinstance(node.func, ast.Attribute):
                    self._called.add(node.func.attr)
                    self._enter_all(node.func.attr, lambda _: True)
                    self._reach(self._meant(where, node.func))
                    self._work.extend((where, each) for each in [node.func.value, *node.args, *node.keywords])
                    return
            case ast.Attribute():
                self._use_attribute(node.attr)
                self._reach(self._meant(where, node))
            case ast.Name() if isinstance(node.ctx, ast.Load):
                self._reach(self._meant(where, node))
            case ast.Import() | ast.ImportFrom():
                return
        self._work.extend((where, child) for child in ast.iter_child_nodes(node))

    def _case(self, where: str, case: ast.match_case) -> None:
        body: list[ast.stmt] = case.body
        classes = [self._meant(where, pattern.cls) for pattern in _alternatives(case.pattern)]
        known = [found for found in classes if found is not None and found.module.startswith(CORE)]
        self.heard.update(known)
        if not classes or len(known) < len(classes) or any(found in self.constructed for found in known):
            self._work.extend((where, part) for part in [*body, *filter(None, [case.guard])])
            return
        for found in known:
            self._arms[found].append((where, [*body]))

    def _construct(self, found: Definition | None) -> None:
        if found is None or found in self.constructed:
            return
        node = self._names[found.module].own[found.name]
        if not isinstance(node, ast.ClassDef):
            return
        self.constructed.add(found)
        for where, body in self._arms.pop(found, ()):
            self._work.extend((where, statement) for statement in body)
        for base in node.bases:
            self._construct(self._meant(found.module, base))

    def _reach(self, found: Definition | None) -> None:
        if found is None or found in self.reached or not found.module.startswith(CORE):
            return
        self.reached.add(found)
        node = self._names[found.module].own[found.name]
        if not isinstance(node, ast.ClassDef):
            self._work.append((found.module, node))
            return
        self._work.extend((found.module, part) for part in [*node.bases, *node.decorator_list])
        for part in node.body:
            if isinstance(part, ast.FunctionDef):
                self._method(found, part)
            else:
                self._work.append((found.module, part))

    def _method(self, owner: Definition, node: ast.FunctionDef) -> None:
        entry = (Definition(owner.module, f"{owner.name}.{node.name}"), owner.module, node)
        called_by_library = any(ast.unparse(each).split("(")[0] in CALLED_BY_LIBRARIES for each in node.decorator_list)
        if node.name.startswith("__") or called_by_library or self._is_used(node):
            self._enter(*entry)
        else:
            self._methods[node.name].append(entry)

    def _is_used(self, node: ast.FunctionDef) -> bool:
        read = node.name in self._read and (_is_property(node) or node.name not in self._fields)
        return read or node.name in self._called

    def _use_attribute(self, name: str) -> None:
        self._read.add(name)
        self._enter_all(name, lambda node: _is_property(node) or name not in self._fields)

    def _enter_all(self, name: str, applies: Callable[[ast.FunctionDef], bool]) -> None:
        for entry in [each for each in self._methods[name] if applies(each[2])]:
            self._methods[name].remove(entry)
            self._enter(*entry)

    def _enter(self, method: Definition, where: str, node: ast.FunctionDef) -> None:
        self.reached.add(method)
        self._work.append((where, node))

    # -------------------------------------------------------------- classes, methods and functions

    def definitions(self) -> Iterator[tuple[Definition, ast.FunctionDef | ast.ClassDef]]:
        """Yield the public functions and classes of the core, and the public methods of the classes."""
        for where, names in self._names.items():
            for name, node in names.own.items() if where.startswith(CORE) else ():
                if name.startswith("_") or not isinstance(node, ast.FunctionDef | ast.ClassDef):
                    continue
                yield Definition(where, name), node
                for part in node.body if isinstance(node, ast.ClassDef) else ():
                    if isinstance(part, ast.FunctionDef) and not part.name.startswith("_"):
                        yield Definition(where, f"{name}.{part.name}"), part

    def effects(self) -> set[Definition]:
        """Return the members of every union of the core whose name ends in Effect."""
        found: set[Definition | None] = set()
        for where, names in self._names.items():
            for name, node in names.own.items():
                if where.startswith(CORE) and name.endswith("Effect") and isinstance(node, ast.Assign):
                    found |= {self._meant(where, part) for part in ast.walk(node.value)}
        return {each for each in found if each is not None and not each.name.endswith("Effect")}

    def docstrings(self) -> dict[str, str]:
        texts = {where: ast.get_docstring(parsed) for where, parsed in self._code.items() if where.startswith(CORE)}
        texts |= {str(found): ast.get_docstring(node) for found, node in self.definitions()}
        return {name: " ".join((text or "").split()) for name, text in texts.items()}


def _is_property(node: ast.FunctionDef) -> bool:
    return any(ast.unparse(each).endswith("property") for each in node.decorator_list)


def _fields(code: ast.Module) -> Iterator[str]:
    """Yield the names of annotated fields, and of attributes that methods set on `self`."""
    for node in ast.walk(code):
        if isinstance(node, ast.ClassDef):
            for part in node.body:
                if isinstance(part, ast.AnnAssign) and isinstance(part.target, ast.Name):
                    yield part.target.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr


def _alternatives(pattern: ast.pattern) -> list[ast.MatchClass]:
    """Return the class patterns of an arm. There are none if it has another pattern, which may match anything."""
    match pattern:
        case ast.MatchClass():
            return [pattern]
        case ast.MatchAs() if pattern.pattern is not None:
            return _alternatives(pattern.pattern)
        case ast.MatchOr():
            parts = [_alternatives(part) for part in pattern.patterns]
            return [] if not all(parts) else [found for part in parts for found in part]
        case _:
            return []
