"""Tests pipelines: runs ticks on small frames in the test's own folder, and kills them.

```python
from tidemark.testing import Trial
```
docs/guides/pipelines.md shows it at work.
"""

from tidemark._packages import must_be_ours

must_be_ours()

from jobs.testing.trial import NotKilledError, TickFailedError, Trial

__all__ = ["NotKilledError", "TickFailedError", "Trial"]
