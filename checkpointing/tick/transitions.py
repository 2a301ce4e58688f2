"""The transition table of the tick door: which effects may follow which answer.

The door's state is the effect for which it awaits an answer. docs/STATES.md draws this table.
"""

from typing import Final

from checkpointing.commit.recovery import Observed
from checkpointing.messages import (
    CutRecorded,
    LookForRival,
    PublishFailed,
    PublishTable,
    RecordCut,
    RivalSeen,
    RowAppended,
    RowRefused,
    RowUnknown,
    TablePublished,
)
from checkpointing.tick.messages import (
    AppendClaim,
    AppendEntry,
    AppendRelease,
    Broke,
    CleanUp,
    CorrectCuts,
    CutRead,
    DiscardLeftovers,
    Done,
    EnsureTables,
    Examine,
    Failed,
    Finish,
    LeftoversDiscarded,
    LogsSeen,
    LookAtLogs,
    LookAtTables,
    Objected,
    Observe,
    PublishAgain,
    ReadCut,
    RollBackPreCommitted,
    RowChosen,
    TablesSeen,
    Wait,
    Waited,
    Work,
    Worked,
    WorkEnded,
)

Kinds = tuple[type, ...]
_END: Final[Kinds] = (LookForRival, AppendRelease)
"""If something fails after the claim, the attempt ends with the release."""
_NEXT: Final[Kinds] = (Observe, Wait, Finish)
"""After the release, another attempt can follow."""
_WORK: Final[Kinds] = (DiscardLeftovers, Work)
_ROLL: Final[Kinds] = (ReadCut, *_WORK)
_REPAIR: Final[Kinds] = (PublishAgain, LookAtLogs, CorrectCuts, *_ROLL)
_PUBLISH: Final[Kinds] = (PublishTable, RecordCut)
_HELD: Final[dict[type, dict[type, Kinds]]] = {
    LookAtTables: {TablesSeen: (EnsureTables, *_REPAIR)},
    EnsureTables: {Done: _REPAIR},
    PublishAgain: {TablePublished: (PublishAgain, LookAtLogs), PublishFailed: _END},
    LookAtLogs: {LogsSeen: (CorrectCuts,)},
    CorrectCuts: {Done: _ROLL},
    ReadCut: {CutRead: (ReadCut, *_PUBLISH, *_WORK, AppendRelease)},
    PublishTable: {TablePublished: _PUBLISH, PublishFailed: (*_END, *_WORK)},
    RecordCut: {CutRecorded: (*_WORK, AppendRelease)},
    DiscardLeftovers: {LeftoversDiscarded: (Work,)},
    Work: {WorkEnded: (RollBackPreCommitted, CleanUp, *_END), RowChosen: (AppendEntry,), Worked: (AppendRelease,)},
    AppendEntry: {
        RowAppended: (ReadCut, AppendRelease),
        RowRefused: (AppendRelease,),
        RowUnknown: (AppendEntry, AppendRelease),
    },
    RollBackPreCommitted: {Done: (CleanUp, AppendRelease)},
    CleanUp: {Done: (AppendRelease,)},
}
"""The part of `MOVES` between a claim and its release."""

MOVES: Final[dict[tuple[type, type], Kinds]] = {
    (Observe, Observed): (Examine, AppendClaim, AppendRelease, *_NEXT),
    (Observe, Objected): _NEXT,
    (Observe, Broke): _NEXT,
    (Examine, Done): (Examine, AppendClaim, Finish),
    (Examine, Objected): (Observe, Examine),
    (Examine, Broke): (Observe,),
    (AppendClaim, RowAppended): (LookAtTables, *_ROLL),
    (AppendClaim, RowRefused): _NEXT,
    (AppendClaim, RowUnknown): (AppendClaim, *_NEXT),
    (AppendClaim, Broke): (Finish,),
    **{(effect, fact): reached for effect, facts in _HELD.items() for fact, reached in facts.items()},
    **{(effect, fact): _END for effect in _HELD for fact in (Failed, Broke)},
    (LookForRival, RivalSeen): (AppendRelease,),
    (AppendRelease, RowAppended): _NEXT,
    (AppendRelease, RowRefused): _NEXT,
    (AppendRelease, RowUnknown): _NEXT,
    (AppendRelease, Broke): _NEXT,
    (Wait, Waited): (Observe, Finish),
}
"""(the awaited effect, its answer) -> the effects that may follow. All other answers are refused."""
