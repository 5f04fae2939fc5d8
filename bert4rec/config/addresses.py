"""Tell addresses from paths, check them, and leave out what must not be shown."""

import os
import re
from importlib.util import find_spec
from urllib.parse import quote

from bert4rec.runtime.errors import DataError

LISTED = ("s3", "gs", "hf")  # their files can be listed, so a pattern can name several
SCHEMES = (*LISTED, "https", "http")
LAKES = ("s3", "gs")  # of tables in folders
ICEBERG = ".metadata.json"  # end of the names of an Iceberg table's own files
DRIVERS = {  # scheme of a database → its ADBC driver, where the names differ or the driver is well known
    "postgresql": "postgresql", "postgres": "postgresql", "snowflake": "snowflake", "bigquery": "bigquery",
    "grpc": "flightsql", "grpc+tls": "flightsql", "grpc+tcp": "flightsql",
}  # fmt: skip
SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
OTHERS = rf"(?:{'|'.join(SCHEMES)})://"
OF_DATABASE = rf"(?<![\w+.-])(?!{OTHERS}){SCHEME.pattern}"
HOST = r"(?:[\w.-]*|\[[\w:.]*\])(?::\d+)?"
STORED = re.compile(r"(?:s3|gs)://[A-Za-z0-9][\w.-]*(?:/(?!\.\.?(?:/|$))[^/?#*\[\]\\\s]+)+/?")  # a folder of a bucket
VARIABLE = re.compile(r"\$(\w+)")  # in an address: the value of an environment variable
PASSWORD = re.compile(
    r"://[^:@/?#]*:(?!\d+(?:[/?#,]|$))(?!\$\w+@)[^@]*@|[?&][^=&]*(?:password|token|secret|key)[^=&]*=(?!\$\w+(?:&|$))",
    re.IGNORECASE,
)


def is_url(path: str) -> bool:
    """Return whether `path` is a URL and not a local path.

    >>> is_url("s3://bucket/log.csv"), is_url("logs/log.csv")
    (True, False)
    """
    return SCHEME.match(path) is not None


def is_database(url: str) -> bool:
    """Return whether the scheme of `url` is that of a database."""
    return url.partition("://")[0] not in SCHEMES


def is_lake_table(url: str) -> bool:
    """Return whether `url` names the folder of a Delta table, by a slash at its end, or a file of an Iceberg table."""
    return url.partition("://")[0] in LAKES and url.endswith(("/", ICEBERG))


def check_url(path: str) -> str:
    """Return `path`, or the path in a `sqlite:///…`; raise `ValueError` if it is a URL that cannot be read."""
    scheme, _, rest = path.partition("://")
    if not is_url(path):
        return path
    if scheme == "sqlite":
        return rest.removeprefix("/")
    if is_database(path):
        _check_database(scheme, path)
        return path
    if "/" not in rest.rstrip("/") or (rest.endswith("/") and scheme not in LAKES):
        raise ValueError(
            "names no file; name one, or several of s3://, gs:// and hf:// by a pattern: s3://bucket/*.csv"
        )
    if scheme not in LISTED and "*" in rest:
        raise ValueError(f"{scheme}:// does not list its files, so patterns do not work; name one file")
    return path


def check_dataset_address(path: str) -> str:
    """Return `path`, or an address in object storage without a slash at its end; raise `ValueError` for any other URL.

    >>> check_dataset_address("s3://bucket/shop/"), check_dataset_address("data/shop/")
    ('s3://bucket/shop', 'data/shop/')
    """
    if not is_url(path):
        return path
    if not STORED.fullmatch(path):
        raise ValueError("must be a folder, or an address without a login: s3://bucket/name or gs://bucket/name")
    return path.rstrip("/")


def _check_database(scheme: str, url: str) -> None:
    if scheme not in DRIVERS and not (scheme.isidentifier() and find_spec(f"adbc_driver_{scheme}")):
        known = ", ".join(f"{name}://" for name in SCHEMES)
        raise ValueError(
            f"{scheme}:// cannot be read; expected: {known}, postgresql://, sqlite://, or the name of another ADBC "
            "driver that is installed"
        )
    if PASSWORD.search(url):
        raise ValueError(
            "has a password, which others could see in the list of processes; remove it and set PGPASSWORD, or name "
            "a variable with it, in single quotes: 'postgresql://ann:$SHOP_PASSWORD@host/shop'"
        )


def with_variables(text: str, place: str) -> str:
    """Return the `text`, of the address `place`, with the values of its environment variables, quoted for an address.

    Raises `DataError` for a variable that is not set.
    """
    if unset := [name for name in VARIABLE.findall(place) if name not in os.environ]:
        raise DataError(f"{without_secrets(place)}: the environment variable {unset[0]} is not set")
    return VARIABLE.sub(lambda found: quote(os.environ[found[1]], safe=""), text)


def without_secrets(text: str) -> str:
    """Return `text`, which ends with a URL, without the URL's login and query, which may hold a signature.

    >>> without_secrets("--data.path=https://ann:pw@host/log.csv?X-Amz-Signature=1f"), without_secrets("s3://b/log?.csv")
    ('--data.path=https://host/log.csv', 's3://b/log?.csv')
    """
    text = re.sub(r"(https?://[^?#]*)[?#].*", r"\1", re.sub(rf"({OTHERS})[^/\s]*@", r"\1", text), flags=re.DOTALL)
    return re.sub(rf"({OF_DATABASE})(.*)", _database_without_secrets, text, flags=re.DOTALL)


def _database_without_secrets(found: re.Match[str]) -> str:
    """Return the address with its hosts and its path alone, or neither if it has another form: it may be a password."""
    usual = re.fullmatch(rf"(?:[^/?#]*@)?({HOST}(?:,{HOST})*(?:/[^?#@]*)?)(?:[?#].*)?", found[2], flags=re.DOTALL)
    return found[1] + (usual[1] if usual else "…")
