"""Checks what a tick reads and writes: how far each source is ahead of the job, and the folders on both sides."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

from checkpointing.commit.fencing import newest_checkpoint
from checkpointing.identifiers import VertexId
from checkpointing.metadata.record import Row
from jobs.doctor.findings import Finding, Section
from jobs.runtime.discovery import Discovered, discover
from jobs.runtime.input_look import InputLook, look_at_input
from jobs.showing.quantities import count, seconds
from jobs.sources.port import DescribesItself, ReportsHealth, Source, begins_of, every_layer, layers
from jobs.stores.obstacles import kind_at, obstacles
from jobs.stores.warehouse import Warehouse

Sources = Callable[[], Mapping[VertexId, Source]]
"""Loads a pipeline and returns its sources: a user's code, which may raise."""


_AS_SAID: Final = "do what the message says; a tick would meet it too"


def no_sources() -> Mapping[VertexId, Source]:
    """Return no sources, for an unknown pipeline."""
    return {}


def input_sections(sources: Sources, rows: tuple[Row, ...]) -> Iterator[Section]:
    """Yield a section about the sources; nothing for a pipeline without any."""
    newest = newest_checkpoint(rows)
    try:
        known = sources()
        looks = look_at_input(known, newest)
    except Exception as error:  # noqa: BLE001 - a user's code, and the next tick would meet it too
        first = (str(error).splitlines() or [""])[0]
        what = f"the pipeline cannot be loaded, so its input was not looked at: {first}"
        yield Section("input", (), (Finding(what, "correct the pipeline's code"),))
        return
    if not known:
        skipped = "sources and sinks: the code of the pipeline is not registered here"
        yield Section("input", not_looked=(skipped,))
        return
    values: dict[str, object] = {}
    seen: list[tuple[str, str]] = []
    findings = [Finding(*told) for look in looks for told in look.findings()]
    for name, source in known.items():
        said = [*_described(source, [look for look in looks if look.source == name])]
        try:
            found = discover({name: source}, newest)[name]
            said.append(_behind(found))
            values[str(name)] = {
                "unread": found.any,
                "rows": found.rows,
                "seconds": found.seconds,
                "ended": found.ended,
            }
            said += (each.health() for each in every_layer(source) if isinstance(each, ReportsHealth))
        except Exception as error:  # noqa: BLE001 - a user's code, and the next tick would meet it too
            first = (str(error).splitlines() or [type(error).__name__])[0]
            findings.append(Finding(f"source {name} cannot be looked at: {first}", _AS_SAID))
            values[str(name)] = None
        seen.append((str(name), "; ".join(filter(None, said))))
    yield Section("input", tuple(seen), tuple(findings), values)


def _described(source: Source, looks: Sequence[InputLook]) -> Iterator[str]:
    about = next((each.described() for each in layers(source) if isinstance(each, DescribesItself)), None)
    if about is not None and (begins_of(source) or not looks):
        yield f"{about.kind}: {about.place}"
    for folder in (look.folder for look in looks):
        passed = f", {folder.count} passed over" if folder.count else ""
        yield f"{folder.files} files in {folder.splits} splits of {folder.root}{passed}"


def _behind(found: Discovered) -> str:
    """Return how far the job is behind a source."""
    if not found.any:
        return "has ended" if found.ended else "nothing unread"
    rows = "unread rows, not counted" if found.rows is None else f"{count(found.rows)} rows unread"
    return rows if found.seconds is None else f"{rows}, the oldest since {seconds(round(found.seconds * 1000))}"


def place_section(warehouse: Warehouse) -> Section:
    """Return the section about places because of which the next tick would be refused. It writes no named file."""
    found = tuple(Finding(each.what, each.way_out) for each in obstacles(warehouse, thorough=True))
    seen = (("writable", "no" if found else "yes"),)
    return Section("places", seen, (*found, *_lease(warehouse)), {"writable": not found})


def _lease(warehouse: Warehouse) -> Iterator[Finding]:
    name = warehouse.paths.lease
    kind = kind_at(warehouse, name)
    if kind not in {None, "a file"}:
        what = f"the lease {warehouse.place(name)} is {kind}, not a file: ticks ignore it"
        yield Finding(what, f"rm -r {warehouse.place(name)}")
