"""Texts that a user meets speak of things, not of the ids by which this project counts its features."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer

from jobs.cli.main import app
from orchestration.definitions import defs
from orchestration.launchpad import launchpad_schema
from tidemark.dagster import CheckpointedPipelineComponent

ROOT = Path(__file__).resolve().parents[2]
CODE = re.compile(r"\([A-P]\d{1,2}(, ?[A-P]\d{1,2})*\)")


def commands(command, path) -> Iterator[str]:
    """Yield every help text of a command and of those below it."""
    yield from (f"{path}: {text}" for text in (command.help, command.short_help) if text)
    yield from (f"{path}: {option.help}" for option in command.params if getattr(option, "help", None))
    for name, below in getattr(command, "commands", {}).items():
        yield from commands(below, f"{path} {name}")


def shown_in_dagster() -> Iterator[str]:
    """Yield the descriptions of assets, checks, jobs, schedules, sensors, launchpad fields and of the component."""
    graph = defs.resolve_asset_graph()
    yield from (f"{key}: {graph.get(key).description}" for key in graph.get_all_asset_keys())
    yield from (f"{key}: {graph.get_check_spec(key).description}" for key in graph.asset_check_keys)
    repository = defs.get_repository_def()
    shown = (*repository.get_all_jobs(), *repository.schedule_defs, *repository.sensor_defs)
    yield from (f"{each.name}: {each.description}" for each in shown)
    yield from (f"{name}: {field.description}" for name, field in launchpad_schema().items())
    yield from (f"{name}: {field.description}" for name, field in CheckpointedPipelineComponent.model_fields.items())


def messages() -> Iterator[str]:
    """Yield the texts in the product's code that are no docstrings."""
    for package in ("checkpointing", "jobs", "orchestration", "tidemark"):
        for path in (ROOT / package).rglob("*.py"):
            tree = ast.parse(path.read_text(encoding="utf-8"))
            alone = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
            for node in ast.walk(tree):
                if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in alone:
                    yield f"{path.relative_to(ROOT)}:{node.lineno}: {node.value}"


@pytest.mark.parametrize(
    "texts",
    [lambda: commands(typer.main.get_command(app), "tidemark"), shown_in_dagster, messages],
    ids=["command line", "dagster", "messages"],
)
def test_no_text_names_a_feature_by_its_id(texts):
    """Users do not know what (K4) means."""
    found = list(texts())
    assert len(found) > 40
    assert [] == [text for text in found if CODE.search(text)]


@pytest.mark.parametrize("makefile", ["Makefile", "jobs/init/template/Makefile.template"])
def test_dagster_keeps_all_its_folders_together(makefile):
    """`make dev` makes .dagster Dagster's home, for no setting moves the folders `logs` and `.logs_queue` elsewhere."""
    said = (ROOT / makefile).read_text()
    assert re.search(r"ln -sf \.\./dagster.yaml \.dagster/dagster.yaml && DAGSTER_HOME=\S+/\.dagster\"? ", said)
