"""Judges a suite on staged files with Great Expectations' pandas engine (J3).

The import of Great Expectations takes 3 to 30 seconds. So it happens when the first suite is judged, or in the
background by `warm_up`. Great Expectations runs offline and silently: no analytics, no progress bars, an ephemeral
context. Its context is not thread-safe, so a lock lets only one caller judge at a time.
"""

import logging
import os
import threading
import warnings
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from checkpointing.handles import FileHandle
from jobs.quality.expectation import SAYS_SOMETHING_OF_NO_ROWS, Expectation, Suite
from jobs.quality.verdict import NO_ROWS, ExpectationVerdict, Verdict, not_looked
from jobs.storage.address import Root
from jobs.storage.parquet import parquet_of
from jobs.storage.place import StoragePlace, place_in

# ------------------------------------------------------------------
# Reads the judged columns of staged Parquet files, without changing any value.
#
# pandas turns a column of integers with nulls into floating point, which is exact up to 2**53. So such a column with
# greater numbers is read as pandas' nullable integers. Timestamps keep their unit and zone.


_COLUMN_ARGUMENTS: Final = ("column", "column_A", "column_B", "column_list", "column_set")
_EXACT: Final = 2**53


@dataclass(frozen=True, slots=True)
class StagedRows:
    """The rows of several files, one after the other; `ends` are the row numbers at which each file ends."""

    rows: pa.Table
    paths: tuple[str, ...]
    ends: tuple[int, ...]

    def files_of(self, indices: Iterable[int]) -> tuple[str, ...]:
        """Return the paths of the files in which these rows lie, in order."""
        places = sorted({bisect_right(self.ends, index) for index in indices})
        return tuple(self.paths[place] for place in places)

    def only_integers(self, expectation: Expectation) -> bool:
        """Return whether all columns of the expectation hold whole numbers, which pandas can show as floating point."""
        named = columns_named([expectation]) or frozenset()
        return all(
            pa.types.is_integer(self.rows.schema.field(name).type)
            for name in named.intersection(self.rows.column_names)
        )

    def to_pandas(self) -> Any:  # noqa: ANN401 - a pandas DataFrame; pandas is imported late
        """Return the rows as pandas data with exactly the values of the files."""
        import pandas as pd  # noqa: PLC0415 - a second of start-up that only a judge needs

        wide = {field.name for field in self.rows.schema if _is_wide(field, self.rows.column(field.name))}
        exact = self.rows.select([name for name in self.rows.column_names if name in wide])
        plain = self.rows.select([name for name in self.rows.column_names if name not in wide])
        frame = plain.to_pandas(split_blocks=True, coerce_temporal_nanoseconds=False)
        for name in exact.column_names:
            frame[name] = exact.column(name).to_pandas(types_mapper={pa.int64(): pd.Int64Dtype()}.get)
        return frame


def read_staged(root: Root, paths: Sequence[str], expectations: Iterable[Expectation]) -> StagedRows:
    """Return the rows of these warehouse-relative files, with the columns that the expectations name.

    A column that no file has is left out. The judge then reports the missing column with its name. Raises what pyarrow
    raises for a file that cannot be read.
    """
    wanted = columns_named(expectations)
    tables = [_widened(_read(place_in(root, path), wanted)) for path in paths]
    rows = pa.concat_tables(tables, promote_options="permissive")
    return StagedRows(rows, tuple(paths), tuple(accumulate(table.num_rows for table in tables)))


def no_rows(expectations: Iterable[Expectation]) -> StagedRows:
    """Return a table without rows, with the column that each of these expectations judges."""
    names = sorted({str(each.kwargs["column"]) for each in expectations if "column" in each.kwargs})
    return StagedRows(pa.table({name: pa.nulls(0) for name in names}), (), ())


def columns_named(expectations: Iterable[Expectation]) -> frozenset[str] | None:
    """Return the columns that these expectations need, or None if one of them looks at the whole schema."""
    names: set[str] = set()
    for expectation in expectations:
        if expectation.type.startswith("expect_table_column"):
            return None
        for argument in _COLUMN_ARGUMENTS:
            value = expectation.kwargs.get(argument)
            names.update(value if isinstance(value, tuple) else [value] if isinstance(value, str) else [])
        if "row_condition" in expectation.kwargs:
            return None
    return frozenset(names)


def _read(place: StoragePlace, wanted: frozenset[str] | None) -> pa.Table:
    file = pq.ParquetFile(parquet_of(place))
    there = file.schema_arrow.names
    chosen = [name for name in there if wanted is None or name in wanted]
    return file.read(columns=chosen or there[:1])


