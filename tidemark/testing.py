"""For the tests of your pipelines: ticks on small frames, in a folder of the test's own, also killed ones.

```python
from tidemark.testing import Trial
```
docs/guides/pipelines.md shows it at work.
"""

from tidemark._packages import must_be_ours

must_be_ours()

from jobs.testing.trial import NotKilledError, TickFailedError, Trial

__all__ = ["NotKilledError", "TickFailedError", "Trial"]
