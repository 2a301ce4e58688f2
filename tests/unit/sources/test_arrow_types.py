"""Tests that a source reads the types of other writers, converts them, or refuses them by name."""

import pyarrow as pa
import pytest

from jobs.sources.arrow_types import Conversion, conversion_of
from jobs.sources.files.file_footer import column


@pytest.mark.parametrize(
    ("arrow", "name"),
    [
        (pa.timestamp("ns", "UTC"), "timestamp"),
        (pa.timestamp("ns"), "timestamp_ntz"),
        (pa.timestamp("ms", "Europe/Zurich"), "timestamp"),
        (pa.dictionary(pa.int8(), pa.timestamp("ns", "UTC")), "timestamp"),
        (pa.dictionary(pa.uint32(), pa.large_string()), "string"),
        (pa.string_view(), "string"),
        (pa.large_binary(), "binary"),
        (pa.large_list(pa.large_string()), "array<string>"),
        (pa.list_(pa.uint8(), 2), "array<smallint>"),
        (pa.struct([("a", pa.dictionary(pa.int8(), pa.string()))]), "struct<a:string>"),
        (pa.map_(pa.large_string(), pa.uint32()), "map<string,bigint>"),
        (pa.uint64(), "decimal(20,0)"),
    ],
)
def test_a_readable_type_has_sparks_name(arrow, name):
    """The source reads it in any form that its writer chose."""
    assert name == column("c", arrow).said == column("c", arrow).type.simpleString()


@pytest.mark.parametrize(
    "arrow",
    [
        pa.struct([("at", pa.timestamp("ns"))]),
        pa.list_(pa.timestamp("ns", "UTC")),
        pa.duration("ns"),
        pa.time64("ns"),
        pa.float16(),
    ],
)
def test_a_type_that_spark_would_refuse_or_misread_keeps_its_own_name(arrow):
    """The refusal then says what the file holds."""
    found = column("c", arrow)
    assert (str(arrow), None) == (found.said, found.type)


@pytest.mark.parametrize(
    ("arrow", "conversion"),
    [
        (pa.timestamp("ns", "UTC"), Conversion.NANOSECONDS),
        (pa.timestamp("ns"), Conversion.NANOSECONDS_WITHOUT_ZONE),
        (pa.null(), Conversion.NOTHING),
        (pa.timestamp("us", "UTC"), None),
        (pa.large_string(), None),
    ],
)
def test_only_what_spark_cannot_read_is_converted(arrow, conversion):
    """Only nanoseconds, and columns without a value, are converted."""
    assert conversion is conversion_of(arrow)
