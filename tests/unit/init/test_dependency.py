"""A new project depends on exactly this Tidemark, and never on a name that an index may give to another package."""

import json
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest

from jobs.init import project as module
from jobs.init.project import ProjectRefusedError, UnknownOriginError, create_project, dependency

ROOT = Path(__file__).resolve().parents[3]
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
OWN = f"tidemark-spark[dagster]=={VERSION}"


@pytest.fixture
def installed(monkeypatch):
    """Install this Tidemark with a record of its origin, or without one (None)."""

    def install(recorded):
        class Installed:
            version = "0.9.0"

            def read_text(self, name):
                assert "direct_url.json" == name
                return None if recorded is None else json.dumps(recorded)

        monkeypatch.setattr(module.Distribution, "from_name", lambda _: Installed())

    return install


def test_a_checkout_becomes_a_wheel_in_the_project(tmp_path):
    """This test runs from a checkout. It installs the wheel into an empty folder, without an index."""
    wanted = dependency()
    assert OWN == wanted.requirement
    (tmp_path / "wheels").mkdir()
    wanted.put_wheel(tmp_path / "wheels")
    must_be_installable(tmp_path)


def test_an_installed_wheel_is_packed_again(tmp_path):
    """The wheel may have come from an index, or from a file that no longer exists.

    So the files are those that the installer lists.
    """
    (tmp_path / "first").mkdir()
    dependency(str(ROOT)).put_wheel(tmp_path / "first")
    (first,) = (tmp_path / "first").iterdir()
    site = must_be_installable(tmp_path, "first")
    (again,) = metadata.distributions(name="tidemark-spark", path=[str(site)])
    (tmp_path / "wheels").mkdir()
    module._repack(again, tmp_path / "wheels")
    assert [first.name] == [path.name for path in (tmp_path / "wheels").iterdir()]
    must_be_installable(tmp_path)


def must_be_installable(folder, wheels="wheels"):
    """Install the wheel alone, without an index, and import it. Return the folder into which it was installed."""
    (wheel,) = (folder / wheels).glob("*.whl")
    site = folder / f"site of {wheels}"
    install = [Path(sys.executable).with_name("uv"), "pip", "install", "--quiet", "--no-index", "--no-deps"]
    subprocess.run([*install, "--target", site, wheel], check=True, capture_output=True)
    where = subprocess.run(
        [sys.executable, "-P", "-c", "import tidemark; print(tidemark.__file__)"],
        env={"PYTHONPATH": str(site)},
        cwd=folder,
        capture_output=True,
        text=True,
        check=True,
    )
    assert Path(where.stdout.strip()).is_relative_to(site)
    return site


@pytest.mark.parametrize("recorded", [None, {"url": "file:///gone/tidemark_spark-0.9.0-py3-none-any.whl"}])
def test_an_installed_tidemark_is_named_by_its_version(installed, recorded):
    """The project's files name nothing of the machine on which the project was made."""
    installed(recorded)
    wanted = dependency()
    assert "tidemark-spark[dagster]==0.9.0" == wanted.requirement
    assert wanted.put_wheel is not None


def test_a_repository_is_named_with_the_exact_commit(installed):
    """A branch could change later."""
    at = {"url": "https://host/tidemark.git", "vcs_info": {"vcs": "git", "commit_id": "abc"}}
    installed(at)
    assert module.Dependency("tidemark-spark[dagster] @ git+https://host/tidemark.git@abc") == dependency()
    installed(at | {"subdirectory": "python"})
    assert dependency().requirement.endswith("@abc#subdirectory=python")


def test_without_an_installation_the_user_is_asked(monkeypatch, tmp_path):
    """Source code on the path belongs to no distribution. In this case nothing is written."""

    def missing(name):
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(module.Distribution, "from_name", missing)
    with pytest.raises(ProjectRefusedError, match="say what the project depends on with --tidemark"):
        create_project(tmp_path / "shop")
    assert [] == list(tmp_path.iterdir())


def test_a_wheel_that_cannot_be_built_leaves_no_project(tmp_path):
    """The message quotes the build tool, and says what to type."""
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "pyproject.toml").write_text(
        '[project]\nname = "tidemark-spark"\nversion = "1"\n[build-system]\nrequires = []\n'
    )
    with pytest.raises(ProjectRefusedError, match=r"no wheel could be built from .*broken .*pip wheel --no-deps"):
        create_project(tmp_path / "shop", tidemark=str(broken))
    assert ["broken"] == [path.name for path in tmp_path.iterdir()]


def test_the_users_own_words_are_written(tmp_path):
    """The user may give the path of a checkout or wheel, or a requirement with a version or an address."""
    wheel = tmp_path / "tidemark_spark-0.1.0-py3-none-any.whl"
    wheel.write_text("a wheel")
    assert OWN == dependency(str(ROOT)).requirement
    wanted = dependency(str(wheel))
    assert "tidemark-spark[dagster]==0.1.0" == wanted.requirement
    (tmp_path / "wheels").mkdir()
    wanted.put_wheel(tmp_path / "wheels")
    assert "a wheel" == (tmp_path / "wheels" / wheel.name).read_text()
    for asked, written in {
        "tidemark-spark==0.1.0": "tidemark-spark[dagster]==0.1.0",
        "tidemark_spark [demo] >=0.1,<0.2": "tidemark_spark[dagster,demo]>=0.1,<0.2",
        "tidemark-spark @ https://host/t.whl": "tidemark-spark[dagster] @ https://host/t.whl",
    }.items():
        assert module.Dependency(written) == dependency(asked)


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
        dependency(asked)
    assert said in str(refused.value)
    assert "a checkout, a wheel, or a requirement such as 'tidemark-spark==0.2.0'" in str(refused.value)


@pytest.mark.parametrize("content", ['[project]\nname = "tidemark"\n', "", None])
def test_a_folder_or_wheel_of_another_package_is_refused(content, tmp_path):
    """Examples are a checkout or wheel of other software, and a folder without a project."""
    if content is not None:
        (tmp_path / "pyproject.toml").write_text(content)
    stranger = tmp_path / "tidemark-2.0-py3-none-any.whl"
    stranger.touch()
    for path in (tmp_path, stranger):
        with pytest.raises(UnknownOriginError, match="this is not tidemark-spark"):
            dependency(str(path))
