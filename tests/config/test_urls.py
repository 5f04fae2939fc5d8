"""Which addresses are read, and what is shown of one."""

import pytest

from bert4rec.config.recognition import check_url, is_url, without_secrets


@pytest.mark.parametrize(
    "url", ["s3://b/log.csv", "gs://b/a/*.csv", "hf://datasets/u/r@main/x.parquet", "https://h/a?b"]
)
def test_an_address_that_is_read_stays_as_it_is(url: str) -> None:
    assert (is_url(url), check_url(url)) == (True, url)


@pytest.mark.parametrize("path", ["", "log.csv", "/a/b:c", "a//b", "logs/*.csv", "https:/h/a", "://x"])
def test_a_path_is_no_address(path: str) -> None:
    assert (is_url(path), check_url(path), without_secrets(path)) == (False, path, path)


@pytest.mark.parametrize(
    ("url", "word"),
    [
        ("ftp://h/log.csv", "ftp://"), ("S3://b/log.csv", "S3://"), ("https://h/logs/*.csv", "https://"),
        ("s3://bucket", "file"), ("s3://bucket/logs/", "file"), ("https://host", "file"),
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
    ],
)
def test_neither_a_login_nor_a_signature_is_shown(text: str, shown: str) -> None:
    assert without_secrets(text) == shown
