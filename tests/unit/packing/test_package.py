"""`tidemark package`: what is packed, what is refused, and that a bare Python imports the packed modules."""

import subprocess
import sys
import tarfile
from importlib.metadata import distributions
from types import ModuleType

import pytest

from jobs.packing.archive import LEFT_OUT, NotPackableError, contents, must_hold_imported, write_archive


@pytest.fixture
def installed(tmp_path):
    """Install a package of these files into a folder of its own. Return the installed packages of that folder."""
    site = tmp_path / "site"

    def install(name, files, *, record=True, editable=False):
        info = site / f"{name}-1.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1\n")
        if editable:
            (info / "direct_url.json").write_text('{"url": "file:///x", "dir_info": {"editable": true}}')
        for file, text in files.items():
            (site / file).parent.mkdir(parents=True, exist_ok=True)
            (site / file).write_text(text)
        if record:
            (info / "RECORD").write_text("".join(f"{file},,\n" for file in [*files, f"{info.name}/METADATA"]))
        return list(distributions(path=[str(site)]))

    return install


def test_packages_and_the_projects_modules_are_packed(installed, tmp_path):
    """Packages of Spark or the driver, compiled Python files, programs and the project's other folders are left out."""
    installed("pyspark", {"pyspark/__init__.py": ""})
    found = installed("Own.Name", {"own/a.py": "", "own/__pycache__/a.pyc": "", "../bin/own": "", "native.so": ""})
    project = tmp_path / "shop"
    for file in ("pipeline.py", "steps/__init__.py", "steps/words.txt", "warehouse/data.parquet", "a-script.py"):
        (project / file).parent.mkdir(parents=True, exist_ok=True)
        (project / file).write_text("")
    packed = contents(project, found)
    own = {"own/a.py", "native.so", "Own.Name-1.dist-info/METADATA"}
    assert {"pipeline.py", "steps/__init__.py", "steps/words.txt"} | own == set(packed)
    assert "pyspark" in LEFT_OUT


def test_an_editable_package_is_packed_from_its_folder(installed, tmp_path):
    """The package's .pth file names the folder."""
    (tmp_path / "source/shop").mkdir(parents=True)
    (tmp_path / "source/shop/__init__.py").write_text("")
    found = installed("shop", {"shop.pth": f"{tmp_path}/source\n"}, editable=True)
    assert {"shop/__init__.py", "shop-1.dist-info/METADATA"} == set(contents(None, found))


@pytest.mark.parametrize(
    ("how", "refused"),
    [
        ({"record": False}, "shop has no list of its files (RECORD): install it with pip or uv"),
        ({"editable": True}, "shop is installed editable, and shop.pth names no folder: install it without --editable"),
    ],
)
def test_a_package_that_cannot_be_packed_is_refused_by_name(installed, how, refused):
    found = installed("shop", {"shop.pth": "import finder\n"}, **how)
    with pytest.raises(NotPackableError) as raised:
        contents(None, found)
    assert refused == str(raised.value)


def test_a_package_that_lacks_a_file_is_refused(installed, tmp_path):
    """A worker could not import such a package."""
    found = installed("shop", {"shop.py": ""})
    (tmp_path / "site/shop.py").unlink()
    with pytest.raises(NotPackableError, match=r"shop lacks its file .*shop\.py: install it again"):
        contents(None, found)


def test_a_module_from_elsewhere_is_refused(tmp_path, monkeypatch):
    """An example is a module that only PYTHONPATH leads to."""
    module = ModuleType("astray")
    module.__file__ = str(tmp_path / "astray.py")
    monkeypatch.setattr(sys, "modules", {"astray": module, "os": sys.modules["os"]})
    with pytest.raises(NotPackableError, match=f"the pipeline imports astray from {tmp_path}/astray.py, which is"):
        must_hold_imported({})
    must_hold_imported({"astray.py": tmp_path / "astray.py"})


def test_the_packed_python_imports_what_is_packed(installed, tmp_path):
    """The archive's `bin/python` starts the Python of this version on PATH.

    It finds the packed packages before those of PYTHONPATH.
    """
    found = installed("shop", {"shop.py": "WHERE = 'packed'"})
    made = write_archive(contents(None, found), tmp_path / "shop.tar.gz")
    with tarfile.open(made.path) as archive:
        archive.extractall(tmp_path / "a worker", filter="data")
    done = subprocess.run(
        ["./a worker/bin/python", "-c", "import shop, sys; print(shop.WHERE, *sys.version_info[:2])"],
        cwd=tmp_path,
        env={"PATH": f"{sys.base_prefix}/bin:/usr/bin:/bin", "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert f"packed {sys.version_info[0]} {sys.version_info[1]}" == done.stdout.strip()
