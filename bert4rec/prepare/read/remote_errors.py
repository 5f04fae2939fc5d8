"""What Polars' cloud readers raise, as one line for a person, without the secrets that an address may hold."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

import polars as pl

from bert4rec.config.recognition import TYPED_NAMES, Format
from bert4rec.config.urls import without_secrets
from bert4rec.runtime.errors import DataError

LOGIN = {
    "s3": "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY to keys that may read it; for public data "
    "AWS_SKIP_SIGNATURE=true",
    "gs": "set GOOGLE_APPLICATION_CREDENTIALS to the key file of an account that may read it; for public data "
    "GOOGLE_SKIP_SIGNATURE=true",
    "hf": "set HF_TOKEN to a token that may read it",
    **dict.fromkeys(("https", "http"), "it needs a login, or a signature in the address that is still valid"),
}
STATUS = re.compile(r"(?:status code: |status client error \(|status server error \()(\d{3})")
NO_LOGIN = ("169.254.169.254", "metadata.google.internal", "169.254.170.2")  # asked for a login if no variable is set
UNREACHED = ("client error (Connect)", "error sending request", "dns error")


@contextmanager
def readable(url: str, kind: Format | None = None) -> Iterator[None]:
    """Raise `DataError` in place of what Polars raises in reading `url`; `kind`: of a table that carries its types."""
    try:
        yield
    except (OSError, pl.exceptions.PolarsError) as error:
        raise DataError(f"{without_secrets(url)}: {_problem(error, url, kind)}") from None


def _problem(error: Exception, url: str, kind: Format | None) -> str:
    text, scheme = str(error), url.partition("://")[0]
    found = STATUS.search(text)
    status = int(found[1]) if found else 0
    if any(place in text for place in NO_LOGIN):
        return f"no login is set; {LOGIN[scheme]}"
    if "error decoding response" in text:  # Hugging Face says so of both, and Polars does not look at its status
        return f"no such file, or one that you may not read; correct the address, or {LOGIN[scheme]}"
    if isinstance(error, FileNotFoundError) or status == 404:
        return f"no such {'bucket' if 'NoSuchBucket' in text else 'file'} (404); correct the address"
    if isinstance(error, PermissionError) or status in (401, 403):
        return f"access denied ({status or 403}); {LOGIN[scheme]}"
    if status:
        return f"the server answers with status {status}; correct the address, or repeat the command later"
    if problem := _of_the_content(error, text, kind):
        return problem
    if any(words in text for words in UNREACHED):
        return f"cannot be reached ({_reason(text)}); correct the address, or repeat the command later"
    return f"interrupted ({_reason(text)}); nothing was written: repeat the command"


def _of_the_content(error: Exception, text: str, kind: Format | None) -> str:
    """Return what is wrong with what the server has; "" where nothing is."""
    if "expanded paths were empty" in text:
        return "no file fits this pattern; correct the address"
    if "Range request not supported" in text:
        return "the server does not send parts of a file (HTTP ranges); copy the file here and name the copy"
    if "invalid utf8" in text:
        return (
            "not UTF-8 text (the name of a Parquet file must end with .parquet); convert it, or copy it here and name "
            "the copy: of a local file only the lines with other bytes are left out"
        )
    if kind is not None and not isinstance(error, OSError) and "error sending request" not in text:
        return f"not {TYPED_NAMES[kind]}, or damaged: {_reason(text)}"
    return ""


def _reason(text: str) -> str:
    """Return the innermost cause, without any address."""
    line = text.strip().splitlines()[-1].strip()
    return re.sub(r"\S+://\S+", "…", re.sub(r"^\d+: ", "", line))[:200]
