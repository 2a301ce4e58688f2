"""Tests stores of objects and folders."""

import json
from pathlib import Path
from uuid import uuid4

import pytest
from deltalake import DeltaTable
from pyspark.sql.types import LongType, StructType

from jobs.sources.delta.cut_source import CutSource
from jobs.sources.delta.delta_source import DeltaSource
from jobs.sources.files.file_source import FileSource
from jobs.sources.port import SourceError
from jobs.storage import objects
from jobs.storage.address import InvalidAddressError, StoreUrl, is_inside, is_same, parsed
from jobs.storage.objects import ObjectStore, StoreError, worded
from jobs.storage.place import StoragePlace
from jobs.storage.write_checks import broken_promises, store_obstacles
from jobs.warehouse.job_stores import must_be_usable
from jobs.warehouse.refusals import UnusableWarehouseError
from tests.object_store import serving
from tests.scenarios.runtime.sequence_job import at
from tests.store_proxy import Fault, Harm, Proxy, Request, longest_chain


@pytest.fixture(scope="session")
def proxy(each_store):
    with Proxy(each_store) as proxy:
        yield proxy


@pytest.fixture
def store(proxy, monkeypatch):
    for name, value in proxy.environment.items():
        monkeypatch.setenv(name, value)
    proxy.harm()
    return ObjectStore(parsed(f"{proxy.server.url()}/{uuid4().hex}"))


def _write(store):
    store.write("new", b"12345")
    return store.read("new").bytes


def _replace(store):
    store.replace("there", b"54321")
    return store.read("there").bytes


def _copy(store):
    store.copy("there", "new")
    return store.read("new").bytes


def _delete(store):
    store.delete("there")
    return [each.name for each in store.list("")]


OPERATIONS = {
    "PUT write": (_write, b"12345"),
    "PUT replace": (_replace, b"54321"),
    "GET read": (lambda store: store.read("there").bytes, b"x" * 1000),
    "HEAD size": (lambda store: StoragePlace(store, "there").size(), 1000),
    "LIST list": (lambda store: [each.name for each in store.list("")], ["there"]),
    "LIST deep list": (lambda store: [each.name for each in store.list("", deep=True)], ["there"]),
    "COPY copy": (_copy, b"x" * 1000),
    "DELETE delete": (_delete, []),
}


@pytest.mark.matrix
@pytest.mark.parametrize("harm", Harm)
@pytest.mark.parametrize("operation", OPERATIONS)
def test_an_operation_survives_each_harm(proxy, store, operation, harm):
    """The request is repeated. A put recognizes the object of its own first attempt."""
    do, expected = OPERATIONS[operation]
    store.write("there", b"x" * 1000)
    proxy.harm(Fault(harm, operation.partition(" ")[0], pause_s=0.02))
    assert expected == do(store)
    assert [True] == proxy.struck()


def test_an_answer_that_breaks_off_again_and_again_is_asked_for_again(proxy, store):
    """The second put finds the first one's object, but its answer breaks off. The third put gets the whole answer."""
    proxy.harm(Fault(Harm.HALF, "PUT", "new", times=2))
    store.write("new", b"12345")
    assert b"12345" == store.read("new").bytes


def test_somebody_elses_object_is_not_taken_for_ones_own(proxy, store):
    """The reply to the second writer is lost. The object that its repeated put finds is the first writer's."""
    store.write("taken", b"first")
    proxy.harm(Fault(Harm.CUT_AFTER, "PUT", "taken"))
    with pytest.raises(FileExistsError):
        store.write("taken", b"second")
    assert b"first" == store.read("taken").bytes


