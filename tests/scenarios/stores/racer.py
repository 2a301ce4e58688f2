"""Runs as a process of its own that appends, publishes or dies on command: `racer.py ROOT`.

It writes `ready` when all imports are done. Then it carries out each line `[verb, arguments]`, and answers with a line
of JSON.
"""

import json
import os
import signal
import sys
from pathlib import Path

from checkpointing.graph import TableMode
from checkpointing.handles import FileHandle
from checkpointing.identifiers import CheckpointId, Generation, TableName, job_name
from checkpointing.messages import Publication
from checkpointing.metadata.paths import ProtocolPaths
from checkpointing.metadata.record import Claim, Holder
from jobs.warehouse.checkpoints import Appended, CheckpointStore
from jobs.warehouse.delta_log import CommitMoment
from jobs.warehouse.publisher import Publisher
from jobs.warehouse.tables import TableLogs
from jobs.warehouse.warehouse import Warehouse


def _claim(generation: int, host: str) -> Claim:
    return Claim(
        generation=Generation(generation),
        holder=Holder(host=host, pid=1, started="s"),
        first_id=CheckpointId(1),
        last_id=CheckpointId(1000),
        at_ms=1,
        nonce=f"claim-{generation}-{host}",
    )


def _die_at(moment: CommitMoment | None):
    def hook(now: CommitMoment) -> None:
        if now is moment:
            os.kill(os.getpid(), signal.SIGKILL)

    return hook


def _append_many(warehouse: Warehouse, host: str, count: int) -> list[int]:
    """Append `count` claims, each at the version that was seen last. Answer with the versions that won."""
    store = CheckpointStore(warehouse)
    won: list[int] = []
    for number in range(count):
        version, _ = store.observe()
        result = store.append(_claim(1, f"{host}-{number}"), version)
        won += [result.version] if isinstance(result, Appended) else []
    return won


def _append_once(warehouse: Warehouse, host: str, at_version: int) -> str:
    return type(CheckpointStore(warehouse).append(_claim(1, host), at_version)).__name__


def _append_and_die(warehouse: Warehouse, moment: str, at_version: int) -> None:
    CheckpointStore(warehouse, hook=_die_at(CommitMoment(moment))).append(_claim(7, "zombie"), at_version)


def _publish(warehouse: Warehouse, moment: str, checkpoint: int, mode: str, table: str, files: list) -> int:
    handles = tuple(FileHandle(*file) for file in files)
    publication = Publication(TableName(table), TableMode(mode), adds=handles, files=handles)
    hook = _die_at(CommitMoment(moment) if moment != "never" else None)
    return Publisher(warehouse, TableLogs(warehouse, hook=hook)).publish(publication, CheckpointId(checkpoint)).version


VERBS = {
    "append_many": _append_many,
    "append_once": _append_once,
    "append_and_die": _append_and_die,
    "publish": _publish,
}


def main() -> None:
    """Carry out each line until there are no more."""
    warehouse = Warehouse(Path(sys.argv[1]), ProtocolPaths(job_name("flights")))
    print("ready", flush=True)
    for line in sys.stdin:
        verb, arguments = json.loads(line)
        print(json.dumps(VERBS[verb](warehouse, *arguments)), flush=True)


if __name__ == "__main__":
    main()
