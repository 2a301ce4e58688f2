"""The demo's report: its numbers and its form. tests/scenarios/test_flights.py tests how it reads a cut."""

import sys

import polars as pl
import pytest

from jobs.pipelines.flights import build
from jobs.pipelines.flights_report import Accounting, shown_accounting, shown_routes, worst_routes
from jobs.sources.port import SourceError
from orchestration.pictures import as_text


def gold(*rows):
    names = ("carrier", "dest", "flights", "arr_delay_sum")
    return pl.DataFrame(rows, schema=names, orient="row").with_columns(arr_delay_max=pl.lit(1_200)).lazy()


def test_the_worst_routes_have_the_greatest_mean_delay():
    """Rare routes are left out, equal ones are ordered by name, and at most ten are shown."""
    routes = [
        ("AA", "RARE", 51, 51_000),
        ("EV", "CAE", 100, 4_176),
        ("B6", "SFO", 100, 1_000),
        ("AA", "SFO", 100, 1_000),
    ]
    found = worst_routes(gold(*routes, *(("ZZ", f"D{number}", 100, number) for number in range(10))))
    assert ("EV", "CAE", 100, 41.76, 1_200) == found.row(0)
    assert ["CAE", "SFO", "SFO", "D9"] == found["dest"].to_list()[:4]
    assert ["AA", "B6"] == found["carrier"].to_list()[1:3]
    assert 10 == found.height


def test_routes_are_shown_in_the_given_order():
    """Carrier, destination, flights, mean and longest delay."""
    text = as_text(shown_routes(worst_routes(gold(("EV", "CAE", 106, 4_427)))))
    assert "│ EV      │ CAE │     106 │   41.8 min │ 1,200 min │" in text


def test_the_accounting_says_whether_it_holds():
    """Bronze must equal silver + quarantine + waiting. Otherwise a clear sentence says so."""
    holds = as_text(shown_accounting(Accounting(336_776, 325_819, 9_430, 1_527)))
    assert "bronze 336,776 = silver 325,819 + quarantine 9,430 + waiting for weather 1,527  holds" in holds
    assert "DOES NOT HOLD" in as_text(shown_accounting(Accounting(336_776, 325_819, 9_430, 1_526)))


def test_without_its_input_the_demo_names_the_command_that_writes_it(tmp_path):
    """The message has the whole command."""
    vertices = [each for each in build(tmp_path).vertices() if each.id == "flights"]
    with pytest.raises(SourceError) as refused:
        vertices[0].source.splits()
    assert f"write it with '{sys.executable} -m jobs.pipelines.flights_data {tmp_path}'" in str(refused.value)
