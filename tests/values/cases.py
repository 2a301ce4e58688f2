"""Draws a case: columns, rows, how the rows are cut and read, and which operators take them."""

import base64
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import pyarrow as pa
from hypothesis import strategies as st
from pyspark.sql.types import BooleanType, DataType, LongType, StructType

from jobs.operators.spec import arrow_schema
from tests.values.odd_values import NAMES, NAN_HAS, NANS, NUMBERS, SCALARS, amounts, types, values
from tests.values.operators import OPERATORS
from tests.values.ways import WAYS

OPERATORS_MAX = 6
ROWS_MAX = 14


@dataclass(frozen=True)
class Case:
    """Rows of five columns, how they are delivered, and which operators judge them.

    The columns are the number of the row, a key, a value, an amount, and whether the row deletes its key.
    """

    columns: StructType
    rows: pa.Table
    way: str
    operators: tuple[str, ...]
    files: int
    every_rows: int
    slice_rows_max: int
    parallelism: int

    @property
    def names(self) -> Sequence[str]:
        return self.columns.names

    def with_rows(self, kept: Sequence[int]) -> Self:
        return replace(self, rows=self.rows.take(pa.array(kept, pa.int64())))

    def written(self) -> str:
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, self.rows.schema) as stream:
            stream.write_table(self.rows)
        given = {name: value for name, value in vars(self).items() if name not in ("columns", "rows")}
        written = sink.getvalue()
        size, packed = len(written), base64.b64encode(pa.compress(written, "zstd", asbytes=True)).decode()
        return json.dumps(given | {"columns": self.columns.jsonValue(), "size": size, "rows": packed})

    @classmethod
    def read(cls, text: str) -> Self:
        given: dict[str, Any] = json.loads(text)
        packed, size = base64.b64decode(given.pop("rows")), given.pop("size")
        rows = pa.ipc.open_stream(pa.decompress(packed, size, "zstd")).read_all()
        columns = StructType.fromJson(given.pop("columns"))
        return cls(columns, rows, **given | {"operators": tuple(given["operators"])})

    def shown(self) -> str:
        kinds = ", ".join(f"{field.name!r} {field.dataType.simpleString()}" for field in self.columns.fields[1:4])
        cut = f"files={self.files}, every_rows={self.every_rows}, slice_rows_max={self.slice_rows_max}"
        return f"{self.way}: {kinds}; {cut}, parallelism={self.parallelism}; rows {_rows(self.rows)}"


def _rows(table: pa.Table) -> str:
    columns = [[str(value)[:40] for value in column] for column in table.columns]
    return "; ".join(" | ".join(row) for row in zip(*columns, strict=True))


@st.composite
def cases(
    draw: st.DrawFn,
    ways: Sequence[str] = tuple(WAYS),
    operators: Sequence[str] = tuple(OPERATORS),
    *,
    odd_names: bool = True,
    keys: Sequence[DataType] = (*SCALARS, *NAN_HAS),
) -> Case:
    way = draw(st.sampled_from(ways))
    takes = WAYS[way].takes
    key = draw(st.sampled_from([kind for kind in keys if takes(kind)]))
    value = draw(types().filter(takes))
    amount = draw(st.sampled_from([kind for kind in NUMBERS if takes(kind)]))
    names = draw(st.lists(st.sampled_from(NAMES), min_size=3, max_size=3, unique_by=str.lower))
    if not odd_names or draw(st.sampled_from((True, True, False))):
        names = ["k", "v", "n"]
    columns = StructType().add("id", LongType())
    for name, kind in zip(names, (key, value, amount), strict=True):
        columns.add(name, kind)
    columns.add("gone", BooleanType())
    least = min(3, len(operators))
    some = st.lists(st.sampled_from(operators), min_size=least, max_size=OPERATORS_MAX, unique=True)
    return Case(
        columns,
        draw(_tables(columns, key, value, amount)),
        way,
        tuple(draw(some)),
        files=draw(st.integers(1, 3)),
        every_rows=draw(st.integers(2, 8)),
        slice_rows_max=draw(st.integers(1, 8)),
        parallelism=draw(st.integers(1, 4)),
    )


@st.composite
def _tables(draw: st.DrawFn, columns: StructType, key: DataType, value: DataType, amount: DataType) -> pa.Table:
    equal = st.sampled_from((*NANS, 0.0, -0.0)) if key in NAN_HAS else values(key)
    keys = draw(st.lists(values(key), min_size=1, max_size=3)) + draw(st.lists(equal, max_size=3))
    some = draw(st.lists(values(value), min_size=1, max_size=5))
    row = st.tuples(
        st.sampled_from(keys), st.sampled_from(some), amounts(amount), st.sampled_from((False, False, True, None))
    )
    rows = draw(st.integers(1, ROWS_MAX).flatmap(lambda size: st.lists(row, min_size=size, max_size=size)))
    schema = arrow_schema(columns)
    listed = [list(range(len(rows))), *map(list, zip(*rows, strict=True))]
    return pa.table([pa.array(each, field.type) for each, field in zip(listed, schema, strict=True)], schema)
