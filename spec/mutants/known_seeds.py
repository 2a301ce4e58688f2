"""Where each mutant was met: the seed that its judge is given first. Written by `python -m spec.mutants --find`.

Should scenarios be drawn otherwise, a mutant is searched for from seed 0 on, and found more slowly.
"""

from typing import Final

KNOWN_SEEDS: Final[dict[str, int]] = {}
