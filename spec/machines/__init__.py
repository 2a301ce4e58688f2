"""Rule-based state machines: Hypothesis chooses what happens next, and simple reference models judge the doors."""
