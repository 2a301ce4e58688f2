"""The inputs of one vertex: it takes its channels in turn, and aligns, counts or overtakes barriers (C1 to C7).

`InputGate` is the door.
"""

from checkpointing.config import UNLIMITED
from checkpointing.gate.input_gate import GateSnapshot, InputGate
from checkpointing.gate.messages import (
    AbortCheckpoint,
    AnnouncementReceived,
    BarrierReceived,
    BlockChannel,
    ClockRead,
    Deliver,
    DeliverEnd,
    DeliverEndOfData,
    GateConfig,
    GateEffect,
    GateFact,
    GatePolicy,
    GateProtocolError,
    GateTimeAdvanced,
    Ignored,
    InFlightComplete,
    ItemArrived,
    Polled,
    PutAside,
    ResumeChannel,
    TriggerCheckpoint,
    WakeGateAt,
)

__all__ = [
    "UNLIMITED",
    "AbortCheckpoint",
    "AnnouncementReceived",
    "BarrierReceived",
    "BlockChannel",
    "ClockRead",
    "Deliver",
    "DeliverEnd",
    "DeliverEndOfData",
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
    "Polled",
    "PutAside",
    "ResumeChannel",
    "TriggerCheckpoint",
    "WakeGateAt",
]