def _widened(table: pa.Table) -> pa.Table:
    """Return small integers as 64 bits, with the same values. pandas judges these without a loop in Python."""
    fields = [
        field.with_type(pa.int64()) if pa.types.is_signed_integer(field.type) else field for field in table.schema
    ]
    return table.cast(pa.schema(fields))


def _is_wide(field: pa.Field, column: pa.ChunkedArray) -> bool:
    if field.type != pa.int64() or column.null_count in (0, len(column)):
        return False
    least, most = pc.min_max(column).as_py().values()
    return bool(max(-least, most) > _EXACT)


_OFFLINE: Final = {"GX_ANALYTICS_ENABLED": "False", "GX_CLOUD_MODE": "False"}
_PLACE: Final = "tidemark_place"
_SAMPLE: Final = 10
_LOOK_S: Final = 0.1
"""How often a judgement that waits for another one checks whether it was cancelled."""


class JudgementCancelledError(Exception):
    """The judgement was cancelled, so it has ended without a verdict."""


def never() -> bool:
    """Return False: the judgement is not cancelled."""
    return False


class Judge:
    """Judges suites. A tick has one Judge, so that Great Expectations is set up once."""

    def __init__(self, root: Root) -> None:
        """Judge files that lie under the warehouse `root`."""
        self._root = root
        self._lock = threading.Lock()
        self._batch_definition: Any = None

    def warm_up(self) -> threading.Thread:
        """Begin to import Great Expectations in the background; return the started thread."""
        thread = threading.Thread(target=self._warm, name="judge-warm-up", daemon=True)
        thread.start()
        return thread

    def judge(self, suite: Suite, files: Sequence[FileHandle], is_cancelled: Callable[[], bool] = never) -> Verdict:
        """Return the suite's verdict on all rows of these files.

        An expectation that cannot be judged (an unknown column, a wrong argument) counts as failed, with the reason.
        Without rows, only the expectations in SAYS_SOMETHING_OF_NO_ROWS are judged. Raises what pyarrow raises for an
        unreadable file, and JudgementCancelledError at the next step after `is_cancelled` has become true.
        """
        empty = not sum(file.rows for file in files)
        if empty and not suite.judges_no_rows:
            return not_looked(suite, NO_ROWS)
        _go_on_unless(is_cancelled)
        paths = [file.path for file in files]
        staged = no_rows(suite.expectations) if empty else read_staged(self._root, paths, suite.expectations)
        while not self._lock.acquire(timeout=_LOOK_S):
            _go_on_unless(is_cancelled)
        try:
            _go_on_unless(is_cancelled)
            verdicts = self._verdicts(suite, staged, is_cancelled)
        finally:
            self._lock.release()
        passed = all(each.success for each in verdicts)
        return Verdict(
            suite=suite.name, table=suite.table, passed=passed, rows=staged.rows.num_rows, expectations=verdicts
        )

    def _warm(self) -> None:
        with self._lock:
            self._definition()

    def _definition(self) -> Any:  # noqa: ANN401 - a BatchDefinition of a package imported late
        if self._batch_definition is None:
            self._batch_definition = _quiet_batch_definition()
        return self._batch_definition

    def _verdicts(
        self, suite: Suite, staged: StagedRows, is_cancelled: Callable[[], bool]
    ) -> tuple[ExpectationVerdict, ...]:
        batch = self._definition().get_batch({"dataframe": staged.to_pandas()})
        judged = dict(enumerate(suite.expectations))
        if not staged.rows.num_rows:
            judged = {at: one.of_all_rows() for at, one in judged.items() if one.type in SAYS_SOMETHING_OF_NO_ROWS}
        results = _validate(batch, suite.name, judged, "SUMMARY")
        failed = {place: suite.expectations[place] for place, found in results.items() if _has_rows(found)}
        _go_on_unless(is_cancelled)
        where = _validate(batch, suite.name, failed, "COMPLETE") if failed else {}
        return tuple(
            _verdict(expectation, results.get(place), where.get(place), staged)
            if place in judged
            else ExpectationVerdict.unlooked(expectation, NO_ROWS)
            for place, expectation in enumerate(suite.expectations)
        )


def _go_on_unless(is_cancelled: Callable[[], bool]) -> None:
    if is_cancelled():
        raise JudgementCancelledError


