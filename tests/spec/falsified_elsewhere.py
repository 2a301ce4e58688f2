"""Names the rules that tests of their own falsify, such as test_in_time and test_simulated_held_cuts."""

from tests.spec.entries_falsified import FALSIFIED_BROADCASTS
from tests.spec.held_falsified import FALSIFIED_HELD

FALSIFIED_ELSEWHERE = {
    "new-tables-begin-empty",
    "pauses",
    "state-in-range",
    "changes-said",
    "compacts-first",
    "compacts-again",
    "hooks-in-time",
    "wakes-in-time",
    "at-rest",
    "said-why",
    "published-at-once",
    "way-back-stays",
    "outside-last",
    "empty-is-judged",
    "overwrites-show-newest",
    "overwrites-only-rise",
    *FALSIFIED_HELD,
    *FALSIFIED_BROADCASTS,
}
