"""Plants errors in the specification, one at a time.

TLC must find that each error breaks the property that the error names.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from spec.tla.tlc import Outcome, TlcError, modules
from spec.tla.worlds import World

_SPECIFICATION: Final = "CommitProtocol"


@dataclass(frozen=True, slots=True, kw_only=True)
class Planted:
    """A planted error: the text that it replaces and the new text, the world for TLC, and the property that breaks."""

    changes: Mapping[str, str]
    breaks: str
    world: World

    def hunt(self) -> Outcome:
        """Let TLC look for the error by the one property that it breaks.

        Raise TlcError if the error cannot be planted.
        """
        text = modules()[_SPECIFICATION]
        for old, new in self.changes.items():
            if text.count(old) != 1:
                raise TlcError(f"the specification has {text.count(old)} places that say: {old}")
            text = text.replace(old, new)
        return self.world.explore(only=self.breaks, sources={_SPECIFICATION: text})


def _world(
    *, kinds: str = "checkpoint", slots: int = 2, live: bool = False, shared: bool = False, **most: int
) -> World:
    return World(budgets=most, kinds=frozenset(kinds.split()), slots=slots, live=live, shared=shared)


PLANTED: Final = {
    "the store appends without comparing versions": Planted(
        changes={"IF r.version = Version(j) + 1 THEN": "IF TRUE THEN"},
        breaks="OneEntryPerVersion",
        world=_world(Ticks=2),
    ),
    "the store appends behind whatever came in between": Planted(
        changes={
            "log' = IF r.version = Version(j) + 1 THEN [log EXCEPT ![j] = @ \\cup {r}] ELSE log": (
                "log' = [log EXCEPT ![j] = @ \\cup {[r EXCEPT !.version = Version(j) + 1]}]"
            )
        },
        breaks="ZombiesCommitNothing",
        world=_world(Epochs=1, TakeOvers=1),
    ),
    "a tick hands out ids from behind the newest checkpoint": Planted(
        changes={"ELSE c.last + 1\n": "ELSE n.id + 1\n"},
        breaks="IdsAreUsedOnce",
        world=_world(Epochs=2, Crashes=1),
    ),
    "a release gives back the ids of checkpoints that failed": Planted(
        changes={
            '"releasing", [Blank EXCEPT !.kind = "release", !.first = me.next,': (
                '"releasing", [Blank EXCEPT !.kind = "release", !.first = me.parent + 1,'
            )
        },
        breaks="IdsAreUsedOnce",
        world=_world(Ticks=2, Epochs=2, Aborts=1),
    ),
    "the savepoint that the next tick begins from is disposed of": Planted(
        changes={"/\\ e \\in rows /\\ e.kind \\in Pinned /\\ e # Newest(j, proc[p].at)": "/\\ e \\in rows"},
        breaks="NewestIsRetained",
        world=_world(kinds="stop", Epochs=1, Disposals=1),
    ),
    "tables are published while the entry is on its way": Planted(
        changes={
            'Send(p, me, "appending", row)': (
                'Send(p, [me EXCEPT !.row = row, !.todo = row.touched], "appending", row)'
            ),
            '/\\ me.pc = "publishing" /\\ t \\in me.todo': "/\\ t \\in me.todo",
            '"appending" -> Appended(p)': '"appending" -> (\\E t \\in Tables : Publish(p, t)) \\/ Appended(p)',
        },
        breaks="TablesShowCommittedCuts",
        world=_world(Epochs=1),
    ),
    "a publication does not look whether the table shows it": Planted(
        changes={"IF Shown(j, t) >= me.row.id\n": "IF FALSE\n"},
        breaks="TablesShowCommittedCuts",
        world=_world(Epochs=1, Crashes=1),
    ),
    "a publication leaves out the upsert tables": Planted(
        changes={"!.todo = me.sent.touched, !.staged = {}": "!.todo = me.sent.touched \\cap Appends, !.staged = {}"},
        breaks="TablesShowTheNewest",
        world=_world(Epochs=1),
    ),
    "a cut is recorded before all its tables are published": Planted(
        changes={'/\\ proc[p].pc = "publishing" /\\ proc[p].todo = {}': '/\\ proc[p].pc = "publishing"'},
        breaks="CutsAreWhole",
        world=_world(Epochs=1),
    ),
    "a tick that was taken over drops newer cuts": Planted(
        changes={"cuts' = IF \\E id \\in CutIds(j) : id >= cut.id THEN": "cuts' = IF cut.id \\in CutIds(j) THEN"},
        breaks="RetainedCutsAreRecorded",
        world=_world(Epochs=2, TakeOvers=1),
    ),
    "a clean-up drops cuts that it has not seen": Planted(
        changes={
            "!.look = @ \\ Readable(Rows(j, Version(j)), @)]": "!.look = Readable(Rows(j, Version(j)), CutIds(j))]",
            "c.id \\notin proc[p].look": "c.id \\in proc[p].look",
        },
        breaks="RetainedCutsAreRecorded",
        world=_world(Epochs=1, TakeOvers=1, Cleanups=1),
    ),
    "a tick does not roll forward": Planted(
        changes={"pending == IF n # Blank /\\ n.id \\notin CutIds(j) THEN n": "pending == IF FALSE THEN n"},
        breaks="OneUnpublished",
        world=_world(Epochs=2, Crashes=1),
    ),
    "a clean-up does not know savepoints": Planted(
        changes={
            "named == UNION {Named(e) : e \\in me.look}": (
                'named == UNION {Named(e) : e \\in {r \\in me.look : r.kind # "savepoint"}}'
            )
        },
        breaks="FilesStay",
        world=_world(kinds="checkpoint savepoint", Epochs=2, Cleanups=1),
    ),
    "a clean-up does not know cuts": Planted(
        changes={"f \\notin named \\cup active \\cup cut}": "f \\notin named \\cup active}"},
        breaks="FilesStay",
        world=_world(kinds="checkpoint stop", Ticks=2, Epochs=3, Rollbacks=1, Cleanups=1),
    ),
    "a clean-up takes the files of its own generation": Planted(
        changes={"f[2] < me.gen /\\ f \\notin named": "f[2] <= me.gen /\\ f \\notin named"},
        breaks="FilesStay",
        world=_world(Epochs=1, Cleanups=1),
    ),
    "a start deletes what a savepoint alone names": Planted(
        changes={"/\\ f \\notin pinned /\\ f[2] < me.gen": "/\\ f[2] < me.gen"},
        breaks="FilesStay",
        world=_world(kinds="savepoint", Ticks=2, Epochs=1),
    ),
    "disposing of a savepoint looks at the entries after its release": Planted(
        changes={
            '[me EXCEPT !.pc = "deleting", !.sent = Blank] ELSE Off)': (
                '[me EXCEPT !.pc = "deleting", !.sent = Blank, !.look = {f \\in UNION {Named(r) : r \\in {s \\in '
                "log[p[1]] : s.id \\in me.going}} : f[1] \\in Upserts} \\ UNION {Named(r) : r \\in Rows(p[1], v)}] "
                "ELSE Off)"
            ),
        },
        breaks="FilesStay",
        world=_world(Ticks=2, Epochs=2, Rests=1, Disposals=1),
    ),
    "the commit that subsumes a checkpoint takes its entry out of the log": Planted(
        changes={"[log EXCEPT ![j] = @ \\cup {r}]": "[log EXCEPT ![j] = {e \\in @ : e.id \\notin r.drops} \\cup {r}]"},
        breaks="EntriesStay",
        world=_world(Epochs=2),
    ),
    "nothing is due as long as the job is free": Planted(
        changes={
            "\\/ (free /\\ n # Blank /\\ n.id \\notin CutIds(j))": "",
            "pending == IF n # Blank /\\ n.id \\notin CutIds(j) THEN n": "pending == IF FALSE THEN n",
        },
        breaks="EveryCommitIsPublished",
        world=_world(Epochs=1, Crashes=1, live=True),
    ),
    "a checkpoint that nobody acknowledges waits for ever": Planted(
        changes={'"pending" -> Commit(p)': '"pending" -> FALSE'},
        breaks="EveryTriggerEnds",
        world=_world(Epochs=1, live=True),
    ),
    "nobody takes over from a dead holder": Planted(
        changes={"((~free /\\ ~Alive(c)) \\/": "(FALSE \\/"},
        breaks="EveryClaimIsSettled",
        world=_world(Epochs=1, Crashes=1, live=True),
    ),
    "a start deletes the leftovers of all jobs": Planted(
        changes={
            "files' = [files EXCEPT ![j] = @ \\ unused]": (
                "files' = [k \\in Jobs |-> IF k = j THEN files[k] \\ unused ELSE {f \\in files[k] : f[2] >= me.gen}]"
            )
        },
        breaks="JobsDoNotDisturb",
        world=_world(slots=1, Ticks=2, Epochs=1, shared=True),
    ),
    "the fence counts the claims of all jobs": Planted(
        changes={
            "Version(j) == Max({0} \\cup {e.version : e \\in log[j]})": (
                "Version(j) == Max({0} \\cup {e.version : e \\in UNION {log[k] : k \\in Jobs}})"
            )
        },
        breaks="JobsDoNotDisturb",
        world=_world(slots=1, shared=True),
    ),
}
"""Maps the name of each planted error to the error. The name states what would be wrong with the protocol."""
