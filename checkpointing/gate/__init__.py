"""One vertex's inputs: channels in turn, barriers aligned, counted or let through (C1 to C7).

`InputGate` is the door.
"""

from checkpointing.gate.config import UNLIMITED, GateConfig, GatePolicy
from checkpointing.gate.input_gate import GateSnapshot, InputGate
from checkpointing.gate.messages import (
    AbortCheckpoint,
    AnnouncementHanded,
    AnnouncementReceived,
    BarrierReceived,
    BlockChannel,
    ClockRead,
    Deliver,
    DeliverEnd,
    DeliverEndOfData,
    GateClosed,
    GateEffect,
    GateFact,
    GateProtocolError,
    GateTimeAdvanced,
    Ignored,
    InFlightComplete,
    ItemArrived,
    ItemHanded,
    Polled,
    PutAside,
    ResumeChannel,
    TriggerCheckpoint,
    WakeGateAt,
)

__all__ = [
    "UNLIMITED",
    "AbortCheckpoint",
    "AnnouncementHanded",
    "AnnouncementReceived",
    "BarrierReceived",
    "BlockChannel",
    "ClockRead",
    "Deliver",
    "DeliverEnd",
    "DeliverEndOfData",
    "GateClosed",
    "GateConfig",
    "GateEffect",
    "GateFact",
    "GatePolicy",
    "GateProtocolError",
    "GateSnapshot",
    "GateTimeAdvanced",
    "Ignored",
    "InFlightComplete",
    "InputGate",
    "ItemArrived",
    "ItemHanded",
    "Polled",
    "PutAside",
    "ResumeChannel",
    "TriggerCheckpoint",
    "WakeGateAt",
]
