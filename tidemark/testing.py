"""Tests pipelines and sources: runs ticks on small frames in the test's own folder, and kills them.

```python from tidemark.testing import SourceContract, Trial ``` docs/guides/pipelines.md and docs/guides/sources.md
show both at work.
"""

from tidemark._packages import must_be_ours

must_be_ours()

from jobs.testing.contract import BrokenPromiseError, SourceContract, SurvivesKills
from jobs.testing.trial import NotKilledError, TickFailedError, Trial

__all__ = ["BrokenPromiseError", "NotKilledError", "SourceContract", "SurvivesKills", "TickFailedError", "Trial"]
