"""Prepares an environment: `python -m tidemark.prepare` archives Spark's classes, so that Spark starts faster.

Run it once for each environment. Everything also works without it.
"""

from tidemark._packages import must_be_ours

must_be_ours()

from jobs.tick.class_archive import main

if __name__ == "__main__":
    main()
