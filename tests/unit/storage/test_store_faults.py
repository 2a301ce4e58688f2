"""Each operation of a store survives what a network and a busy server do to its requests."""

from uuid import uuid4

import pytest

from jobs.storage.address import StoreUrl
from jobs.storage.objects import ObjectStore, StoreError
from jobs.storage.place import StoragePlace
from tests.store_proxy import Fault, Harm, Proxy, Request, longest_chain


@pytest.fixture(scope="module")
def proxy(store_server):
    with Proxy(store_server) as proxy:
        yield proxy


@pytest.fixture
def store(proxy, monkeypatch):
    """Return an empty store behind the proxy."""
    for name, value in proxy.environment.items():
        monkeypatch.setenv(name, value)
    proxy.harm()
    return ObjectStore(StoreUrl(f"s3://lake/{uuid4().hex}"))


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
    """The request is repeated. A put that meets its own first attempt recognizes it."""
    do, expected = OPERATIONS[operation]
    store.write("there", b"x" * 1000)
    proxy.harm(Fault(harm, operation.partition(" ")[0], pause_s=0.02))
    assert expected == do(store)
    assert [True] == proxy.struck()


def test_an_answer_that_breaks_off_again_and_again_is_asked_for_again(proxy, store):
    """The second put finds the first one's object, and its answer says so in part only. The third one is told whole."""
    proxy.harm(Fault(Harm.HALF, "PUT", "new", times=2))
    store.write("new", b"12345")
    assert b"12345" == store.read("new").bytes


def test_somebody_elses_object_is_not_taken_for_ones_own(proxy, store):
    """The reply to the second writer is lost. What it meets is the first one's."""
    store.write("taken", b"first")
    proxy.harm(Fault(Harm.CUT_AFTER, "PUT", "taken"))
    with pytest.raises(FileExistsError):
        store.write("taken", b"second")
    assert b"first" == store.read("taken").bytes


@pytest.mark.dear
def test_a_burst_of_refusals_is_waited_for_and_a_longer_one_is_an_error(proxy, store):
    """Seven refusals in a row pass. There is a bound, the pauses grow, and the error names the object."""
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
    """Of requests at the same time one counts."""
    times = [(0, 3), (1, 2), (2, 3), (2.5, 5), (3, 4), (3.5, 4), (4, 6)]
    assert 4 == longest_chain([Request("GET", "", *each) for each in times])
    assert 0 == longest_chain([])
