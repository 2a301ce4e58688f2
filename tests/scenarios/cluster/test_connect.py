"""A Connect server on a cluster that shares nothing: a client without Java, and a server that is killed."""

import os
import signal

import pytest

from tests.scenarios.cluster.accidents import RESTARTS, SMALL, Reader, ended, until_committed

pytestmark = [pytest.mark.spark, pytest.mark.kill, pytest.mark.dear, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def january(lay_out):
    """Return the first half of the month."""
    return lay_out("001")


def test_a_killed_connect_server_comes_back_and_the_tick_goes_on(client, serving):
    """The client has no Java. Its restart strategy waits for the server, which something starts anew at its port."""
    with serving() as server:
        client = client.on(server.url)
        process = client.start(*SMALL, *RESTARTS)
        with Reader(client.warehouse) as reader:
            until_committed(client, process)
            os.kill(server.pid, signal.SIGKILL)
            with serving():
                ended(client, process)
    assert reader.seen
    assert [] == reader.problems
    assert {} == client.wrong()
    assert "restart" in (client.folder / "tick.log").read_text()
