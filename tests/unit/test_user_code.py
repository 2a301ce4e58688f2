"""Errors of a user's code as messages: a sentence with the user's file and line, and the traceback below it."""

import polars as pl
import pytest

from jobs.operators.execute import reason_of
from jobs.user_code import message_of, noted, own_lines, sentence_of, traceback_of

WORKER = """
  An exception was thrown from the Python worker. Please see the stack trace below.
Traceback (most recent call last):
  File "/venv/lib/python3.11/site-packages/pyspark/worker.py", line 1985, in main
    process()
  File "/home/ada/shop/clean.py", line 14, in per_batch
    helper(b)
  File "/home/ada/shop/clean.py", line 10, in helper
    raise shop.errors.BadRow("this row is bad")
shop.errors.BadRow: this row is bad
and here is more of it
SQLSTATE: 39000
"""
JAVA = """An error occurred while calling o136.collectToPython.
: org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage 0.0 failed 1 times
\tat org.apache.spark.scheduler.Task.run(Task.scala:147)
Caused by: org.apache.spark.SparkArithmeticException: [DIVIDE_BY_ZERO] Division by zero.
== DataFrame ==
"div" was called from
/home/ada/shop/clean.py:25
\tat org.apache.spark.sql.Something.eval(Something.scala:1)
"""


def raised(call):
    with pytest.raises(Exception) as caught:  # noqa: PT011 - the caller knows which one it is
        call()
    return caught.value


def helper():
    raise ValueError("first line\nsecond line")


def test_a_function_of_this_process_is_named_with_file_and_line():
    """The place is the innermost line of the user's own code. The whole traceback is below the sentence."""
    message = message_of(raised(helper))
    line = helper.__code__.co_firstlineno + 1
    assert f"ValueError: first line (in helper, {__file__}, line {line})" == sentence_of(message)
    assert traceback_of(message).endswith("ValueError: first line\nsecond line")
    assert '    raise ValueError("first line\\nsecond line")' in own_lines(message)


def test_the_place_is_the_users_line_even_if_a_library_raised():
    """Polars raises in its own files. The user must see which line of their own code made the call."""
    error = raised(lambda: pl.DataFrame({"a": [1]}).select("b"))
    assert f"(in <lambda>, {__file__}, line " in sentence_of(message_of(error))
    assert not [line for line in own_lines(message_of(error)) if "site-packages" in line]


def test_a_function_in_a_worker_is_named_with_file_and_line():
    """Spark returns the worker's traceback as text, with lines of its own before and after it."""
    message = message_of(RuntimeError(WORKER))
    assert "BadRow: this row is bad (in helper, /home/ada/shop/clean.py, line 10)" == sentence_of(message)
    assert [
        '  File "/home/ada/shop/clean.py", line 14, in per_batch',
        "    helper(b)",
        '  File "/home/ada/shop/clean.py", line 10, in helper',
        '    raise shop.errors.BadRow("this row is bad")',
    ] == list(own_lines(message))


def test_an_error_without_a_traceback_is_still_a_sentence():
    """The sentence has the kind of error and the first line of its message, or the kind alone."""
    assert "KeyError: 'x'" == sentence_of(message_of(KeyError("x")))
    assert "MemoryError" == sentence_of(message_of(MemoryError()))


def test_a_note_is_part_of_the_sentence_and_not_of_the_traceback():
    """The note comes before the traceback, so a user reads it first."""
    assert "it failed (twice)\nTraceback" == noted("it failed\nTraceback", "(twice)")
    assert "it failed (twice)" == noted("it failed", "(twice)")


def test_an_endless_traceback_is_cut():
    """The trace keeps every message, so a message has a limit."""
    deep = WORKER.replace("    helper(b)\n", "    helper(b)\n" * 10_000)
    assert len(message_of(RuntimeError(deep))) < 9_000


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "Py4JJavaError: ...\n: SparkException: Python worker exited unexpectedly (crashed). Consider setting",
            "a Python worker died while it ran the vertex's function",
        ),
        (WORKER.replace("shop.errors.BadRow: this row is bad", "MemoryError"), "MemoryError (in helper, /home/ada"),
        (WORKER.replace("shop.errors.BadRow: this row is bad", "MemoryError"), "--set micro_batch_rows_max=50000"),
        ("java.lang.OutOfMemoryError: Java heap space\n\tat x", "give it more with --spark-memory 4g"),
        (
            '\tat x\nCaused by: java.io.IOException: Cannot run program "/no/python": error=2',
            "Spark cannot start /no/python for its Python workers: unset PYSPARK_PYTHON",
        ),
        ("[PYTHON_VERSION_MISMATCH] Python in worker has different version", "unset PYSPARK_PYTHON"),
        ("OSError: [Errno 28] No space left on device: '/w/x'", "the disk is full, or a quota is used up: make room"),
        ("OSError: [Errno 122] Disk quota exceeded: '/w/x'", "the disk is full, or a quota is used up: make room"),
        ("OSError: [Errno 30] Read-only file system: '/w/x'", "the file system is read-only: mount it so that"),
        (JAVA, "SparkArithmeticException: [DIVIDE_BY_ZERO] Division by zero. (/home/ada/shop/clean.py, line 25)"),
        (WORKER, "line 10): correct it and run again, nothing of this micro-batch counts"),
    ],
)
def test_a_failed_micro_batch_is_one_sentence_with_the_way_out(text, said):
    """The sentence has no Java stack and no traceback. Both are below it."""
    reason = reason_of(RuntimeError(text))
    assert said in sentence_of(reason)
    assert "\tat " not in sentence_of(reason)
    assert text.strip().splitlines()[-1] in traceback_of(reason)


@pytest.mark.parametrize(
    ("cause", "said"),
    [
        (
            "org.apache.spark.SparkRuntimeException: [MALFORMED_CSV_RECORD] Malformed CSV record: 0,,, SQLSTATE: KD000",
            "(0,,,): correct the file, or give its FileSource a corrupt_column",
        ),
        (
            (
                "com.fasterxml.jackson.core.JsonParseException: Unexpected character ('x' (code 120)): was expecting"
                ' comma\n at [Source: (byte[])"{"id": 0, "k": "x"[truncated 20999519 bytes]; line: 1, column: 20054033]'
            ),
            (
                "(it has a text of more than 20,000,000 characters, which Spark's JSON parser does not read): write "
                "the file as Parquet, or give its FileSource a corrupt_column"
            ),
        ),
    ],
    ids=["half of a CSV record", "a long text in JSON"],
)
def test_a_record_that_spark_cannot_read_is_named_with_its_file_and_a_way_out(cause, said):
    """Spark states the reason in the last cause of the error."""
    found = reason_of(
        Exception(
            "An error occurred while calling o1.count.\n: org.apache.spark.SparkException: [FAILED_READ_FILE.NO_HINT] "
            "Encountered error while reading file file:///in/0.csv. SQLSTATE: KD001\n\tat org.apache.spark.X\n"
            "Caused by: org.apache.spark.SparkException: [MALFORMED_RECORD_IN_PARSING.WITHOUT_SUGGESTION] Malformed\n"
            f"Caused by: {cause}\n\tat org.apache.spark.Y"
        )
    ).partition("\n")[0]
    assert f"/in/0.csv has a record that cannot be read as the source's schema and options say {said}" in found
