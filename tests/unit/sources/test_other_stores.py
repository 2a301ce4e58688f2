"""Tests that URLs of Google Cloud Storage and Azure go through the code for S3, up to a made-up address."""

import json

import pytest
from deltalake import DeltaTable
from pyspark.sql.types import LongType, StructType

from jobs.sources.delta.cut_source import CutSource
from jobs.sources.delta.delta_source import DeltaSource
from jobs.sources.files.file_source import FileSource
from jobs.sources.port import SourceError
from jobs.storage import objects
from jobs.storage.address import parsed
from jobs.warehouse.job_stores import must_be_usable
from jobs.warehouse.refusals import UnusableWarehouseError
from tests.scenarios.runtime.sequence_job import at

SCHEMA = StructType().add("n", LongType())
NOBODY = "http://127.0.0.1:9"
CANARY = "Y2FuYXJ5Q2FuYXJ5"
GOOGLE = {
    "GOOGLE_ALLOW_HTTP": "true",
    "GOOGLE_SERVICE_ACCOUNT_KEY": json.dumps(
        {"gcs_base_url": NOBODY, "disable_oauth": True, "client_email": "", "private_key": CANARY, "private_key_id": ""}
    ),
}
AZURE = {
    "AZURE_ALLOW_HTTP": "true",
    "AZURE_STORAGE_ENDPOINT": NOBODY,
    "AZURE_STORAGE_ACCOUNT_NAME": "account",
    "AZURE_STORAGE_ACCOUNT_KEY": CANARY,
}
URLS = {"gs": "gs://bucket/in", "abfss": "abfss://container@account.dfs.core.windows.net/in"}


@pytest.fixture(autouse=True)
def client(monkeypatch):
    """Let each test make a client of its own, which repeats no request, from an environment without credentials."""
    for name in ("GOOGLE_APPLICATION_CREDENTIALS", *GOOGLE, *AZURE):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(objects, "_RETRIES", 1)
    objects._client_of.cache_clear()
    yield
    objects._client_of.cache_clear()


def refusals(url):
    """Return what the sources and a warehouse say before a tick claims its job."""
    for source in (
        DeltaSource(url, schema=SCHEMA),
        FileSource(url, SCHEMA),
        CutSource(url, "shop", "silver/orders", schema=SCHEMA),
    ):
        with pytest.raises(SourceError) as raised:
            source.splits()
        yield str(raised.value)
    with pytest.raises(UnusableWarehouseError) as unusable:
        must_be_usable(at(parsed(url)))
    yield str(unusable.value)


@pytest.mark.parametrize(
    ("scheme", "variables", "way_out"),
    [
        ("gs", GOOGLE, "gcs_base_url in GOOGLE_SERVICE_ACCOUNT_KEY, if you have set it, and the network"),
        ("abfss", AZURE, "AZURE_STORAGE_ENDPOINT, if you have set it, and the network"),
    ],
)
def test_an_address_where_nobody_answers_is_named(monkeypatch, scheme, variables, way_out):
    """The sentence names the URL and the variables of that kind of store, and no secret."""
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    for said in refusals(URLS[scheme]):
        assert said.startswith(f"{URLS[scheme]}: cannot ")
        assert said.endswith(f", because the store cannot be reached: check {way_out}")
        assert "\n" not in said
        assert CANARY not in said


@pytest.mark.parametrize(
    ("scheme", "variables"),
    [("gs", "GOOGLE_APPLICATION_CREDENTIALS"), ("abfss", "AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY")],
)
def test_missing_credentials_are_named(scheme, variables):
    """The sentence says which variables hold them."""
    for said in refusals(URLS[scheme]):
        assert "because there are no credentials, neither in the environment nor from the machine's role" in said
        assert said.endswith(f": set {variables}")


@pytest.mark.parametrize("scheme", URLS)
def test_delta_rs_knows_these_urls_too(monkeypatch, scheme):
    """It reaches the network, and fails there."""
    for name, value in {**GOOGLE, **AZURE}.items():
        monkeypatch.setenv(name, value)
    options = {"max_retries": "0", "retry_timeout": "1s"}
    with pytest.raises(OSError, match=r"error sending request|127\.0\.0\.1:9|retries"):
        DeltaTable(URLS[scheme], storage_options=options)
