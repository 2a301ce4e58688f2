"""Provides a folder and an S3 server as storages."""

from uuid import uuid4

import pytest

from jobs.storage.address import StoreUrl
from jobs.storage.folder import Folder
from jobs.storage.objects import ObjectStore


@pytest.fixture
def store(store_server, monkeypatch):
    for name, value in store_server.environment.items():
        monkeypatch.setenv(name, value)
    return ObjectStore(StoreUrl(f"s3://lake/{uuid4().hex}"))


@pytest.fixture(params=["folder", "store"])
def storage(request, tmp_path):
    return Folder(tmp_path / "warehouse") if request.param == "folder" else request.getfixturevalue("store")
