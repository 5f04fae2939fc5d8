"""Addresses are checked before anything travels, and shown without their secrets."""

import pytest

from bert4rec.config.addresses import check_url, is_url, without_secrets


@pytest.mark.parametrize(
    "url",
    [
        "s3://b/log.csv", "gs://b/a/*.csv", "hf://datasets/u/r@main/x.parquet", "https://h/a?b", "s3://b/table/",
        "postgresql://", "postgres://ann@h:5432/shop?options=a@b", "snowflake://ann:$PW@account/db",
        "grpc+tls://h:443", "postgresql://h:5432,g:5432/shop?user=ann&password=$PW",
    ],
)  # fmt: skip
def test_an_address_that_is_read_stays_as_it_is(url: str) -> None:
    assert (is_url(url), check_url(url)) == (True, url)


@pytest.mark.parametrize("path", ["", "log.csv", "/a/b:c", "a//b", "logs/*.csv", "https:/h/a", "://x"])
def test_a_path_is_no_address(path: str) -> None:
    assert (is_url(path), check_url(path), without_secrets(path)) == (False, path, path)


@pytest.mark.parametrize(
    ("url", "word"),
    [
        ("ftp://h/log.csv", "ftp://"), ("S3://b/log.csv", "S3://"), ("https://h/logs/*.csv", "https://"),
        ("s3://bucket", "file"), ("https://host/logs/", "file"), ("https://host", "file"), ("s3://bucket/", "file"),
        ("mysql://h/shop", "mysql://.*postgresql://.*driver"),
        *[(f"postgresql://{login}", "password") for login in (
            "ann:pw@h/shop", "ann:p/w@h/shop", "ann:p@w@h", "h/shop?user=a&password=pw",
            "h/shop?sslpassword=pw", ":pw@h", "ann:1234@h/shop", "ann:12:3@h/shop", "ann:$@h/shop")],
    ],
)  # fmt: skip
def test_an_address_that_cannot_be_read_is_refused(url: str, word: str) -> None:
    with pytest.raises(ValueError, match=word):
        check_url(url)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("https://h/log.csv?X-Amz-Signature=1f&a=b", "https://h/log.csv"),
        ("http://h:80/my log.csv#part", "http://h:80/my log.csv"),
        ("https://ann:p%40ss@h/a@b.csv", "https://h/a@b.csv"),
        ("s3://key:secret@bucket/log?.csv", "s3://bucket/log?.csv"),
        ("hf://datasets/u/r@main/x.csv", "hf://datasets/u/r@main/x.csv"),
        ("--data.path=https://h/a.csv?sig=1", "--data.path=https://h/a.csv"),
        ("postgresql://ann:p@ss@h-1.b:5432,[::1]/shop?password=x@y", "postgresql://h-1.b:5432,[::1]/shop"),
        ("postgresql://ann:p/w@h/shop", "postgresql://…"),
        ("postgresql://ann:p?w@h/shop", "postgresql://…"),
        ("--data.path=snowflake://ann:pw@account/db", "--data.path=snowflake://account/db"),
    ],
)
def test_neither_a_login_nor_a_signature_is_shown(text: str, shown: str) -> None:
    assert without_secrets(text) == shown


@pytest.mark.parametrize("path", ["shop.db", "/logs/shop.db"])
def test_the_address_of_a_file_is_its_path(path: str) -> None:
    assert check_url(f"sqlite:///{path}") == path
