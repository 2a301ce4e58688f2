"""Checks the form of a case against the legend of its file, so that a typing error does not count as a failing door.

A legend describes the words of events and steps with their arguments, the kinds and the facts. Each problem is reported
with its step, so that the author of the case finds it.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

Legend = Mapping[str, Any]


@contextmanager
def named_step(index: int, word: object) -> Iterator[None]:
    """Add to any error raised inside at which step it happened."""
    try:
        yield
    except Exception as error:
        error.add_note(f"step {index} {word}")
        raise


def problems_of_form(legend: Legend, case: object) -> Iterator[str]:
    """Yield what is wrong with the form of a case."""
    if not isinstance(case, dict):
        yield f"a case is an object with a name, this is {_short(case)}"
        return
    if not isinstance(case.get("name"), str):
        yield "the case has no name"
    yield from _fields(legend, case)


def _fields(legend: Legend, case: Mapping[str, Any]) -> Iterator[str]:
    wanted, check = _form(legend)
    missing = [f"{field} must be {_ARTICLE[kind]}" for field, kind in wanted.items() if not _is(case.get(field), kind)]
    yield from missing
    if not missing:
        yield from check(legend, case)


def _form(legend: Legend) -> tuple[dict[str, type], Callable[[Legend, Mapping[str, Any]], Iterator[str]]]:
    if "modes" in legend and "events" in legend:
        return {"channels": int, "mode": str, "events": list, "expect": list, "asserted": dict}, _barrier_form
    if "events" in legend and "kinds" in legend:
        return {"kind": str, "given": dict, "events": list, "expect": list}, _events_form
    if "steps" in legend:
        return {"given": dict, "steps": list, "expect": list}, _steps_form
    return {"kind": str, "given": dict, "expect": dict}, _kind_form


_ARTICLE = {int: "a number", str: "a word", list: "a list", dict: "an object"}


def _is(value: object, kind: type) -> bool:
    return isinstance(value, kind) and not (kind is int and isinstance(value, bool))


# ---------------------------------------------------------------------- barrier cases


def _barrier_form(legend: Legend, case: Mapping[str, Any]) -> Iterator[str]:
    mode = case["mode"]
    if mode not in legend["modes"]:
        yield f"unknown mode {mode!r}; known: {', '.join(legend['modes'])}"
        return
    words = legend["events"].get(mode, legend["events"])
    for index, event in enumerate(case["events"]):
        problem = _word_problem(words, event) or _channel_problem(words, event, case["channels"])
        if problem is not None:
            yield f"step {index}: {problem}"
    unknown = sorted(set(case["asserted"]) - set(legend.get("asserted", case["asserted"])))
    if unknown:
        yield f"asserted: unknown fact {', '.join(map(repr, unknown))}"


def _channel_problem(words: Mapping[str, Any], event: list[Any], channels: int) -> str | None:
    names = words[event[0]]["args"]
    if "channel" not in names:
        return None
    channel = event[1 + names.index("channel")]
    if _is(channel, int) and 0 <= channel < channels:
        return None
    return f"{event[0]}: channel {channel!r} of {channels} channels, numbered from 0"


# ---------------------------------------------------------------------- cases of steps


def _steps_form(legend: Legend, case: Mapping[str, Any]) -> Iterator[str]:
    units = legend.get("units", {})
    if units and case["given"].get("unit", "coordinator") not in units:
        yield f"given: unknown unit {case['given']['unit']!r}; known: {', '.join(units)}"
    for index, step in enumerate(case["steps"]):
        problem = _word_problem(legend["steps"], step)
        if problem is not None:
            yield f"step {index}: {problem}"
    facts = {*legend.get("facts", ()), "after"}
    for entry in case["expect"]:
        after = entry.get("after") if isinstance(entry, dict) else None
        if not isinstance(after, int) or not 0 <= after < len(case["steps"]):
            yield f"expect: 'after' must be the index of one of {len(case['steps'])} steps, in {_short(entry)}"
            continue
        unknown = sorted(set(entry) - facts)
        if unknown:
            yield f"step {after}: unknown fact {', '.join(map(repr, unknown))}"


def _kind_form(legend: Legend, case: Mapping[str, Any]) -> Iterator[str]:
    kinds = legend.get("kinds", {})
    if case["kind"] not in kinds:
        yield f"step 0: unknown kind {case['kind']!r}; known: {', '.join(kinds)}"


def _events_form(legend: Legend, case: Mapping[str, Any]) -> Iterator[str]:
    yield from _kind_form(legend, case)
    for index, event in enumerate(case["events"]):
        problem = _word_problem(legend["events"], event)
        if problem is not None:
            yield f"step {index}: {problem}"
    for entry in case["expect"]:
        after = entry.get("after") if isinstance(entry, dict) else None
        if not isinstance(after, int) or not -1 <= after < len(case["events"]):
            yield f"expect: 'after' must be -1, or the index of one of {len(case['events'])} events, in {_short(entry)}"


# ---------------------------------------------------------------------- words


def _word_problem(words: Mapping[str, Any], raw: object) -> str | None:
    """Return what is wrong with `[word, argument ...]`: the word, or the number of its arguments."""
    if not isinstance(raw, list) or not raw or not isinstance(raw[0], str):
        return f"must be [word, argument ...], this is {_short(raw)}"
    word, *args = raw
    if word not in words:
        return f"unknown word {word!r}; known: {', '.join(words)}"
    least, most = _argument_counts(words[word])
    given = len(args) - (1 if len(args) > most and isinstance(args[-1], dict) else 0)
    if least <= given <= most:
        return None
    return f"{word} takes {least} to {most} arguments, here are {given}"


def _argument_counts(description: Mapping[str, Any]) -> tuple[int, int]:
    args = description["args"]
    if all(isinstance(arg, int) for arg in args) and args:
        least, most = args
        return least, most
    return sum(not arg.endswith("?") for arg in args), len(args)


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]}..."  # noqa: PLR2004 - a line of a report