@pytest.mark.dear
def test_a_burst_of_refusals_is_waited_for_and_a_longer_one_is_an_error(proxy, store):
    """Seven refusals in a row are waited for.

    The number of tries is bounded, the pauses grow, and the error names the object.
    """
    proxy.harm(Fault(Harm.BUSY, "PUT", "burst", times=7))
    store.write("burst", b"x")
    proxy.harm(Fault(Harm.BUSY, "PUT", "never", times=1_000))
    before = len(proxy.seen())
    with pytest.raises(StoreError, match="cannot write never, because the store is too busy"):
        store.write("never", b"x")
    tries = [each for each in proxy.seen()[before:] if each.key.endswith("never")]
    assert 8 == len(tries)
    assert tries[-1].began - tries[4].began > tries[3].began - tries[0].began


def test_the_longest_chain_counts_requests_that_waited_for_each_other():
    times = [(0, 3), (1, 2), (2, 3), (2.5, 5), (3, 4), (3.5, 4), (4, 6)]
    assert 4 == longest_chain([Request("GET", "", *each) for each in times])
    assert 0 == longest_chain([])


# ------------------------------------------------------------------
# Tests that a store that cannot serve a warehouse is refused. The error names the store and the way out, and has no
# secret.


URL = StoreUrl("s3://lake/w")


def test_a_sound_store_has_no_obstacle(store):
    """The check leaves no file in the store."""
    assert [] == list(store_obstacles(store, "_tidemark/job"))
    assert [] == list(broken_promises(store, "_tidemark/job"))
    assert [] == list(store.list("", deep=True))


def test_a_store_that_checks_and_then_puts_is_refused(monkeypatch):
    """With several threads, the server Moto lets two writers create one object."""
    with serving(threads=True) as server:
        server.make_bucket("broken")
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        store = ObjectStore(StoreUrl("s3://broken/w"))
        assert [] == list(store_obstacles(store, "_tidemark/job"))
        (found,) = broken_promises(store, "_tidemark/job")
    assert found.what.startswith("s3://broken/w let ")
    assert "writers create one object, so two ticks could both commit" in found.what
    assert "conditional put" in found.way_out


def test_a_missing_bucket_is_named(store, proxy):
    """Here a server gives the answer. Other tests use recorded answers of real stores."""
    (found,) = store_obstacles(ObjectStore(parsed(f"{proxy.server.url('nowhere')}/w")), "_tidemark/job")
    assert "the bucket does not exist" in found.what
    assert "name another one" in found.way_out


@pytest.mark.usefixtures("client")
def test_an_unreachable_endpoint_is_named(proxy, monkeypatch):
    """The error comes within a limited time, and its message repeats no secret."""
    for name, value in proxy.server.unreachable.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(StoreError, match=f"the store cannot be reached: check {proxy.server.named}") as raised:
        ObjectStore(parsed(f"{proxy.server.url()}/elsewhere")).read("x")
    assert not any(secret in str(raised.value) for secret in proxy.server.secrets)


@pytest.mark.parametrize(
    ("said", "cause"),
    [
        ("<Code>SignatureDoesNotMatch</Code>", "does not accept the credentials"),
        ("<Code>InvalidAccessKeyId</Code>", "does not accept the credentials"),
        ("<Code>RequestTimeTooSkewed</Code><Message>The difference between the request time ...", "clock"),
        (
            "Received redirect without LOCATION, this normally indicates an incorrectly configured region: 301 Moved",
            "region",
        ),
        ("<Code>AuthorizationHeaderMalformed</Code> the region 'us-east-1' is wrong; expecting 'eu-west-1'", "region"),
        ("Client error with status 403 Forbidden: <Code>AccessDenied</Code>", "forbids it"),
        ("Error performing PUT http://169.254.169.254/latest/api/token: error sending request", "no credentials"),
    ],
)
def test_an_answer_of_a_store_becomes_one_sentence(said, cause):
    """The sentence names the store, the operation, the cause and the way out."""
    error = worded(URL, "write", "probe", said)
    assert cause in error.what
    assert str(error).startswith("s3://lake/w: cannot write probe, because ")
    assert "\n" not in str(error)


def test_another_error_is_reported_by_its_first_line():
    """The lines that a client prints for its developers are left out."""
    error = worded(URL, "list", "", "Generic S3 error: odd\n\nDebug source: secret")
    said = "s3://lake/w: cannot list the prefix (Generic S3 error: odd): see what the store says of it, and try again"
    assert said == str(error)


