"""`tidemark doctor`: prints a page for people or JSON for programs, and ends with an exit code for scripts."""

import json
from dataclasses import replace
from typing import Final

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from jobs.cli.errors import ExitCode, with_pipeline
from jobs.cli.naming import sinks_of, sources_of, warehouse_of
from jobs.credentials import without_credentials
from jobs.doctor.examination import Examination, examine
from jobs.doctor.findings import Finding, Section
from jobs.launch import spark_config
from jobs.settings import Layer, resolve
from jobs.showing.quantities import plural

_VERDICTS: Final = {ExitCode.DONE: "healthy", ExitCode.FAILED: "findings", ExitCode.USAGE: "could_not_look"}


def doctor(pipeline: str, given: Layer, out: Console, *, verify: bool, as_json: bool) -> ExitCode:
    """Show whether a job is healthy: 0 if it is, 1 with findings, 2 if it cannot be examined, 4 if it never ran."""
    settings = resolve({}, given)
    warehouse = warehouse_of(pipeline, given)
    found = examine(
        warehouse,
        settings.reader_grace_ms,
        spark_config(settings),
        verify=verify,
        sources=lambda: sources_of(pipeline, given),
        sinks=lambda: sinks_of(pipeline, given),
    )
    found = _named(found, pipeline)
    if as_json:
        out.print(json.dumps(_document(found), indent=1), soft_wrap=True, markup=False, highlight=False)
    else:
        out.print(render_examination(found), soft_wrap=True)
    return _code(found) if found.has_run else ExitCode.NOT_THERE


def _named(found: Examination, typed: str) -> Examination:
    """Return the examination with commands that name the pipeline as the user typed it."""

    def section(was: Section) -> Section:
        said = [
            [without_credentials(with_pipeline(text, typed, found.job)) for text in (each.what, each.repair)]
            for each in was.findings
        ]
        seen = tuple((name, without_credentials(value)) for name, value in was.seen)
        return replace(was, seen=seen, findings=tuple(Finding(what, repair) for what, repair in said))

    return replace(found, sections=tuple(map(section, found.sections)))


def _code(found: Examination) -> ExitCode:
    """Return the exit code for a job that has run."""
    if not found.looked:
        return ExitCode.USAGE
    return ExitCode.FAILED if found.findings else ExitCode.DONE


def render_examination(found: Examination) -> RenderableType:
    """Return the page: what was seen, then each finding with the command that repairs it."""
    page = Table.grid(padding=(0, 2))
    for section in found.sections:
        page.add_row(Text(section.name, style="bold"), "", "")
        for name, value in section.seen:
            page.add_row("", name, Text(value))
    parts: list[RenderableType] = [page, _verdict(found)]
    parts += [Text(f"not looked at: {each}", style="dim") for section in found.sections for each in section.not_looked]
    for number, finding in enumerate(found.findings, start=1):
        parts.append(Text(f"{number}. {finding.what}"))
        parts.append(Text(f"   repair: {finding.repair}", style="bold"))
    return Group(*parts)


def _verdict(found: Examination) -> Text:
    where = f"{found.job} in {found.warehouse}"
    if not found.looked:
        return Text(f"{where} could not be looked at", style="bold red")
    if found.findings:
        return Text(f"{where}: {plural(len(found.findings), 'finding')}", style="bold yellow")
    skipped = ", except what was not looked at" if any(section.not_looked for section in found.sections) else ""
    return Text(f"{where} is healthy{skipped}", style="bold green")


def _document(found: Examination) -> dict[str, object]:
    return {
        "job": str(found.job),
        "warehouse": found.warehouse,
        "verdict": _VERDICTS[_code(found)],
        "sections": {section.name: dict(section.seen) for section in found.sections},
        "values": {section.name: dict(section.values) for section in found.sections},
        "not_looked": {section.name: list(section.not_looked) for section in found.sections if section.not_looked},
        "findings": [
            {"section": section.name, "what": finding.what, "repair": finding.repair}
            for section in found.sections
            for finding in section.findings
        ],
    }
