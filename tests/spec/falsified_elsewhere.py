"""Names the rules that tests of their own falsify: test_new_tables, test_pauses, test_simulated_held_cuts and so on."""

from tests.spec.entries_falsified import FALSIFIED_BROADCASTS
from tests.spec.held_falsified import FALSIFIED_HELD

FALSIFIED_ELSEWHERE = {
    "new-tables-begin-empty",
    "pauses",
    "state-in-range",
    "changes-said",
    "compacts-first",
    "overwrites-show-newest",
    "overwrites-only-rise",
    *FALSIFIED_HELD,
    *FALSIFIED_BROADCASTS,
}
