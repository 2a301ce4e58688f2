"""Judges a case: builds its pipeline, runs it, and compares each table with Spark SQL over all rows at once."""

import re
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

import duckdb
import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.types import DataType

from jobs.operators.spec import InvalidSpecError, quoted
from jobs.pipeline.planning import plan
from jobs.reading import Cut
from jobs.sources.port import SourceError
from jobs.spark.jars import DELTA, JAR_SETS
from tests.values.cases import Case
from tests.values.comparing import differences
from tests.values.operators import OPERATORS, Roles
from tests.values.readers import Asked, misread
from tests.values.ways import WAYS
from tidemark import CheckpointConfig, InvalidPipelineError, Pipeline, SinkError
from tidemark.testing import TickFailedError, Trial

TRIES: Final = 10
"""How often a failed case is run again with fewer rows."""
_RAW: Final = re.compile(
    r"KeyError|ValueError|TypeError|IndexError|AttributeError|\bOverflowError|Unicode\w*Error|Arrow\w+(Error|Invalid)|Py4J|SQLSTATE|Traceback|"
    r"pyarrow\.|polars\.|ColumnNotFound|ComputeError|SchemaError|ShapeError|AnalysisException|SparkException|"
    r"ParseException|UNRESOLVED_COLUMN|DeltaError|java\.|pyo3|InvalidOperation"
)
"""Texts that no message to a user may have."""
_KIND: Final = re.compile(r"(\w+(?:Error|Exception)): ")
OWN_KINDS: Final = frozenset(
    {"MicroBatchError", "MeanOverflowError", "PartitionError", "SinkRefusedError", "SumOverflowError"}
)
"""The kinds of error by which Tidemark refuses a row. Any other error is a bug."""
_WAY_OUT: Final = re.compile(
    r"[;:,.] (?:or |and )?(rename|name|take|turn|use|cast|make|derive|drop|write|leave|choose|declare|give|correct|"
    r"filter|convert|add|keep|have|let|lay) "
)
"""Matches the advice in a message: what to type or change."""


@dataclass(frozen=True)
class Difference:
    """A difference between an operator's table and Spark SQL, or the operator's failure."""

    operator: str
    case: Case
    what: str

    def written(self) -> str:
        return f"## {self.operator}\n{self.case.shown()}\n{self.what}\n    {self.case.written()}\n"


@dataclass
class Judgement:
    """What the cases have covered, what was refused, and the differences."""

    cases: int = 0
    crossed: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    """How often each operator was compared with Spark SQL, for each type and way."""
    refused: Counter[str] = field(default_factory=Counter)
    """How often operators refused a case, for each message without its names."""
    differences: list[Difference] = field(default_factory=list)

    def refuses(self, operator: str, said: str, notes: bool) -> None:
        if notes:
            plain = re.sub(r"\S*/data/in|'.*'|(?<=vertex )\w+|(?<=column )[^;:]+?(?= (of|holds|has))", "...", said)
            self.refused[re.sub(r"\w+<.*>|\w+\([\d,]+\)|(?<=table )[^ :]+|(?<=on )\w+", "...", plain)[:160]] += 1

    def crosses(self, case: Case, operator: str) -> None:
        for name, role in zip(case.names[1:4], ("{k}", "{v}", "{n}"), strict=True):
            if role in OPERATORS[operator].sql or "*" in OPERATORS[operator].sql:
                self.crossed[operator, short(case.columns[name].dataType), case.way] += 1


def short(kind: DataType) -> str:
    """Return a type's name. Nested types are named without their parts."""
    return kind.simpleString().partition("<")[0]


