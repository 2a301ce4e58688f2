"""Tests changed state. A pipeline gives its columns other names, functions and versions, and goes on from a cut.

Its reference decides for each column what becomes of the old values. A change is refused if old values could be read
with a wrong meaning.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Final

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

from checkpointing.renamed_columns import ColumnRenames, renamed_columns, unrenamable
from checkpointing.state_evolution import (
    NOT_WRITTEN,
    Change,
    ChangeKind,
    Compatibility,
    first_refused,
    verdict,
    with_hints,
)
from checkpointing.state_meaning import (
    Argument,
    ColumnMeaning,
    meaning_changes,
    renaming_of,
    still_held,
    under_new_names,
)
from spec.machines.judging import expect

MEANINGS: Final = "meanings-are-kept"
"""Old values of a column serve only if its function, the names of its arguments and its version are the same. If a
checkpoint did not record them, the old values serve."""
RENAMES: Final = "renames-are-clear"
"""A renamed column keeps its values. A rename is refused if both names are there, or if neither is there and a column
would be dropped. A pipeline that no longer declares a rename of its cut is refused too."""
HINTS: Final = "drops-get-hints"
"""A dropped column gets a hint if a new one may be the same under another name."""

_NAMES: Final = ("a", "b", "c")
_Said = tuple[str, str, int | None, str, str]
"""The column, its function, its version, its argument, and the argument's type."""
_meaning = st.tuples(
    st.sampled_from(_NAMES),
    st.sampled_from(["max", "max", "process"]),
    st.sampled_from([None, 1, 1, 2]),
    st.sampled_from(["v", "v", "w"]),
    st.sampled_from(["int", "int", "bigint"]),
)
_meanings = st.lists(_meaning, max_size=3, unique_by=lambda said: said[0])
_held = st.lists(st.sampled_from(_NAMES), unique=True)
_columns = st.lists(st.sampled_from([*_NAMES, "d"]), unique=True)
_renames = st.dictionaries(st.sampled_from(_NAMES), st.sampled_from([*_NAMES, "d"]), max_size=2)


