"""Lists the small worlds in which TLC explores the commit protocol, and how often each event may happen in them."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from spec.tla.tlc import Outcome, TlcError, check, configuration, modules

SAFETY: Final = (
    "OneEntryPerVersion",
    "ZombiesCommitNothing",
    "IdsAreUsedOnce",
    "NewestIsRetained",
    "TablesShowCommittedCuts",
    "TablesShowTheNewest",
    "CutsAreWhole",
    "RetainedCutsAreRecorded",
    "OneUnpublished",
    "FilesStay",
)
"""The invariants of `CommitProtocol.tla`."""

STEPWISE: Final = ("EntriesStay",)
"""The properties of single steps."""

LIVENESS: Final = ("EveryCommitIsPublished", "EveryTriggerEnds", "EveryClaimIsSettled")
"""The liveness properties: they hold in the end if every living process goes on."""

_NOTHING: Final = {
    "Ticks": 1,
    "Epochs": 0,
    "Aborts": 0,
    "Crashes": 0,
    "TakeOvers": 0,
    "Doubts": 0,
    "Cleanups": 0,
    "Rollbacks": 0,
    "Rests": 0,
    "Disposals": 0,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """A world, and how often each event may happen in it (`budgets`). An event without a budget never happens.

    With `live`, TLC also checks the liveness properties. With `shared`, there are two jobs, and neither may notice the
    other.
    """

    budgets: Mapping[str, int]
    kinds: frozenset[str] = frozenset({"checkpoint"})
    touches: frozenset[frozenset[str]] = frozenset({frozenset({"t", "u"})})
    slots: int = 2
    ids_per_claim: int = 2
    live: bool = False
    shared: bool = False

    @property
    def module(self) -> str:
        """Return the name of the module that TLC checks."""
        return "SharedWarehouse" if self.shared else "CommitProtocol"

    @property
    def invariants(self) -> tuple[str, ...]:
        """Return the invariants that TLC checks."""
        return SAFETY

    @property
    def properties(self) -> tuple[str, ...]:
        """Return the other properties that TLC checks."""
        return (*STEPWISE, *(LIVENESS if self.live else ()), *(("JobsDoNotDisturb",) if self.shared else ()))

    def constants(self) -> Mapping[str, object]:
        """Return the constants of the specification. `t` is an append table, and `u` is an upsert or state table."""
        return {
            "Jobs": frozenset({"a", "b"} if self.shared else {"a"}),
            "Slots": frozenset(range(1, self.slots + 1)),
            "Appends": frozenset({"t"}),
            "Upserts": frozenset({"u"}),
            "Touches": self.touches,
            "Kinds": self.kinds,
            "Retain": 1,
            "IdsPerClaim": self.ids_per_claim,
            **_NOTHING,
            **self.budgets,
        }

    def explore(self, *, only: str = "", sources: Mapping[str, str] = MappingProxyType({})) -> Outcome:
        """Let TLC explore the world to its end, or until a property breaks. With `only`, check that property alone.

        `sources` replace modules of the same name. Raises TlcError.
        """
        if only not in ("", *self.invariants, *self.properties):
            raise TlcError(f"{only} is no property that is checked in this world")
        config = configuration(
            self.constants(),
            SPECIFICATION="FairSpec" if self.live else "Spec",
            INVARIANTS=[name for name in self.invariants if only in ("", name)],
            PROPERTIES=[name for name in self.properties if only in ("", name)],
        )
        return check(self.module, config, {**modules(), **sources})


_BOTH: Final = frozenset({"checkpoint", "savepoint"})
_ONE_OR_BOTH: Final = frozenset({frozenset({"t"}), frozenset({"t", "u"})})

WORLDS: Final = {
    "crash": World(budgets={"Epochs": 2, "Crashes": 1}, live=True),
    "zombie": World(budgets={"Epochs": 2, "TakeOvers": 1}, live=True),
    "doubt": World(budgets={"Epochs": 2, "Doubts": 1, "Aborts": 1}, live=True),
    "ids": World(budgets={"Epochs": 2, "Crashes": 1}, ids_per_claim=1, live=True),
    "tables": World(budgets={"Epochs": 2, "Crashes": 1}, touches=_ONE_OR_BOTH, live=True),
    "savepoint": World(budgets={"Ticks": 2, "Epochs": 2, "Crashes": 1}, kinds=_BOTH, live=True),
    "dispose": World(budgets={"Ticks": 2, "Epochs": 2, "Rests": 1, "Disposals": 1}, live=True),
    "rollback": World(budgets={"Epochs": 2, "Crashes": 1, "Rollbacks": 1}, kinds=_BOTH, live=True),
    "cleanup": World(budgets={"Epochs": 2, "TakeOvers": 1, "Cleanups": 1}, live=True),
    "going back": World(
        budgets={"Ticks": 2, "Epochs": 3, "Rollbacks": 1, "Cleanups": 1}, kinds=frozenset({"checkpoint", "stop"})
    ),
    "shared": World(budgets={"Epochs": 1, "Crashes": 1}, slots=1, shared=True),
    "faults": World(budgets={"Epochs": 2, "Crashes": 1, "TakeOvers": 1, "Doubts": 1}),
}
"""Maps the name of each world to the world. TLC explores each world to its end."""
