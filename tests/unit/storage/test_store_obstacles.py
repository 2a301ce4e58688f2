"""Tests that a store that cannot serve a warehouse is refused by name, with the way out and without a secret."""

import pytest

from jobs.storage.address import StoreUrl
from jobs.storage.objects import ObjectStore, StoreError, worded
from jobs.storage.write_checks import broken_promises, store_obstacles
from tests.object_store import SECRET, serving

URL = StoreUrl("s3://lake/w")


def test_a_sound_store_has_no_obstacle(store):
    """The check leaves no file in it."""
    assert [] == list(store_obstacles(store, "_tidemark/job"))
    assert [] == list(broken_promises(store, "_tidemark/job"))
    assert [] == list(store.list("", deep=True))


def test_a_store_that_checks_and_then_puts_is_refused(monkeypatch):
    """Moto in several threads lets two writers create one object."""
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


def test_a_missing_bucket_is_named(store):
    """Moto itself gives this answer. The other tests use answers of real stores."""
    (found,) = store_obstacles(ObjectStore(StoreUrl("s3://nowhere/w")), "_tidemark/job")
    assert "the bucket does not exist" in found.what
    assert "name another one" in found.way_out


def test_an_unreachable_endpoint_is_named(store, monkeypatch):
    """It happens within a bound, and the message does not repeat the secret."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    with pytest.raises(StoreError, match=r"the store cannot be reached: check AWS_ENDPOINT_URL") as raised:
        ObjectStore(StoreUrl("s3://lake/elsewhere")).read("x")
    assert SECRET not in str(raised.value)


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
    """It names the store, the operation, the cause and the way out."""
    error = worded(URL, "write", "probe", said)
    assert cause in error.what
    assert str(error).startswith("s3://lake/w: cannot write probe, because ")
    assert "\n" not in str(error)


def test_another_error_is_reported_by_its_first_line():
    """The lines that a client prints for its developers are left out."""
    error = worded(URL, "list", "", "Generic S3 error: odd\n\nDebug source: secret")
    said = "s3://lake/w: cannot list the prefix (Generic S3 error: odd): see what the store says of it, and try again"
    assert said == str(error)
