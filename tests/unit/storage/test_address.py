"""Tests the address of a warehouse: it is a path, or a plain URL of a store without secrets."""

from pathlib import Path

import pytest

from jobs.storage.address import InvalidAddressError, StoreUrl, is_inside, is_same, parsed


@pytest.mark.parametrize(
    "text",
    ["s3://lake", "s3://lake/team/warehouse", "gs://lake/w", "abfss://box@account1.dfs.core.windows.net/w"],
)
def test_urls_of_stores_are_kept(text):
    """A slash at the end makes no difference."""
    assert StoreUrl(text) == parsed(text) == parsed(f"{text}/")
    assert text == str(parsed(text))


@pytest.mark.parametrize("text", ["warehouse", "/data/w", "../x y", "s3:/one-slash", "C:/data"])
def test_all_other_texts_are_paths(text):
    """A text that only resembles a URL is a path too."""
    assert Path(text) == parsed(text)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("s3a://lake/w", "write s3://"),
        ("hdfs://name/w", "there are s3, gs, abfss"),
        ("s3://", "is not the name of a bucket"),
        ("s3://key:secret@lake/w", "credentials are no part of it"),
        ("s3://lake/w?region=x", "not plain"),
        ("s3://lake/a/../b", "not plain"),
        ("s3://lake/a//b", "not plain"),
        ("s3://lake/a%20b", "not plain"),
        ("abfss://lake/w", "CONTAINER@ACCOUNT"),
    ],
)
def test_other_urls_are_refused(text, said):
    """The sentence of the refusal repeats no password."""
    with pytest.raises(InvalidAddressError, match=said) as refused:
        parsed(text)
    assert "secret" not in str(refused.value)


def test_a_place_inside_another_is_recognized(tmp_path):
    """Links are followed. A neighbour with a longer name does not lie inside."""
    (tmp_path / "link").symlink_to(tmp_path)
    assert is_same(tmp_path, tmp_path / "link")
    assert is_inside(tmp_path / "link/copy", tmp_path)
    assert is_inside(parsed("s3://lake/w/copy"), parsed("s3://lake/w"))
    assert not is_inside(parsed("s3://lake/w2"), parsed("s3://lake/w"))
    assert not is_inside(parsed("s3://lake/w"), tmp_path)
