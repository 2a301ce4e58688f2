"""A program that runs two ticks in a mount namespace of its own, on a disk with a few hundred KiB free.

`python small_disk.py FOLDER FREE_KIB` mounts a small file system at FOLDER and fills it until FREE_KIB are free. It
runs a tick, makes room, runs another tick, and prints as JSON the messages of both ticks and the rows of the tables. If
FREE_KIB is `read-only`, the file system is read-only during the first tick instead.
"""

import faulthandler
import json
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

from jobs.tick.tick import run_tick
from jobs.tick.tick_settings import RuntimeSettings
from jobs.warehouse.refusals import TickRefusedError
from tests.scenarios.runtime.sequence_job import LocalEngine, build, read_cut

SIZE_KIB = 2_048
TICK_S = 45
"""If a tick hangs for so many seconds, the program prints the stack of each thread on stderr and ends."""


def tick(root: Path) -> str:
    """Run a tick in a forked process, whose end releases its hold on the job. Return the tick's message.

    If the process dies, this program ends with an error.
    """
    with ProcessPoolExecutor(1, get_context("fork")) as pool:
        return pool.submit(tick_here, root).result()


def tick_here(root: Path) -> str:
    faulthandler.enable()
    faulthandler.dump_traceback_later(TICK_S, exit=True)
    try:
        report = run_tick(build(), RuntimeSettings(warehouse=root), engine=LocalEngine())
    except TickRefusedError as refused:
        return f"refused: {refused}"
    return f"{report.outcome.value}: {report.message}"


def fill(folder: Path, free_kib: int) -> Path:
    ballast = folder / "ballast"
    with ballast.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(1024))
        except OSError:
            file.truncate(file.tell() // 1024 * 1024 - free_kib * 1024)
    return ballast


def main() -> None:
    folder, free = Path(sys.argv[1]), sys.argv[2]
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={SIZE_KIB}k", "tmpfs", str(folder)], check=True)
    root = folder / "warehouse"
    root.mkdir()
    if free == "read-only":
        subprocess.run(["mount", "-o", "remount,ro", str(folder)], check=True)
        first = tick(root)
        subprocess.run(["mount", "-o", "remount,rw", str(folder)], check=True)
    else:
        ballast = fill(folder, int(free))
        first = tick(root)
        ballast.unlink()
    said = [first, tick(root)]
    sys.stdout.write(json.dumps({"said": said, "rows": read_cut(root)}) + "\n")


if __name__ == "__main__":
    main()
