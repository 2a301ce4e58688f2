"""Which active files of a table carry a deletion vector: delta-rs cannot name those in a Remove."""

from urllib.parse import unquote, urlparse

import pyarrow as pa
from deltalake import DeltaTable


def paths_with_deletion_vectors(table: DeltaTable) -> frozenset[str]:
    """Return the paths, relative to the table, of active files with a deletion vector.

    Costs nothing for a table that never had the feature.
    """
    if "deletionVectors" not in (table.protocol().reader_features or ()):
        return frozenset()
    vectors = pa.RecordBatchReader.from_stream(table.deletion_vectors()).read_all()
    root = _plain(str(table.table_uri)).rstrip("/") + "/"
    return frozenset(_plain(uri).removeprefix(root) for uri in vectors.column("filepath").to_pylist())


def _plain(uri: str) -> str:
    return unquote(urlparse(uri).path) if uri.startswith("file:") else uri
