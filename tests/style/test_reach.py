"""Every module of the core is there because a real run uses it: `jobs` or `orchestration` leads to it by imports."""

from tests.style.test_style import imported, module, sources

USERS = ("jobs", "orchestration", "tidemark")

WAITING = {
    "checkpointing.commit.sink_messages": "sinks outside Delta",
    "checkpointing.commit.two_phase_sink": "sinks outside Delta",
    "checkpointing.rescale": "operators with broadcast state",
    "checkpointing.rescale.operator_state": "operators with broadcast state",
}
"""Modules that no run reaches yet, and the feature that will reach them. Each says so in its own docstring."""


def reached() -> set[str]:
    """Return the modules that a run can load."""
    modules = {module(path): path for path in sources(*USERS, "checkpointing")}
    found: set[str] = set()
    open_ends = [name for name in modules if name.startswith(USERS)]
    while open_ends:
        name = open_ends.pop()
        if name in found:
            continue
        found.add(name)
        for full in imported(modules[name]):
            parts = full.split(".")
            prefixes = (".".join(parts[:count]) for count in range(1, len(parts) + 1))
            open_ends.extend(prefix for prefix in prefixes if prefix in modules)
    return found


def test_every_module_of_the_core_is_reached_by_a_run():
    """The spec and the tests do not count as users. What only Flink's own cases need lives in `spec/flink`."""
    core = {module(path) for path in sources("checkpointing")}
    assert sorted(WAITING) == sorted(core - reached())
