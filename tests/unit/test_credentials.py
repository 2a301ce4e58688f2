"""Passwords and tokens are hidden in every text that a person sees or that is written into a file."""

import pytest

from jobs.credentials import without_credentials


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("sc://h:15002/;token=abc;use_ssl=true;x-mine=1", "sc://h:15002/;token=***;use_ssl=true;x-mine=***"),
        ("at 'sc://h/;x-key=a b' there", "at 'sc://h/;x-key=*** b' there"),
        ("postgresql://user:p@ss/w@host/db", "postgresql://user:***@host/db"),
        ("sasl.password=hunter2, next", "sasl.password=***, next"),
        ("ssl.key.password='two words'", "ssl.key.password=***"),
        ("user=u password=x host=h", "user=u password=*** host=h"),
        ("?sslmode=on&sslpassword=abc&x=1", "?sslmode=on&sslpassword=***&x=1"),
    ],
)
def test_a_credential_is_hidden(text, shown):
    """The rest of the text stays, so that a person still sees which server is meant."""
    assert shown == without_credentials(text)


@pytest.mark.parametrize(
    "text",
    [
        "http://host:8080/a",
        "abfss://container@account.dfs.core.windows.net/a",
        "correct the token of spark_connect_url",
        "secrets={'sasl.password': 'MY_VARIABLE'}",
        "the topic orders, partition 3, offset 12",
    ],
)
def test_a_text_without_credentials_stays(text):
    """Names of variables and of settings are no secrets."""
    assert text == without_credentials(text)
