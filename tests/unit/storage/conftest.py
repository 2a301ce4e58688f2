"""Provides storages for tests: a folder, and object stores on servers."""

from uuid import uuid4

import pytest

from jobs.storage.address import StoreUrl
from jobs.storage.folder import Folder
from jobs.storage.objects import ObjectStore
from tests.cloud_stores import STORES


@pytest.fixture
def store(each_store, monkeypatch):
    return store_of(each_store, monkeypatch)


def store_of(server, monkeypatch):
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    return ObjectStore(StoreUrl(f"{server.url()}/{uuid4().hex}"))


@pytest.fixture(params=["folder", *STORES])
def storage(request, tmp_path, monkeypatch):
    if request.param == "folder":
        return Folder(tmp_path / "warehouse")
    return store_of(request.getfixturevalue(request.param), monkeypatch)
