"""Reads all tables and all operators' state as of one checkpoint, from any Python process (K1, K3).

```python
from tidemark import Cuts

cut = Cuts("warehouse", "flights").latest()  # or .at(12), .as_of("2026-11-21T08:00"), .all()
cut.polars("gold/delays_by_route").collect()  # or .arrow(table), .spark(spark, table), .version(table)
cut.state("silver_flights").polars().collect()  # or .arrow(), .spark(spark), .sql("duckdb")
```

A reader makes no claim and disturbs no tick. Only methods that take a session need Spark. A cut stays readable while it
is retained, and then until the `reader_grace` of the clean-up is over. After that, a read raises an error. If you need
a cut for longer, or several processes must read the same cut, reserve it:

```python
with Cuts("warehouse", "flights").reserved("nightly") as cut: ...
```
"""

from jobs.reading.cut import Cut
from jobs.reading.cuts import Cuts
from jobs.reading.moments import (
    CutGoneError,
    CutUnreadableError,
    InvalidMomentError,
    NoEventTimeError,
    NoSuchCutError,
    NoSuchOperatorError,
    NoSuchTableError,
    NotReservedError,
    ReadingError,
)
from jobs.reading.operator_state import OperatorState
from jobs.reading.pending import PendingCut

__all__ = [
    "Cut",
    "CutGoneError",
    "CutUnreadableError",
    "Cuts",
    "InvalidMomentError",
    "NoEventTimeError",
    "NoSuchCutError",
    "NoSuchOperatorError",
    "NoSuchTableError",
    "NotReservedError",
    "OperatorState",
    "PendingCut",
    "ReadingError",
]