class MeaningsMachine(RuleBasedStateMachine):
    """One pipeline after the other begins at a cut of another one."""

    @rule(was=st.one_of(st.none(), _meanings), now=_meanings, held=_held)
    def compute_otherwise(self, was: list[_Said] | None, now: list[_Said], held: list[str]) -> None:
        """State columns are computed by other functions, from other columns, or by another version."""
        made = meaning_changes("state", None if was is None else _all(was), _all(now), held)
        before = {said[0]: said for said in was or ()}
        due = []
        for said in now:
            old = before.get(said[0])
            if said[0] in held and old != said:
                due.append((said[0], *_verdict(old, said), None if old is None else _text(old), _text(said)))
        found = [
            (each.column, each.becomes, _reason(each), None if each.was == "not recorded" else each.was, each.now)
            for each in made
        ]
        expect(found == due, MEANINGS, f"{found}, due are {due}: from {was} to {now}, in files {held}")
        of = {(each.kind, each.thing) for each in made}
        expect(of <= {(ChangeKind.STATE_MEANING, "state")}, MEANINGS, of)

    @rule(was=st.one_of(st.none(), _meanings), now=_meanings, held=_held, then=_renames)
    def record(self, was: list[_Said] | None, now: list[_Said], held: list[str], then: Mapping[str, str]) -> None:
        """The next checkpoint records meanings, and meanings get new names."""
        before = None if was is None else _all(was)
        recorded = [*now, *(said for said in was or () if said[0] in held and said[0] not in [each[0] for each in now])]
        made = still_held(before, _all(now), held)
        expect(made == _all(recorded), MEANINGS, f"{made} are recorded, due are {recorded}")
        names = [said[0] for said in was or ()]
        called = []
        for said in was or ():
            new = [new for new, old in then.items() if old == said[0]]
            if then.get(said[0]) not in names:  # else the old name is recorded too, and the files have it
                called.append((new[-1] if new else said[0], *said[1:]))
        renamed = under_new_names(before, then)
        due = None if was is None else _all(called)
        expect(renamed == due, MEANINGS, f"{renamed} of {was} under {then}, due are {due}")

    @rule(was=st.one_of(st.none(), _meanings), now=_meanings, old=st.sampled_from(_NAMES), new=st.sampled_from(_NAMES))
    def suggest(self, was: list[_Said] | None, now: list[_Said], old: str, new: str) -> None:
        """A dropped column may have come back under another name."""
        made = renaming_of(None if was is None else _all(was), _all(now), old, new)
        before = next((said for said in was or () if said[0] == old), None)
        after = next((said for said in now if said[0] == new), None)
        due = None
        if after is not None and (before is None or before[1:] == after[1:]):
            by_name = f"columns_renamed_from={{{new!r}: {old!r}}}"
            due = by_name if after[1] == "process" else f"renamed_from={old!r}"
        expect(made == due, HINTS, f"{made} for {old} to {new}, due is {due}: from {was} to {now}")

    @rule(now=_columns, then=_columns, renamed=_renames, of_cut=_renames, becomes=st.sampled_from(["", "moved"]))
    def rename(
        self, now: list[str], then: list[str], renamed: dict[str, str], of_cut: dict[str, str], becomes: str
    ) -> None:
        """A pipeline renames columns of files that have the columns `then`."""
        made = [
            *renamed_columns(
                ChangeKind.STATE_SCHEMA, "state", now, then, ColumnRenames(renamed, of_cut), becomes=becomes
            )
        ]
        keep = kept_names(now, then, renamed)
        due = renames_due(now, then, renamed, becomes)
        due += renames_undeclared(now, then, renamed, of_cut)
        found = [(each.column, each.was, each.becomes, _part(each, due)) for each in made]
        expect(found == due, RENAMES, f"{found}, due are {due}: {then} to {now}, {renamed}, of the cut {of_cut}")
        expect(all(each.now == each.column for each in made), RENAMES, made)
        refused = [*unrenamable("table", now, then, ColumnRenames(renamed, of_cut))]
        pairs = [(each.column, each.was) for each in refused if each.refused and each.column == each.now]
        expect(pairs == [*keep.items()], RENAMES, f"{pairs} are refused for an overwrite table, due are {keep}")

    @rule(
        old=st.lists(st.tuples(st.sampled_from(["x", "y"]), st.sampled_from([None, NOT_WRITTEN, "int"])), max_size=2),
        new=st.lists(st.tuples(st.sampled_from(["p", "q"]), st.sampled_from(["x", "y"])), max_size=2),
        known=st.sets(st.tuples(st.sampled_from(["k0", "k1"]), st.sampled_from(["p", "q"]))),
        refused=st.sampled_from(["", "", "no"]),
    )
    def hint(
        self,
        old: list[tuple[str, str | None]],
        new: list[tuple[str, str]],
        known: set[tuple[str, str]],
        refused: str,
    ) -> None:
        """Columns are dropped and added. A new column may be a dropped one under another name."""
        gone = [_change(f"k{at}", was, now, "dropped", "") for at, (was, now) in enumerate(old)]
        came = [_change(name, None, kind, "new", refused) for name, kind in new]
        made = with_hints([*gone, *came], lambda a, b: f"{a} to {b}" if (a, b) in known else None)
        due = []
        for each in gone:
            same = [
                one.column
                for one in came
                if each.now in (None, NOT_WRITTEN) and one.now == each.was and (each.column, one.column) in known
            ]
            said = f"dropped; if it has a new name, say {each.column} to {same[0]}" if same else "dropped"
            due.append(replace(each, becomes=said))
        expect(made == (*due, *came), HINTS, f"{made}, due are {(*due, *came)}")
        for each in made:
            said = "refused" if each.refused else each.becomes
            expect(each.verdict == said, MEANINGS, f"{each.verdict} is the result, due is {said}")
            comes, goes = f"({each.now}) is new, {each.becomes}", f"({each.was}) is dropped"
            differs = goes if each.now is None else f"was {each.was} and is now {each.now}"
            text = f"state: column {each.column} {comes if each.was is None else differs}"
            expect(
                str(each) == text + (f": {each.refused}" if each.refused else ""), MEANINGS, f"{each}, due is {text}"
            )
        first = next((each for each in made if each.refused), None)
        expect(first_refused(made) == first, MEANINGS, f"{first_refused(made)} is refused first, due is {first}")
        kind = Compatibility.AFTER_MIGRATION if made else Compatibility.AS_IS
        kind = Compatibility.INCOMPATIBLE if first is not None else kind
        expect(verdict(made) is kind, MEANINGS, f"{verdict(made)} of {made}")


