"""A new project depends on exactly this Tidemark, and never on a name that an index may give to another package."""

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
    """Install this Tidemark with a record of its origin, or without one (None)."""

    def install(recorded):
        class Installed:
            def read_text(self, name):
                assert "direct_url.json" == name
                return None if recorded is None else json.dumps(recorded)

        monkeypatch.setattr(dependency.Distribution, "from_name", lambda _: Installed())

    return install


def test_a_checkout_is_named_by_its_path():
    """This test runs from one."""
    assert f"tidemark-spark[dagster] @ {ROOT.as_uri()}" == requirement()


def test_a_wheel_is_named_by_its_file(installed, tmp_path):
    """The installer has recorded the file. A space in its path is encoded as in an address."""
    wheel = tmp_path / "my wheels" / "tidemark_spark-0.1.0-py3-none-any.whl"
    wheel.parent.mkdir()
    wheel.touch()
    installed({"url": wheel.as_uri(), "archive_info": {}})
    assert f"tidemark-spark[dagster] @ {wheel.as_uri()}" == requirement()


def test_a_repository_is_named_with_the_exact_commit(installed):
    """A branch would change later."""
    at = {"url": "https://host/tidemark.git", "vcs_info": {"vcs": "git", "commit_id": "abc"}}
    installed(at)
    assert "tidemark-spark[dagster] @ git+https://host/tidemark.git@abc" == requirement()
    installed(at | {"subdirectory": "python"})
    assert requirement().endswith("@abc#subdirectory=python")


@pytest.mark.parametrize("recorded", [None, {"url": "file:///gone/tidemark_spark-0.1.0-py3-none-any.whl"}])
def test_without_a_known_origin_the_user_is_asked(installed, recorded, tmp_path, capsys):
    """It was installed by name, or its file is gone. Nothing is written, and the message names the option."""
    installed(recorded)
    assert ExitCode.USAGE == execute(["init", str(tmp_path / "shop")])
    assert "say what the project depends on with --tidemark" in capsys.readouterr().err
    assert [] == list(tmp_path.iterdir())


def test_without_an_installation_the_user_is_asked(monkeypatch):
    """Source code on the path has no distribution."""

    def missing(name):
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(dependency.Distribution, "from_name", missing)
    with pytest.raises(UnknownOriginError, match="--tidemark"):
        requirement()


def test_the_users_own_words_are_written(tmp_path):
    """They are the path of a checkout or wheel, or a requirement with a version or an address."""
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
def test_a_name_that_may_be_another_package_is_refused(asked, said, tmp_path, monkeypatch):
    """The message says what is wrong, and what the user can give."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UnknownOriginError) as refused:
        requirement(asked)
    assert said in str(refused.value)
    assert "a checkout, a wheel, or a requirement such as 'tidemark-spark==0.2.0'" in str(refused.value)


@pytest.mark.parametrize("content", ['[project]\nname = "tidemark"\n', "", None])
def test_a_folder_or_wheel_of_another_package_is_refused(content, tmp_path):
    """Examples are a stranger's checkout or wheel, and a folder without a project."""
    if content is not None:
        (tmp_path / "pyproject.toml").write_text(content)
    stranger = tmp_path / "tidemark-2.0-py3-none-any.whl"
    stranger.touch()
    for path in (tmp_path, stranger):
        with pytest.raises(UnknownOriginError, match="this is not tidemark-spark"):
            requirement(str(path))
