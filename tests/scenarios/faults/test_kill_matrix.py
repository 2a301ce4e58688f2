"""A real process dies by SIGKILL at each boundary of a tick. A second process ends as if nothing had happened.

Run by hand or by `make test-all`, the test covers all boundaries. `make test` covers some of them.
"""

import pytest

from tests.scenarios.faults.conftest import Matrix, kills
from tests.scenarios.faults.reader import NAMES
from tests.scenarios.processes import KILLED

ON_SPARK = ("after:RunMicroBatch", "after:AppendRow", "after:PublishTable:silver/orders")
"""At these boundaries a death leaves jobs, staged files or half of the publications, while the server lives on."""


def _begun(request, tmp_path_factory, undisturbed, label, connect_url=None):
    matrix = Matrix(tmp_path_factory.mktemp(label), undisturbed.crossed, connect_url)
    items = [item for item in request.session.items if item.function.__name__ == request.node.function.__name__]
    matrix.begin(item.callspec.params["name"] for item in items)
    return matrix


@pytest.fixture(scope="session")
def matrices():
    begun = {}
    yield begun
    for matrix in begun.values():
        matrix.close()


@pytest.fixture
def local(request, tmp_path_factory, undisturbed, matrices):
    if "local" not in matrices:
        matrices["local"] = _begun(request, tmp_path_factory, undisturbed, "local")
    return matrices["local"]


@pytest.fixture
def on_spark(request, tmp_path_factory, undisturbed, matrices, connect_url):
    if "spark" not in matrices:
        matrices["spark"] = _begun(request, tmp_path_factory, undisturbed, "spark", connect_url)
    return matrices["spark"]


def _assert_made_up_for(case, name, undisturbed):
    deaths = kills(name, undisturbed.crossed)
    assert [KILLED] * (len(deaths) - 1) == [end.code for end in case.ends[:-1]]
    assert ("caught_up", "") == (case.ends[-1].said.get("outcome"), case.ends[-1].said.get("message"))
    assert () == case.problems
    assert sorted(case.seen) == list(case.seen)
    assert undisturbed.tables == case.tables
    assert () == case.twice


@pytest.mark.kill
@pytest.mark.parametrize("name", NAMES)
def test_a_process_killed_at_any_boundary_is_made_up_for(local, undisturbed, name):
    """The tables equal an undisturbed run's. No file is left over, no id used twice, and no reader saw a mixed cut."""
    case = local.aftermath(name)
    _assert_made_up_for(case, name, undisturbed)
    assert () == case.leftovers


@pytest.mark.kill
@pytest.mark.spark
@pytest.mark.parametrize("name", ON_SPARK)
def test_a_client_of_a_warm_spark_killed_there_is_made_up_for(on_spark, undisturbed, name):
    """The Connect server goes on with the jobs of its dead client. Nothing that they write becomes visible."""
    _assert_made_up_for(on_spark.aftermath(name), name, undisturbed)
