"""Addresses of data that lie elsewhere, such as s3://bucket/log.csv: which are read, and what may be shown of them."""

import re

SCHEMES = ("s3", "gs", "hf", "https", "http")
LISTED = ("s3", "gs", "hf")  # whose files can be listed, so that a pattern may stand for several


def is_url(path: str) -> bool:
    """Return whether `path` is an address and no local path.

    >>> is_url("s3://bucket/log.csv"), is_url("logs/log.csv")
    (True, False)
    """
    return re.match(r"[A-Za-z][A-Za-z0-9+.-]*://", path) is not None


def check_url(path: str) -> str:
    """Return `path`; raise `ValueError` if it is an address from which nothing can be read."""
    scheme, _, rest = path.partition("://")
    if not is_url(path):
        return path
    if scheme not in SCHEMES:
        known = ", ".join(f"{name}://" for name in SCHEMES[:-1])
        raise ValueError(f"{scheme}:// is not read; {known} and {SCHEMES[-1]}:// are")
    if rest.endswith("/") or "/" not in rest:
        raise ValueError(
            "names no file; name one, or several of s3://, gs:// and hf:// by a pattern: s3://bucket/*.csv"
        )
    if scheme not in LISTED and "*" in rest:
        raise ValueError(f"{scheme}:// has no list of its files, so that a pattern cannot be read; name one file")
    return path


def without_secrets(text: str) -> str:
    """Return `text` that ends with an address, without the login and without the query, which may hold a signature.

    >>> without_secrets("--data.path=https://ann:pw@host/log.csv?X-Amz-Signature=1f"), without_secrets("s3://b/log?.csv")
    ('--data.path=https://host/log.csv', 's3://b/log?.csv')
    """
    return re.sub(r"(https?://[^?#]*)[?#].*", r"\1", re.sub(r"(://)[^/\s]*@", r"\1", text), flags=re.DOTALL)
