"""The barrier cases (aligned, tracker, unaligned) against the real `InputGate`: run, then compare."""