_Renamed = tuple[str, str, str, str]
"""The new name, the old one, what becomes of the column, and a part of the text that refuses it."""


def kept_names(now: Collection[str], then: Collection[str], renamed: Mapping[str, str]) -> dict[str, str]:
    """Return the renames that are due: the files have the old name and lack the new one."""
    return {new: old for new, old in renamed.items() if new in now and old in then and new not in then}


def renames_due(
    now: Sequence[str], then: Sequence[str], renamed: Mapping[str, str], becomes: str = ""
) -> list[_Renamed]:
    """Return what a restore must say about a pipeline's renames, for files with the columns `then`."""
    keep = kept_names(now, then, renamed)
    gone = [name for name in then if name not in now and name not in keep.values()]
    due = [(new, old, becomes or "renamed, with its values", "") for new, old in keep.items()]
    for new, old in renamed.items():
        if new in now and new in then and old in then:
            due.append((new, old, "", "both columns already"))
        if new in now and new not in then and old not in then and gone:
            due.append((new, old, "", f"neither of them, and {gone[0]} would be dropped"))
    return due


def renames_undeclared(
    now: Collection[str], then: Collection[str], renamed: Mapping[str, str], of_cut: Mapping[str, str]
) -> list[_Renamed]:
    """Return what a restore must say about renames of the cut that this pipeline undoes without saying so."""
    last = {was: name for name, was in of_cut.items()}
    return [
        (was, name, "", "does not say that it renames it back")
        for was, name in last.items()
        if was in now and was not in then and name in then and was not in renamed and name not in now
    ]


def _verdict(old: _Said | None, said: _Said) -> tuple[str, str]:
    """Return what becomes of a column's old values, and why they are refused."""
    if old is None:
        return "taken as it is: its checkpoint is of an older format", ""
    if old[1] != said[1] or old[3] != said[3]:
        return "", f"keep {_text(old)}"
    if old[2] is not None and old[2] != said[2]:
        now = "declares no state_version now" if said[2] is None else f"declares state_version {said[2]}"
        return "", f"state of version {old[2]} is there and the function {now}; go back to version {old[2]}"
    return "old values serve as they are", ""


def _reason(change: Change) -> str:
    """Return the part of a refusal that names the old meaning."""
    text = change.refused.removeprefix("its old values cannot become that; ")
    return text.partition(",")[0] if text.startswith("state of") else text.partition(", or")[0]


def _part(change: Change, due: Sequence[_Renamed]) -> str:
    """Return the due text if this refusal holds it, and otherwise the whole refusal."""
    parts = [said for column, _, _, said in due if said and column == change.column and said in change.refused]
    return parts[0] if parts else change.refused


def _text(said: _Said) -> str:
    _, function, version, argument, kind = said
    shows = version is not None and (version > 1 or function == "process")
    return f"{function}({argument} {kind})" + (f" version {version}" if shows else "")


def _all(said: Sequence[_Said]) -> tuple[ColumnMeaning, ...]:
    return tuple(
        ColumnMeaning(column=column, function=function, arguments=(Argument(argument, kind),), version=version)
        for column, function, version, argument, kind in said
    )


def _change(column: str, was: str | None, now: str | None, becomes: str, refused: str) -> Change:
    return Change(
        kind=ChangeKind.STATE_SCHEMA, thing="state", column=column, was=was, now=now, becomes=becomes, refused=refused
    )
