"""Computes the hash of key columns as Spark does. So a key's group is the same whether Spark or a task reads its row.

Source: Spark's `Murmur3Hash` with seed 42 (`hash.scala`, `Murmur3_x86_32.java`). The hash of a column is the seed of
the next column, and a null leaves the hash as it is. All arithmetic has 32 bits and wraps around.
"""

import json
from collections.abc import Sequence
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from checkpointing.key_groups import KeyGroupRange

_SEED: Final = np.uint32(42)
_LONG_DIGITS: Final = 18
"""Spark hashes a decimal of up to so many digits as a long, and a longer one as bytes."""
_DECIMAL_BYTES: Final = 16
_FEW: Final = 128
"""Fewer rows than this are hashed one by one.

Numpy takes as long for one word of one row as for one of so many rows.
"""
_PART_BYTES: Final = 1024 * 1024

_SAID: Final = b"tidemark.key_groups"
"""The entry of a file's footer that says which key groups its rows have."""

_U32 = NDArray[np.uint32]


def can_hash(kind: pa.DataType) -> bool:
    """Return whether `key_groups` takes a key column of this type. Spark must hash keys of the other types."""
    plain = (
        pa.types.is_boolean,
        pa.types.is_signed_integer,
        pa.types.is_float32,
        pa.types.is_float64,
        pa.types.is_date32,
        pa.types.is_string,
        pa.types.is_binary,
        pa.types.is_decimal128,
    )
    if pa.types.is_timestamp(kind):
        return bool(kind.unit == "us")
    return any(is_kind(kind) for is_kind in plain)


def key_groups(keys: Sequence[pa.Array], max_parallelism: int) -> pa.Array:
    """Return the key group of each row: Spark's `pmod(hash(keys), max_parallelism)`, as int32."""
    hashes = np.full(len(keys[0]), _SEED, np.uint32)
    for column in keys:
        known = None if column.null_count == 0 else pc.is_valid(column).to_numpy(zero_copy_only=False)
        hashed = _hashed(column, hashes)
        hashes = hashed if known is None else np.where(known, hashed, hashes)
    return pa.array(np.mod(hashes.view(np.int32), np.int32(max_parallelism)))


def saying_groups(rows: pa.Table, keys: Sequence[str], max_parallelism: int) -> dict[bytes, bytes]:
    """Return metadata for a file with these rows: their first and last key group by these columns.

    So a subtask that reads the file can skip rows of other key groups without reading them. The metadata is empty if
    there are no rows, or if `key_groups` does not take the columns.
    """
    columns = [rows.column(key).combine_chunks() for key in keys if key in rows.schema.names]
    if not rows.num_rows or len(columns) < len(keys) or not all(can_hash(column.type) for column in columns):
        return {}
    bounds = pc.min_max(key_groups(columns, max_parallelism)).as_py()
    said = {"by": list(keys), "first": bounds["min"], "last": bounds["max"], "of": max_parallelism}
    return {_SAID: json.dumps(said).encode()}


def said_groups(
    schema: pa.Schema, keys: Sequence[str], wanted: pa.Schema, max_parallelism: int
) -> KeyGroupRange | None:
    """Return the key groups that a file with this schema records for these columns. None: the file has no record.

    The hash depends on the type. So the result is also None if a column is read as a `wanted` type that is not the
    file's type.
    """
    found = json.loads((schema.metadata or {}).get(_SAID, b"{}"))
    if found.get("by") != list(keys) or found["of"] != max_parallelism:
        return None
    if any(schema.field(key).type != wanted.field(key).type for key in keys):
        return None
    return KeyGroupRange(first=found["first"], last=found["last"])


def landing(count: int) -> list[int]:
    """Return for each of `count` Spark partitions the least number that `DataFrame.repartition` puts there."""
    found: dict[int, int] = {}
    first = 0
    while len(found) < count:
        numbers = range(first, first + _FEW * count)
        for number, place in zip(numbers, key_groups([pa.array(numbers, pa.int32())], count).to_pylist(), strict=True):
            found.setdefault(place, number)
        first = numbers.stop
    return [found[place] for place in range(count)]


def _hashed(column: pa.Array, seeds: _U32) -> _U32:
    """Return the hashes of a column's values. The hash of a null has no meaning."""
    kind = column.type
    if pa.types.is_decimal128(kind):
        return _of_decimals(column, seeds)
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        return _of_bytes(column, seeds)
    if pa.types.is_boolean(kind) or pa.types.is_signed_integer(kind) and kind.bit_width < 64:  # noqa: PLR2004, RUF021
        return _of_ints(_values(column.cast(pa.int32())).view(np.uint32), seeds)
    if pa.types.is_date32(kind):
        return _of_ints(_values(column.view(pa.int32())).view(np.uint32), seeds)
    if pa.types.is_float32(kind):
        return _of_ints(_canonical(_values(column)).view(np.uint32), seeds)
    if pa.types.is_float64(kind):
        return _of_longs(_canonical(_values(column)).view(np.uint64), seeds)
    return _of_longs(_values(column.view(pa.int64())).view(np.uint64), seeds)


def _values(column: pa.Array) -> NDArray[np.generic]:
    return np.ascontiguousarray(pc.fill_null(column, 0).to_numpy(zero_copy_only=False))


def _canonical(values: NDArray[np.generic]) -> NDArray[np.generic]:
    """Return the numbers with one form of zero and one of "not a number", as in Java."""
    plain = np.where(values == 0, values.dtype.type(0), values)
    return np.where(np.isnan(plain), values.dtype.type("nan"), plain)


