"""`make test` runs some test of every file, and some case of every quick test function."""

from tests.long_tests import QUICK_S, in_every_run, long_tests


def test_each_file_and_each_quick_function_has_a_test_in_every_run():
    seconds = long_tests()
    chosen = in_every_run(seconds)
    assert {name.split("::")[0] for name in chosen} == {name.split("::")[0] for name in seconds}
    quick = {name.split("[")[0] for name, took in seconds.items() if took <= QUICK_S}
    assert quick <= {name.split("[")[0] for name in chosen}


def test_the_choice_depends_on_the_names_alone():
    """Processes that collect in another order run the same tests."""
    seconds = long_tests()
    assert in_every_run(dict(reversed(seconds.items()))) == in_every_run(seconds)


def test_many_cases_of_one_function_have_one_in_twelve():
    """Three of 25 quick cases run. A slow test runs only if it is the quickest one of its file."""
    matrix = {f"tests/a.py::test_kill[{number}]": 1 for number in range(25)}
    chosen = in_every_run(matrix | {"tests/a.py::test_soak": 60, "tests/b.py::test_soak": 60})
    assert len(chosen & matrix.keys()) == 3
    assert chosen - matrix.keys() == {"tests/b.py::test_soak"}
