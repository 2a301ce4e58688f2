"""A cut with rows in flight is restored only into a pipeline whose inputs read the outputs that they read then."""

from spec.reading_outputs import outputs_are_read_on


def test_a_cut_is_refused_exactly_if_rows_in_flight_would_be_passed_over():
    """All pairs of outputs of two inputs, then and now, with rows in flight to each (rule `outputs-are-read-on`)."""
    assert outputs_are_read_on()