def _of_ints(words: _U32, seeds: _U32) -> _U32:
    return _finished(_mixed(seeds, words), np.uint32(4))


def _of_longs(values: NDArray[np.uint64], seeds: _U32) -> _U32:
    low, high = values.astype(np.uint32), (values >> np.uint64(32)).astype(np.uint32)
    return _finished(_mixed(_mixed(seeds, low), high), np.uint32(8))


def _of_decimals(column: pa.Array, seeds: _U32) -> _U32:
    """Return the hashes of decimals.

    The digits are hashed as a long, or as the fewest bytes that hold them and the sign.
    """
    words = _values_of_decimals(column)
    if column.type.precision <= _LONG_DIGITS:
        return _of_longs(np.ascontiguousarray(words[:, 0]), seeds)
    signed = words[:, ::-1].byteswap().view(np.uint8).reshape(len(column), _DECIMAL_BYTES)  # the first byte first
    spare = np.logical_and.accumulate(_say_nothing(signed), axis=1).sum(axis=1)
    kept = np.arange(_DECIMAL_BYTES) >= spare[:, np.newaxis]
    ends = np.concatenate([[0], np.cumsum(_DECIMAL_BYTES - spare)]).astype(np.int64)
    buffers = [None, pa.py_buffer(ends), pa.py_buffer(np.ascontiguousarray(signed[kept]))]
    return _of_bytes(pa.Array.from_buffers(pa.large_binary(), len(column), buffers), seeds)


def _values_of_decimals(column: pa.Array) -> NDArray[np.uint64]:
    """Return the two words of each value, the lower word first. The words of a null have no meaning."""
    words = np.frombuffer(column.buffers()[1] or b"", np.uint64).reshape(-1, 2)
    return words[column.offset : column.offset + len(column)]


def _say_nothing(signed: NDArray[np.uint8]) -> NDArray[np.bool_]:
    """Return which bytes only repeat the sign of the byte behind them. The last byte is never one of these."""
    signs = np.where(signed[:, 1:] & 0x80, 0xFF, 0).astype(np.uint8)
    repeated = signed[:, :-1] == signs
    return np.hstack([repeated, np.zeros((len(signed), 1), np.bool_)])


def _of_bytes(column: pa.Array, seeds: _U32) -> _U32:
    """Return the hashes of texts or bytes.

    Whole words go in first, then the remaining bytes, each as a signed number.
    """
    plain = column.cast(pa.large_binary())
    _, bounds, content = plain.buffers()
    ends = np.frombuffer(bounds, np.int64)[plain.offset : plain.offset + len(plain) + 1]
    data = np.frombuffer(content or b"", np.uint8)
    starts, lengths = ends[:-1], np.diff(ends)
    hashes = seeds.copy()
    words = lengths // 4
    together = int(np.sort(words)[-_FEW]) if len(words) >= _FEW else 0
    for word in range(together):
        rows = np.flatnonzero(words > word)
        at = starts[rows] + 4 * word
        read = [data[at + byte].astype(np.uint32) << np.uint32(8 * byte) for byte in range(4)]
        hashes[rows] = _mixed(hashes[rows], read[0] | read[1] | read[2] | read[3])
    for row in np.flatnonzero(words > together):
        rest = data[starts[row] + 4 * together : starts[row] + 4 * words[row]]
        hashes[row] = _of_long_text(rest, int(hashes[row]))
    for byte in range(3):
        rows = np.flatnonzero(lengths % 4 > byte)
        signed = data[starts[rows] + 4 * words[rows] + byte].view(np.int8).astype(np.int32).view(np.uint32)
        hashes[rows] = _mixed(hashes[rows], signed)
    return _finished(hashes, lengths.astype(np.uint32))


def _of_long_text(data: NDArray[np.uint8], seed: int) -> int:
    """Return the hash after these bytes, which are whole words.

    The hash after a word depends on the hash after the word before. So numpy mixes all words at once, and a loop over
    Python numbers does the rest. For one row, numpy would take two hundred times as long for each word.
    """
    known = seed
    for start in range(0, len(data), _PART_BYTES):
        words = np.frombuffer(data[start : start + _PART_BYTES].tobytes(), "<u4")
        for word in _mixed_alone(words).tolist():
            known ^= word
            known = ((known << 13 | known >> 19) * 5 + 0xE6546B64) & 0xFFFFFFFF  # more than 32 bits go at the end
    return known


def _mixed(hashes: _U32, words: _U32) -> _U32:
    """Return the hashes after one word more (`mixH1`)."""
    return _rotated(hashes ^ _mixed_alone(words), 13) * np.uint32(5) + np.uint32(0xE6546B64)


def _mixed_alone(words: _U32) -> _U32:
    """Return the words in the form that is mixed into a hash (`mixK1`)."""
    return _rotated(words * np.uint32(0xCC9E2D51), 15) * np.uint32(0x1B873593)


def _rotated(words: _U32, bits: int) -> _U32:
    return (words << np.uint32(bits)) | (words >> np.uint32(32 - bits))


def _finished(hashes: _U32, lengths: "_U32 | np.uint32") -> _U32:
    """Return the final hashes (`fmix`)."""
    hashes = hashes ^ lengths
    hashes = (hashes ^ (hashes >> np.uint32(16))) * np.uint32(0x85EBCA6B)
    hashes = (hashes ^ (hashes >> np.uint32(13))) * np.uint32(0xC2B2AE35)
    return hashes ^ (hashes >> np.uint32(16))
