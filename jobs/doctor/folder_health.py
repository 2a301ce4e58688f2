"""Checks folders: what the folders of the sources hold, and whether the next tick can write those of the job."""

from collections.abc import Callable, Iterator, Mapping

from checkpointing.commit.fencing import newest_checkpoint
from checkpointing.identifiers import VertexId
from checkpointing.metadata.record import Row
from jobs.doctor.findings import Finding, Section
from jobs.runtime.input_look import InputLook, look_at_input
from jobs.sources.port import Source
from jobs.stores.obstacles import kind_of, obstacles
from jobs.stores.warehouse import Warehouse

Sources = Callable[[], Mapping[VertexId, Source]]
"""Loads a pipeline and returns its sources: a user's code, which may raise."""


def no_sources() -> Mapping[VertexId, Source]:
    """Return no sources, for an unknown pipeline."""
    return {}


def input_sections(sources: Sources, rows: tuple[Row, ...]) -> Iterator[Section]:
    """Yield a section for each source of files; nothing for a pipeline without any."""
    try:
        looks = look_at_input(sources(), newest_checkpoint(rows))
    except Exception as error:  # noqa: BLE001 - a user's code, and the next tick would meet it too
        first = (str(error).splitlines() or [""])[0]
        what = f"the pipeline cannot be loaded, so its input was not looked at: {first}"
        yield Section("input", (), (Finding(what, "correct the pipeline's code"),))
        return
    if looks:
        seen = tuple((str(look.source), _seen(look)) for look in looks)
        yield Section("input", seen, tuple(Finding(*told) for look in looks for told in look.findings()))


def _seen(look: InputLook) -> str:
    folder = look.folder
    passed = f", {folder.count} passed over" if folder.count else ""
    return f"{folder.files} files in {folder.splits} splits of {folder.root}{passed}"


def place_section(warehouse: Warehouse) -> Section:
    """Return the section about places because of which the next tick would be refused. It writes no named file."""
    found = tuple(Finding(each.what, each.way_out) for each in obstacles(warehouse))
    return Section("places", (("writable", "no" if found else "yes"),), (*found, *_lease(warehouse)))


def _lease(warehouse: Warehouse) -> Iterator[Finding]:
    path = warehouse.path(warehouse.paths.lease)
    kind = kind_of(path)
    if kind not in {None, "a file"}:
        what = f"the lease {path} is {kind}, not a file: ticks ignore it"
        yield Finding(what, f"rm -r {path}")
