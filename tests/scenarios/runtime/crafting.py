"""Changes the rows of a warehouse behind Tidemark's back, as somebody does who hands a crafted copy to a victim."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tests.scenarios.runtime.sequence_job import at

Change = Callable[[dict[str, Any]], None]


def craft(root: Path, checkpoint: int, change: Change) -> None:
    """Change a row's JSON object in place; the log goes on naming the same files."""

    def in_text(entry: dict[str, Any]) -> None:
        if entry["checkpoint"] == checkpoint:
            payload = json.loads(entry["payload"])
            change(payload["row"])
            entry["payload"] = json.dumps(payload)

    _rewrite(at(root).path(at(root).paths.checkpoints), in_text)


def craft_column(root: Path, checkpoint: int, column: str, value: object) -> None:
    """Change a column that stands beside a row's text."""

    def in_column(entry: dict[str, Any]) -> None:
        if entry["checkpoint"] == checkpoint:
            entry[column] = value

    _rewrite(at(root).path(at(root).paths.checkpoints), in_column)


def craft_cut(root: Path, change: Change) -> None:
    _rewrite(at(root).path(at(root).paths.cuts), change)


def _rewrite(folder: Path, change: Change) -> None:
    for path in (folder / "_rows").iterdir():
        table = pq.read_table(path)
        entries = table.to_pylist()
        for entry in entries:
            change(entry)
        pq.write_table(pa.Table.from_pylist(entries, schema=table.schema), path)
