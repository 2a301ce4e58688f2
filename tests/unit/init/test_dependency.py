"""What a new project depends on: this very Tidemark, never a name under which an index may offer another package."""

import json
from importlib import metadata
from pathlib import Path

import pytest

from jobs.cli.errors import ExitCode
from jobs.cli.main import execute
from jobs.init import dependency
from jobs.init.dependency import UnknownOriginError, requirement

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def installed(monkeypatch):
    """Let this Tidemark have been installed with a given record of where it came from; None: with no record."""

    def install(recorded):
        class Installed:
            def read_text(self, name):
                assert "direct_url.json" == name
                return None if recorded is None else json.dumps(recorded)

        monkeypatch.setattr(dependency.Distribution, "from_name", lambda _: Installed())

    return install


def test_from_a_checkout_it_is_the_checkouts_path():
    """This test runs from one."""
    assert f"tidemark-spark[dagster] @ {ROOT.as_uri()}" == requirement()


def test_from_a_wheels_file_it_is_that_file(installed, tmp_path):
    """The installer records the file; a space in its path is written as an address has it."""
    wheel = tmp_path / "my wheels" / "tidemark_spark-0.1.0-py3-none-any.whl"
    wheel.parent.mkdir()
    wheel.touch()
    installed({"url": wheel.as_uri(), "archive_info": {}})
    assert f"tidemark-spark[dagster] @ {wheel.as_uri()}" == requirement()


def test_from_a_repository_it_is_the_very_commit(installed):
    """A branch would move on."""
    at = {"url": "https://host/tidemark.git", "vcs_info": {"vcs": "git", "commit_id": "abc"}}
    installed(at)
    assert "tidemark-spark[dagster] @ git+https://host/tidemark.git@abc" == requirement()
    installed(at | {"subdirectory": "python"})
    assert requirement().endswith("@abc#subdirectory=python")


@pytest.mark.parametrize("recorded", [None, {"url": "file:///gone/tidemark_spark-0.1.0-py3-none-any.whl"}])
def test_where_the_origin_is_unknown_nothing_is_written_and_the_user_is_asked(installed, recorded, tmp_path, capsys):
    """Installed by name, or from a file that is gone: the command says which option to give."""
    installed(recorded)
    assert ExitCode.USAGE == execute(["init", str(tmp_path / "shop")])
    assert "say what the project depends on with --tidemark" in capsys.readouterr().err
    assert [] == list(tmp_path.iterdir())


def test_not_installed_at_all_the_user_is_asked(monkeypatch):
    """Source on the path alone has no distribution."""

    def missing(name):
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(dependency.Distribution, "from_name", missing)
    with pytest.raises(UnknownOriginError, match="--tidemark"):
        requirement()


def test_what_the_user_names_is_what_is_written(tmp_path):
    """A checkout or wheel by its path, or a requirement with a version or an address."""
    wheel = tmp_path / "tidemark_spark-0.1.0-py3-none-any.whl"
    wheel.touch()
    assert f"tidemark-spark[dagster] @ {ROOT.as_uri()}" == requirement(str(ROOT))
    assert f"tidemark-spark[dagster] @ {wheel.as_uri()}" == requirement(str(wheel))
    assert "tidemark-spark[dagster]==0.1.0" == requirement("tidemark-spark==0.1.0")
    assert "tidemark_spark[dagster,demo]>=0.1,<0.2" == requirement("tidemark_spark [demo] >=0.1,<0.2")
    assert "tidemark-spark[dagster] @ https://host/t.whl" == requirement("tidemark-spark @ https://host/t.whl")


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ("tidemark==0.1.0", "the package 'tidemark' is not this software, which is distributed as 'tidemark-spark'"),
        ("tidemark", "the package 'tidemark' is not this software"),
        ("tidemark-spark", "say which version or where it lies"),
        ("../nowhere", "there is no such file or folder"),
        ("nowhere/tidemark_spark-0.1.0-py3-none-any.whl", "there is no such file or folder"),
        ("", "there is no such file or folder"),
    ],
)
def test_what_may_be_another_package_is_refused(asked, said, tmp_path, monkeypatch):
    """The sentence says what is wrong and what can be given."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UnknownOriginError) as refused:
        requirement(asked)
    assert said in str(refused.value)
    assert "a checkout, a wheel, or a requirement such as 'tidemark-spark==0.1.0'" in str(refused.value)


@pytest.mark.parametrize("content", ['[project]\nname = "tidemark"\n', "", None])
def test_a_folder_or_wheel_of_something_else_is_refused(content, tmp_path):
    """The strangers' checkout, a folder that is no project, and their wheel."""
    if content is not None:
        (tmp_path / "pyproject.toml").write_text(content)
    stranger = tmp_path / "tidemark-2.0-py3-none-any.whl"
    stranger.touch()
    for path in (tmp_path, stranger):
        with pytest.raises(UnknownOriginError, match="this is not tidemark-spark"):
            requirement(str(path))