def _quiet_batch_definition() -> Any:  # noqa: ANN401 - a BatchDefinition of a package imported late
    os.environ.update(_OFFLINE)
    logging.getLogger("great_expectations").setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import great_expectations as gx  # noqa: PLC0415 - seconds of import, see above

        context: Any = gx.get_context(mode="ephemeral")
    context.variables.progress_bars = {"globally": False, "metric_calculations": False}
    source = context.data_sources.add_pandas("staged")
    return source.add_dataframe_asset("rows").add_batch_definition_whole_dataframe("all")


def _validate(
    batch: Any,  # noqa: ANN401 - a Batch of a package imported late
    name: str,
    expectations: Mapping[int, Expectation],
    result_format: str,
) -> dict[int, dict[str, Any]]:
    """Return each expectation's result by the expectation's place. Great Expectations does not keep their order."""
    from great_expectations.core.expectation_suite import ExpectationSuite  # noqa: PLC0415 - see above
    from great_expectations.expectations.expectation_configuration import (  # noqa: PLC0415 - see above
        ExpectationConfiguration,
    )

    found: dict[int, dict[str, Any]] = {}
    suite = ExpectationSuite(name=name)
    for place, expectation in expectations.items():
        kwargs = {key: list(value) if isinstance(value, tuple) else value for key, value in expectation.kwargs.items()}
        try:
            suite.add_expectation_configuration(
                ExpectationConfiguration(type=expectation.type, kwargs=kwargs, meta={_PLACE: place})
            )
        except Exception as error:  # noqa: BLE001 - a type or an argument that Great Expectations does not know
            found[place] = {"success": False, "error": " ".join(str(error).split())}
    if suite.expectations:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            validated = batch.validate(suite, result_format=result_format)
        found |= {int(each.expectation_config.meta[_PLACE]): _plain(each) for each in validated.results}
    return found


def _plain(result: Any) -> dict[str, Any]:  # noqa: ANN401 - a result of a package imported late
    return {"success": bool(result.success), "error": _error(result.exception_info or {}), **(result.result or {})}


def _error(exception_info: Mapping[str, Any]) -> str | None:
    """Return one message, even if Great Expectations reports an exception for each metric."""
    nested = [each for each in exception_info.values() if isinstance(each, Mapping)]
    for each in (exception_info, *nested):
        if each.get("raised_exception") and each.get("exception_message"):
            return " ".join(str(each["exception_message"]).split())
    return None


def _has_rows(found: Mapping[str, Any]) -> bool:
    return not found["success"] and found["error"] is None and bool(found.get("unexpected_count"))


def _verdict(
    expectation: Expectation, found: Mapping[str, Any] | None, where: Mapping[str, Any] | None, staged: StagedRows
) -> ExpectationVerdict:
    kwargs = expectation.plain_kwargs()
    if found is None:
        error = "Great Expectations returned no result for it"
        return ExpectationVerdict(type=expectation.type, kwargs=kwargs, success=False, error=error, files=staged.paths)
    indices = (where or {}).get("unexpected_index_list") or ()
    observed = found.get("observed_value")
    return ExpectationVerdict(
        type=expectation.type,
        kwargs=kwargs,
        success=found["success"],
        observed=None if observed is None else _shown(observed),
        unexpected_count=int(found.get("unexpected_count") or 0),
        unexpected_percent=float(found.get("unexpected_percent") or 0.0),
        sample=_sample(found.get("partial_unexpected_list") or (), whole=staged.only_integers(expectation)),
        files=() if found["success"] else staged.files_of(indices) or staged.paths,
        error=found["error"],
        unjudged=_unlooked(found) if found["success"] else None,
    )


def _unlooked(found: Mapping[str, Any]) -> str | None:
    """Return why a met expectation looked at no value, or None if it did. Most expectations ignore nulls."""
    rows, missing = found.get("element_count"), found.get("missing_count")
    if rows == 0:
        return "no row meets its condition"
    return f"all {rows} values are null" if rows is not None and rows == missing else None


def _sample(values: Sequence[object], *, whole: bool) -> tuple[str, ...]:
    return tuple(dict.fromkeys(_shown(value, whole=whole) for value in values))[:_SAMPLE]


def _shown(value: Any, *, whole: bool = False) -> str:  # noqa: ANN401 - a value of any column
    """Return a value as plain text, without numpy's or pandas' wrapper types."""
    if isinstance(value, list | tuple):
        return f"({', '.join(_shown(each, whole=whole) for each in value)})"
    if isinstance(value, str):
        return repr(value)
    if value is None or (isinstance(value, float) and value != value):  # noqa: PLR0124 - NaN is pandas' null
        return "null"
    plain = value.item() if type(value).__module__ == "numpy" else value
    return str(int(plain) if whole and isinstance(plain, float) else plain)
