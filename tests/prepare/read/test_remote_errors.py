"""Whatever keeps a file away is one line that says what to do, and tells no secret."""

from pathlib import Path

import polars as pl
import pytest

from bert4rec.prepare.read.remote import copy_remote
from bert4rec.prepare.read.remote_errors import readable
from bert4rec.runtime.errors import DataError
from tests.prepare.storage import BROKEN, CLOSED, WHOLE, Storage

COLUMNS = ["user", "item"]
LATIN = "user,item\né,1\n".encode("latin-1")
ANSWERS = [  # address, what is said of it
    ("s3://open/none.csv", "no such file (404); correct the address"),
    ("gs://open/none.parquet", "no such file (404); correct the address"),
    ("{http}/open/none.csv", "no such file (404); correct the address"),
    ("s3://none/*.csv", "no such bucket (404); correct the address"),
    ("s3://open/none*.csv", "no file fits this pattern, or all are empty; correct it"),
    ("s3://open/none*.parquet", "no file fits this pattern; correct the address"),
    (
        f"s3://{CLOSED}/log.csv",
        "access denied (403); set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY to keys that may read it, or "
        "AWS_SKIP_SIGNATURE=true where everybody may",
    ),
    (
        f"gs://{CLOSED}/*.parquet",
        "access denied (403); set GOOGLE_APPLICATION_CREDENTIALS to the key file of an account that may read it, or "
        "GOOGLE_SKIP_SIGNATURE=true where everybody may",
    ),
    (
        "{http}/" + CLOSED + "/log.csv",
        "access denied (403); it needs a login, or a signature in the address that is still valid",
    ),
    pytest.param(
        "{http}/" + BROKEN + "/log.csv",
        "interrupted (end of file before message length reached); nothing was written: repeat the command",
        marks=pytest.mark.long,  # it is asked again, for seconds
    ),
    pytest.param(
        f"s3://{BROKEN}/log.parquet",
        "interrupted (end of file before message length reached); nothing was written: repeat the command",
        marks=pytest.mark.long,
    ),
    (
        "{http}/" + WHOLE + "/log.parquet",
        "its server does not give parts of a file (HTTP ranges); copy the file here and name the copy",
    ),
    (
        "s3://open/latin.csv",
        "not UTF-8 text (a Parquet file must be called .parquet); convert it, or copy it here and name the copy: of a "
        "file of this machine only the lines that are not are left out",
    ),
    (
        "s3://open/text.parquet",
        "not a Parquet file, or damaged: parquet: File out of specification: incorrect magic in parquet footer",
    ),
    ("s3://open/text.feather", "not an Arrow IPC (Feather) file, or damaged: out-of-spec: InvalidFooter"),
]


@pytest.mark.parametrize(("url", "said"), ANSWERS)
def test_what_the_server_answers_is_one_line(storage: Storage, tmp_path: Path, url: str, said: str) -> None:
    frame = pl.DataFrame({"user": range(9), "item": range(9)})
    for bucket in (BROKEN, WHOLE):
        frame.write_csv(storage.write(f"{bucket}/log.csv", b""))
        frame.write_parquet(storage.write(f"{bucket}/log.parquet", b""))
    storage.write("open/latin.csv", LATIN)
    storage.write("open/text.parquet", b"user,item\n1,2\n")
    storage.write("open/text.feather", b"user,item\n1,2\n")
    url = url.format(http=storage.http)
    with pytest.raises(DataError) as caught:
        list(copy_remote(url, tmp_path, COLUMNS))
    assert str(caught.value) == f"{url}: {said}"


def test_a_host_that_does_not_answer_is_named_without_what_is_secret_in_the_address(tmp_path: Path) -> None:
    with pytest.raises(DataError) as caught:
        list(copy_remote("http://ann:pw@127.0.0.1:1/log.csv?X-Amz-Signature=5ec2e7", tmp_path, COLUMNS))
    assert str(caught.value) == (
        "http://127.0.0.1:1/log.csv: cannot be reached (Connection refused (os error 111)); correct the address, or "
        "repeat the command later"
    )


LOGIN_OF_GOOGLE = (
    "Error performing token request: Error performing GET http://169.254.169.254/computeMetadata/v1/x in 1ms"
)
RAISED = [  # as Polars raises them where no server of this test can say so
    (OSError(LOGIN_OF_GOOGLE), "gs://b/x.csv", "no login is set; set GOOGLE_APPLICATION_CREDENTIALS to the key"),
    (OSError("HTTP status client error (401 Unauthorized) for url (https://huggingface.co/x)"), "hf://datasets/u/r/x.csv",
     "access denied (401); set HF_TOKEN to a token that may read it"),
    (pl.exceptions.ComputeError("error sending request for url (https://huggingface.co/x?sig=5ec2e7)"),
     "hf://datasets/u/r/x.parquet", "cannot be reached (error sending request for url …); correct the address, or"),
    (pl.exceptions.ComputeError('error decoding response: expected value, response value: {"error":"no"}'),
     "hf://datasets/u/r/x.csv", "no such file, or one that you may not read; correct the address, or set HF_TOKEN to"),
    (OSError("Server returned error response: status code: 503 Service Unavailable"), "https://h/x.csv",
     "the server answers with status 503; correct the address, or repeat the command later"),
]  # fmt: skip


@pytest.mark.parametrize(("error", "url", "said"), RAISED)
def test_what_other_servers_answer_is_told_as_well(error: Exception, url: str, said: str) -> None:
    with pytest.raises(DataError) as caught, readable(url, "parquet" if url.endswith("parquet") else None):
        raise error
    assert str(caught.value).startswith(f"{url}: {said}")
    assert "\n" not in str(caught.value)
    assert "5ec2e7" not in str(caught.value)
