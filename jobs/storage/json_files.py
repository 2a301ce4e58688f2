"""Reads and writes small JSON files of a warehouse, as pydantic models."""

from typing import Final, TypeVar

from pydantic import BaseModel, ValidationError

from jobs.storage.place import StoragePlace

DOCUMENT_BYTES_MAX: Final = 64 * 1024

Document = TypeVar("Document", bound=BaseModel)


def read_document(kind: type[Document], place: StoragePlace, bytes_max: int = DOCUMENT_BYTES_MAX) -> Document | None:
    """Return the document in a JSON file, or None if the file is missing, damaged or of another format."""
    try:
        return kind.model_validate_json(place.read(bytes_max))
    except (OSError, ValidationError):
        return None


def document(content: BaseModel) -> bytes:
    """Return the content of a document's file."""
    return content.model_dump_json(indent=1).encode()