@dataclass
class Judge:
    """Runs cases on one session, each in a folder of its own below `root`."""

    spark: SparkSession
    folder: Path
    tries: int = TRIES
    judgement: Judgement = field(default_factory=Judgement)

    def judge(self, case: Case) -> list[Difference]:
        self.judgement.cases += 1
        found = [self._smaller(each) for each in self._once(case)]
        self.judgement.differences += found
        return found

    def _once(self, case: Case, *, notes: bool = True) -> list[Difference]:
        with self._delivered(case) as folder:
            taken, found = [], []
            for name in case.operators:
                refused = self._refused(folder / "data", case, name)
                if refused is None:
                    taken.append(name)
                elif _is_sentence(refused, case, name):
                    self.judgement.refuses(name, refused, notes)
                else:
                    found.append(Difference(name, replace(case, operators=(name,)), f"refused by {refused}"))
            trial = Trial(_build(case, taken), folder)
            return found + (self._ran(trial, replace(case, operators=tuple(taken)), notes) if taken else [])

    def _refused(self, data: Path, case: Case, name: str) -> str | None:
        try:
            plan(_build(case, (name,))(data))
        except (InvalidPipelineError, InvalidSpecError, SourceError, SinkError) as error:
            return str(error)
        except Exception as error:  # noqa: BLE001 - anything else is a difference
            return f"Tidemark without a sentence of its own: {type(error).__name__}: {error}"
        return None

    def _ran(self, trial: Trial, case: Case, notes: bool) -> list[Difference]:
        try:
            with WAYS[case.way].forced():
                cut = trial.run()
        except Exception as error:  # noqa: BLE001 - whatever a tick raises is judged
            if len(case.operators) > 1 and not WAYS[case.way].damaged:
                return [
                    each
                    for name in case.operators
                    for each in self._once(replace(case, operators=(name,)), notes=notes)
                ]
            name, said = case.operators[0], _said(error)
            if _is_sentence(said, case, name):
                self.judgement.refuses(name, f"by a tick: {said}", notes)
                return []
            return [Difference(name, case, said)]
        return [each for name in case.operators for each in self._compared(trial, cut, case, name, notes)]

    def _due(self, trial: Trial, case: Case, name: str):
        WAYS[case.way].raw(self.spark, trial.data / "in", case.columns).createOrReplaceTempView("raw")
        return self.spark.sql(_roles(case).filled(OPERATORS[name].sql)).toArrow()

    def _compared(self, trial: Trial, cut: Cut, case: Case, name: str, notes: bool) -> Iterator[Difference]:
        operator, alone = OPERATORS[name], replace(case, operators=(name,))
        told = {each: getattr(operator, each) for each in ("exact_zeros", "unordered", "about", "nearly")}
        try:
            due = self._due(trial, case, name)
        except Exception as error:  # noqa: BLE001 - Spark cannot answer, for example because a sum does not fit
            yield Difference(name, alone, f"Spark SQL fails and Tidemark does not: {_said(error)}")
            return
        table = _table(name)
        yield from (Difference(name, alone, what) for what in differences(due, cut.arrow(table), **told))
        if operator.elsewhere is not None:
            written = operator.elsewhere(_roles(case, trial.data.parent.name.lower()), due.schema)
            yield from (
                Difference(name, alone, f"the sink's target: {what}") for what in differences(due, written, **told)
            )
        if operator.states:
            yield from (Difference(name, alone, what) for what in self._state(cut, case, name, due))
        if operator.also is not None:
            also = self.spark.sql(_roles(case).filled(operator.also)).toArrow()
            beside = f"{table.partition('/')[2]}_broadcast"
            rest = cut.state(beside).arrow() if operator.states else cut.arrow(f"{table}_also")
            yield from (Difference(name, alone, f"{table}_also: {what}") for what in differences(also, rest, **told))
        if operator.filtered is not None:
            column = (case.names[1], case.names[2])[operator.filtered == "{v}"]
            for row in {0, case.rows.num_rows - 1}:
                frame = self.spark.sql(_roles(case).filled(operator.sql))
                yield from (
                    Difference(name, alone, what)
                    for what in misread(Asked(self.spark, cut, table, frame, column, case.rows.column(column)[row]))
                )
        if notes:
            self.judgement.crosses(case, name)

    def _state(self, cut: Cut, case: Case, name: str, due: pa.Table) -> Iterator[str]:
        names = [case.names[1] if each == "{k}" else each for each in OPERATORS[name].states]
        state, columns = cut.state(_table(name).partition("/")[2]), quoted(names)
        shown = {"Polars": state.arrow(), "DuckDB": _by_duckdb(state.sql("duckdb")).cast(state.schema)}
        if DELTA in JAR_SETS:  # else this Spark reads no Delta table
            shown["Spark"] = self.spark.sql(f"SELECT {columns} FROM ({state.sql('spark')})").toArrow()
        for reader, rows in shown.items():
            yield from (f"the state by {reader}: {what}" for what in differences(due, rows.select(names)))

    def _smaller(self, found: Difference) -> Difference:
        case, tries = found.case, self.tries
        step = case.rows.num_rows // 2
        while step and tries:
            for start in range(0, case.rows.num_rows, step):
                kept = [row for row in range(case.rows.num_rows) if not start <= row < start + step]
                if not kept or not tries:
                    continue
                tries -= 1
                again = next(iter(self._once(case.with_rows(kept), notes=False)), None)
                if again is not None:
                    found, case = again, again.case
                    break
            else:
                step //= 2
            step = min(step, case.rows.num_rows // 2)
        return found

    @contextmanager
    def _delivered(self, case: Case) -> Iterator[Path]:
        folder = Path(tempfile.mkdtemp(prefix="case", dir=self.folder))
        try:
            WAYS[case.way].deliver(case.rows, folder / "data/in", case.files, self.spark, case.columns)
            yield folder
        finally:
            shutil.rmtree(folder)


def _by_duckdb(query: str) -> pa.Table:
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        return connection.execute(query).to_arrow_table()


def _build(case: Case, operators: Sequence[str]) -> Callable[[Path], Pipeline]:
    def build(data: Path) -> Pipeline:
        config = CheckpointConfig(every_rows=case.every_rows, slice_rows_max=case.slice_rows_max, retained=2)
        pipeline = Pipeline("judged", config=config, parallelism=case.parallelism)
        rows = WAYS[case.way].stream(pipeline, data / "in", case.columns)
        for name in operators:
            OPERATORS[name].build(rows, _roles(case, data.parent.name.lower()), _table(name))
        return pipeline

    return build


def _roles(case: Case, place: str = "") -> Roles:
    return Roles(*case.names, case.columns, place)


def _table(operator: str) -> str:
    return "out/" + re.sub(r"\W+", "_", operator.lower())


def _said(error: BaseException) -> str:
    kind = "" if isinstance(error, TickFailedError) else f"{type(error).__name__}: "
    return f"{kind}{error}".partition("\n")[0][:1500]


def _is_sentence(said: str, case: Case, operator: str) -> bool:
    kinds = set(_KIND.findall(said)) - OWN_KINDS
    if said.startswith("Tidemark without") or _RAW.search(said) or kinds or not _WAY_OUT.search(said):
        return False
    columns = [
        re.escape(form) for name in case.names[1:4] for form in {name, repr(name)[1:-1], name.replace("`", "``")}
    ]
    column = re.compile(rf"(column|key|field|of) ({'|'.join(columns)})(?!\w)|['`\"]({'|'.join(columns)})['`\"]")
    places = (
        _table(operator),
        _table(operator).partition("/")[2],
        "/data/in",
        "on in:",
        "on bronze:",
        "source in:",
        "KafkaSource",
        "public.",
    )
    named = WAYS[case.way].damaged or column.search(said) is not None
    return named and any(place in said for place in places)