# ------------------------------------------------------------------
# Tests the address of a warehouse, which is a path, or a plain URL of a store without secrets.


@pytest.mark.parametrize(
    "text", ["s3://lake", "s3://lake/team/warehouse", "gs://lake/w", "abfss://box@account1.dfs.core.windows.net/w"]
)
def test_urls_of_stores_are_kept(text):
    """A slash at the end makes no difference."""
    assert StoreUrl(text) == parsed(text) == parsed(f"{text}/")
    assert text == str(parsed(text))


@pytest.mark.parametrize("text", ["warehouse", "/data/w", "../x y", "s3:/one-slash", "C:/data"])
def test_all_other_texts_are_paths(text):
    """A text that only resembles a URL is a path, too."""
    assert Path(text) == parsed(text)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("s3a://lake/w", "write s3://"),
        ("hdfs://name/w", "there are s3, gs, abfss"),
        ("s3://", "is not the name of a bucket"),
        ("s3://key:secret@lake/w", "credentials are no part of it"),
        ("s3://lake/w?region=x", "not plain"),
        ("s3://lake/a/../b", "not plain"),
        ("s3://lake/a//b", "not plain"),
        ("s3://lake/a%20b", "not plain"),
        ("abfss://lake/w", "CONTAINER@ACCOUNT"),
    ],
)
def test_other_urls_are_refused(text, said):
    """The message of the refusal repeats no password."""
    with pytest.raises(InvalidAddressError, match=said) as refused:
        parsed(text)
    assert "secret" not in str(refused.value)


def test_a_place_inside_another_is_recognized(tmp_path):
    """Links are followed. A neighbour whose name only begins with the place's name does not lie inside."""
    (tmp_path / "link").symlink_to(tmp_path)
    assert is_same(tmp_path, tmp_path / "link")
    assert is_inside(tmp_path / "link/copy", tmp_path)
    assert is_inside(parsed("s3://lake/w/copy"), parsed("s3://lake/w"))
    assert not is_inside(parsed("s3://lake/w2"), parsed("s3://lake/w"))
    assert not is_inside(parsed("s3://lake/w"), tmp_path)


# ------------------------------------------------------------------
# Tests that URLs of Google Cloud Storage and Azure go through the same code as S3, up to an address where nothing
# answers.


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


@pytest.fixture
def client(monkeypatch):
    """Let a test make its own client, from an environment without credentials. The client retries no request."""
    for name in ("GOOGLE_APPLICATION_CREDENTIALS", *GOOGLE, *AZURE):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(objects, "_RETRIES", 1)
    objects._client_of.cache_clear()
    yield
    objects._client_of.cache_clear()


def refusals(url):
    """Yield the errors of the sources and of a warehouse before a tick claims its job."""
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


@pytest.mark.usefixtures("client")
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


@pytest.mark.usefixtures("client")
@pytest.mark.parametrize(
    ("scheme", "variables"),
    [("gs", "GOOGLE_APPLICATION_CREDENTIALS"), ("abfss", "AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY")],
)
def test_missing_credentials_are_named(scheme, variables):
    """The sentence names the variables for the credentials."""
    for said in refusals(URLS[scheme]):
        assert "because there are no credentials, neither in the environment nor from the machine's role" in said
        assert said.endswith(f": set {variables}")


@pytest.mark.usefixtures("client")
@pytest.mark.parametrize("scheme", URLS)
def test_delta_rs_knows_these_urls_too(monkeypatch, scheme):
    """delta-rs accepts the URL, and fails only at the network."""
    for name, value in {**GOOGLE, **AZURE}.items():
        monkeypatch.setenv(name, value)
    options = {"max_retries": "0", "retry_timeout": "1s"}
    with pytest.raises(OSError, match=r"error sending request|127\.0\.0\.1:9|retries"):
        DeltaTable(URLS[scheme], storage_options=options)
