"""A cluster on which processes die or stand still while flights run: the totals stay exact, and no cut is a mixture."""

import json
import os
import signal
import time
from contextlib import suppress
from itertools import combinations

import pytest

from tests.scenarios.cluster.conftest import RESTARTS, SMALL, Reader, beside, ended, executors_killed, until_committed
from tests.spark_cluster import children

pytestmark = [pytest.mark.spark, pytest.mark.kill, pytest.mark.dear, pytest.mark.timeout(900)]

STILL_S = 4
SPECULATION = """
spark.speculation true
spark.speculation.interval 100ms
spark.speculation.multiplier 1.2
spark.speculation.quantile 0.5
spark.speculation.minTaskRuntime 300ms
spark.eventLog.enabled true
spark.eventLog.rolling.enabled false
spark.eventLog.compress false
"""


@pytest.fixture(scope="module")
def january(lay_out):
    return lay_out("001")


def ran_twice_at_once(events):
    attempts = [
        ((each["Stage ID"], each["Stage Attempt ID"], each["Task Info"]["Index"]), each["Task Info"])
        for each in events
        if each["Event"] == "SparkListenerTaskEnd"
    ]
    return [
        task
        for (task, one), (other, two) in combinations(attempts, 2)
        if task == other and one["Launch Time"] < two["Finish Time"] and two["Launch Time"] < one["Finish Time"]
    ]


def test_a_random_executor_is_killed_every_few_seconds(cluster, driver):
    """This goes on for the whole run. Spark repeats the lost tasks, and the tick restarts if that happens too often."""
    process = driver.start(*SMALL, *RESTARTS)
    with Reader(driver.warehouse) as reader, executors_killed(process, cluster, driver.warehouse) as killed:
        ended(driver, process)
    assert len(killed) >= 3
    assert reader.seen
    assert [] == reader.problems
    assert {} == driver.wrong()


def test_a_worker_is_lost_for_good_and_another_joins(cluster, driver, environment):
    """After the first checkpoint one of two workers is gone. Later a new worker takes its place."""
    process = driver.start(*SMALL)
    with Reader(driver.warehouse) as reader:
        until_committed(driver, process)
        cluster.lose(cluster.workers[0])
        until_committed(driver, process, 2)
        joined = cluster.add_worker(environment)
        ended(driver, process)
    assert 2 == len(cluster.workers)
    assert list((joined.folder / "work").glob("app-*")), "the new worker ran no executor"
    assert [] == reader.problems
    assert {} == driver.wrong()


def test_a_task_that_stands_still_runs_a_second_time_beside_itself(cluster, driver):
    """Spark runs a copy of the task (speculative execution). The first attempt goes on later, and both write files."""
    conf = driver.folder / "conf"
    with (conf / "spark-defaults.conf").open("a") as settings:
        settings.write(f"{SPECULATION}spark.eventLog.dir file://{conf}\n")
    paused = iter(range(10_000))

    def stand_still():
        executors = cluster.workers[next(paused) % 2].executors()
        pythons = [pid for executor in executors for daemon in children(executor) for pid in children(daemon)]
        for pid in pythons:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)
        time.sleep(STILL_S)
        for pid in pythons:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
        return pythons

    process = driver.start(*SMALL)
    with Reader(driver.warehouse) as reader, beside(process, stand_still, 3) as stopped:
        ended(driver, process)
    assert stopped
    events = [json.loads(line) for log in conf.glob("app-*") for line in log.open()]
    begun = [each["Task Info"] for each in events if each["Event"] == "SparkListenerTaskStart"]
    assert any(task["Speculative"] for task in begun), len(begun)
    assert ran_twice_at_once(events)
    assert [] == reader.problems
    assert {} == driver.wrong()


# ------------------------------------------------------------------
# A cluster whose driver dies while flights run: the totals stay exact, and no cut is a mixture.


def test_the_driver_is_killed_and_the_next_one_goes_on(driver):
    """The executors die with the driver, or the files that they still write are never read."""
    process = driver.start(*SMALL)
    with Reader(driver.warehouse) as reader:
        until_committed(driver, process, 2)
        process.kill()
        process.wait()
        code, said = driver.run(*SMALL)
    assert 0 == code, said
    assert "generation" in said
    assert [] == reader.problems
    assert {} == driver.wrong()


# ------------------------------------------------------------------
# A Connect server on a cluster that shares nothing: a client without Java, and a server that is killed.


def test_a_killed_connect_server_comes_back_and_the_tick_goes_on(client, serving):
    """The client has no Java. Its restart strategy waits until the test has started a new server at the same port."""
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
