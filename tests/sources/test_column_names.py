"""Columns with names of many languages and programs, and columns that only their values tell apart."""

import random
import shlex
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bert4rec.__main__ import main
from bert4rec.dataset.reader import read_metadata
from bert4rec.runtime.errors import ColumnUnknownError
from bert4rec.sources.column_inference import columns_by_position, infer_columns, other_times
from bert4rec.sources.column_words import name_words
from bert4rec.sources.first_look import order_options
from tests.fixture_types import Capture, Patch
from tests.sources.log import content, looked, opened

AUTO = dict.fromkeys(("user", "item", "time", "rating", "title"), "auto")
START = 1_767_600_000


def rows() -> Iterator[dict[str, str]]:
    """600 rows of 60 users and 40 items that are sorted by time, with a value, all text, of each kind."""
    draw = random.Random(0)
    for row in range(600):
        user, item, second = draw.randrange(60), draw.randrange(40), START + 4000 * row
        time = datetime.fromtimestamp(second, UTC)
        yield {
            "user": f"{100 + user}", "item": f"{7000 + item}", "title": f"Thing no. {item}", "artist": f"By {item % 6}",
            "email": f"u{user}@example.org", "name": f"Ann B. {user}", "order": f"{row}", "few": f"{row % 3}",
            "amount": f"{draw.random() * 9:.2f}", "count": f"{1 + draw.randrange(60)}", "blank": "",
            "unix": f"{second}", "iso": time.isoformat(" ")[:19], "date": f"{time:%Y-%m-%d}", "ymd": f"{time:%Y%m%d}",
            "clock": f"{time:%H%M}", "day": f"{1 + row // 22}", "later": f"{second + 9000}", "same": "2026-03-01",
            "release": f"{2000 + item % 20}-05-{1 + item % 28:02d}", "offset": f"{(row * 7919) % 600}",
        }  # fmt: skip


COLUMNS = pl.DataFrame([*rows()]).to_dict(as_series=False)


def columns_of(header: str) -> dict[str, str]:
    """The columns that are recognized in a table with the `header` "name:kind, …"."""
    pairs = [cell.strip().rsplit(":", 1) for cell in header.split(",")]
    return infer_columns(pl.DataFrame({name: COLUMNS[kind] for name, kind in pairs}), AUTO, "log.csv")


NAMES = [
    ("customer_no", "article_no", "order_date"), ("CUST_NUM", "PROD_NUM", "TRANS_DT"), ("uid", "iid", "ts"),
    ("KundenNr", "ArtikelNr", "Datum"), ("Kundennummer", "Artikelnummer", "Belegdatum"), ("Kd-Nr.", "Art.-Nr.", "Zeit"),
    ("client", "produit", "date_commande"), ("N° client", "Réf. article", "Date de facture"),
    ("cliente", "producto", "fecha"), ("id_usuario", "cod_producto", "fecha_hora"),
    ("codice_cliente", "codice_articolo", "data_ordine"), ("id_utilizador", "id_produto", "data_hora"),
    ("klantnr", "artikelnr", "besteldatum"), ("klient_id", "produkt_id", "data_zakupu"),
    ("müşteri_no", "ürün_kodu", "tarih"), ("клиент", "товар", "дата"), ("ИД_клиента", "Артикул", "Дата_заказа"),
    ("用户ID", "商品编号", "下单时间"), ("會員編號", "商品編號", "時間"), ("会員番号", "商品コード", "購入日時"),
    ("회원번호", "상품코드", "구매일시"), ("KUNNR", "MATNR", "ERDAT"), ("CustAccount", "ItemId", "InvoiceDate"),
    ("idvisitor", "idaction_url", "server_time"), ("steamid", "appid", "rtime_last_played"), ("msno", "song_id", "ts"),
    ("review/profileName", "beer/beerId", "review/time"), ("household_key", "PRODUCT_ID", "date"),
    ("card_no", "upc", "sale_date"), ("patient_no", "drug_code", "dispensed_on"), ("device_id", "screen", "client_ts"),
    ("user_id", "business_id", "date"), ("domain_userid", "page_url", "collector_tstamp"), ("session", "aid", "ts"),
    ("CustomerID", "StockCode", "InvoiceDate"), ("partner_id", "product_id", "create_date"),
]  # fmt: skip


@pytest.mark.parametrize(("user", "item", "time"), NAMES)
def test_names_of_languages_and_programs_in_every_spelling(user: str, item: str, time: str) -> None:
    for spelled in (str, str.upper, str.lower, str.title):
        names = {field: spelled(name) for field, name in (("user", user), ("item", item), ("time", time))}
        header = f"{names['time']}:iso, {names['item']}:item, price:amount, {names['user']}:user"
        assert columns_of(header) == names


def test_glued_words_are_told_apart_and_common_words_are_not_split() -> None:
    assert name_words("idvisitor") == {"id", "visitor"}
    assert name_words("Kundennummer") == {"kunden", "nummer"}
    for word in ("update", "latest", "status", "format", "candidate", "chat"):
        assert len(name_words(word)) == 1


HEADERS = {  # name:kind of each column, and the field that is recognized
    "an export of Shopify":
        "Name:order, Email:email = user, Paid at:iso, Created at:iso = time, Lineitem quantity:few, "
        "Lineitem name:title = title, Lineitem price:amount, Lineitem sku:item = item",
    "an address beside other ids": "email:email = user, xy:user, item:item = item, at:iso = time",
    "Google Analytics 4 in BigQuery":
        "event_date:ymd, event_timestamp:unix = time, event_name:few, user_pseudo_id:user = user, user_id:blank, "
        "item_id:item = item, item_name:title = title, ga_session_id:later",
    "reviews of Amazon":
        "reviewerID:user = user, asin:item = item, overall:few = rating, unixReviewTime:unix = time, reviewText:name",
    "Retailrocket": "timestamp:unix = time, visitorid:user = user, event:few, itemid:item = item",
    "MovieLens under another name":
        "userId:user = user, movieId:item = item, rating:few = rating, ts:unix = time, genres:few",
    "sessions without users": "session_id:user = user, product_id:item = item, created_at:iso = time, updated_at:iso",
    "titles that differ from row to row": "user:user = user, item:item = item, title:name, time:unix = time",
    "a title beside a country": "user:user = user, StockCode:item = item, Description:title = title, Country:few",
    "a title beside an artist": "user:user = user, track_id:item = item, artist_name:artist, track_name:title = title",
    "a title by its values": "user:user = user, item:item = item, xyz:title = title, brand:artist",
    "neither artist nor category": "user:user = user, item:item = item, category:few, artist_name:artist",
    "a name beside an id is the title":
        "buyer_no:user = user, article_no:item = item, article_name:title = title, date:date = time",
    "the id has another word than the name":
        "user_name:user = user, listened_at:unix = time, recording_msid:item = item, track_name:title = title",
    "a user before a session": "username:user = user, session_id:order, course_id:item = item, time:iso = time",
    "an empty user": "sessionId:user = user, userId:blank, itemId:item = item, at:iso = time",
    "a client that is a kind of program": "client:few, visit_id:user = user, item_id:item = item, at:iso = time",
    "the part, not the whole": "user:user = user, artist_id:artist, track_id:item = item, at:unix = time",
    "numbers of seconds before a duration":
        "user:user = user, item:item = item, play_time:count, timestamp:unix = time",
    "dates before a duration": "user:user = user, item:item = item, watch_time:count, date:date = time",
    "counts are no times": "user:user = user, item:item = item, watching_times:count",
    "the finer of two": "user:user = user, item:item = item, event_date:ymd, event_time:unix = time",
    "the start before the end": "user:user = user, item:item = item, end_ts:later, begin_ts:iso = time",
    "no load, edit or birth":
        "user:user = user, item:item = item, etl_date:unix, updated_at:unix, birth_date:unix, day:date = time",
    "no release": "user:user = user, item:item = item, released_on:release, date:release, at:date = time",
    "time of an item under any name": "user:user = user, item:item = item, date:release, when:date = time",
    "days that are numbered": "user:user = user, item:item = item, DAY:day = time, TRANS_TIME:clock",
    "a date in all first rows": "date:same = time, user:user = user, item:item = item",
    "time in a session before its day": "sessionId:user = user, itemId:item = item, timeframe:offset = time, day:date",
    "the only column that is left": "listener:user = user, what:item = item, at:iso = time, spent:amount",
    "fulfilled later": "user:user = user, item:item = item, fulfilled_at:later, created_at:iso = time",
    "refunded later": "user:user = user, item:item = item, refund_date:iso, order_date:date = time",
    "offline, not the event": "user:user = user, item:item = item, offline_timestamp:unix, ts:iso = time",
    "the visit before": "user:user = user, item:item = item, previous_visit:iso, visited_at:iso = time",
    "of the server, not of the client":
        "user:user = user, item:item = item, event_time:later = time, client_event_time:iso",
    "the later of two": "user:user = user, item:item = item, dropoff_time:later, pickup_time:unix = time",
}  # fmt: skip


@pytest.mark.parametrize("case", HEADERS)
def test_names_and_values_together_tell_the_columns(case: str) -> None:
    cells = [cell.partition(" = ") for cell in HEADERS[case].split(", ")]
    expected = {field: cell.rsplit(":", 1)[0] for cell, _, field in cells if field}
    assert columns_of(", ".join(cell for cell, *_ in cells)) == expected


REFUSED = [
    "user:user, article_name:title, xy:item",  # xy may be the id of the article
    "customer_name:name, kxy:user, item:item",
    "user:user, artist_id:artist, xy:item, at:iso",
    "visit_no:order, item:item, at:iso",  # every row has its own visit
    "user:user, points:count, price:amount", "a:user, b:item, c:few", "user:user, size:few, at:iso",
    "user:user, customer:user, item:item",
]  # fmt: skip


@pytest.mark.parametrize("header", REFUSED)
def test_what_is_in_doubt_is_refused(header: str) -> None:
    with pytest.raises(ColumnUnknownError) as refused:
        columns_of(header)
    for option in refused.value.options:
        name = option.partition("=")[2]
        assert name == "COLUMN" or name in header


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: Patch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


WORDS = ["--out=data/it", "--preprocessing.n_eval_negatives=2"]


def test_the_command_of_a_refusal_can_be_typed(capsys: Capture) -> None:
    kinds = {"the who's": "user", "what": "item", "at": "unix"}
    pl.DataFrame({name: COLUMNS[kind] for name, kind in kinds.items()}).write_csv("my log.csv")
    assert main(["prepare", "my log.csv", *WORDS]) == 2
    line = capsys.readouterr().err
    assert line.count("\n") == 1
    command = shlex.split(line[line.index("bert4rec prepare ") : line.rindex("   (")])
    assert main(command[1:]) == 0
    assert read_metadata(Path("data/it"))["columns"] == {"user": "the who's", "item": "what", "time": "at"}


def test_on_a_terminal_the_answer_is_taken(monkeypatch: Patch) -> None:
    kinds = {"user": "user", "artist_id": "artist", "track_id": "artist"}
    pl.DataFrame({name: COLUMNS[kind] for name, kind in kinds.items()}).write_csv("log.csv")
    for stream in (sys.stdin, sys.stdout):
        monkeypatch.setattr(stream, "isatty", lambda: True)
    monkeypatch.setattr("builtins.input", lambda _: "track_id")
    assert main(["prepare", "log.csv", *WORDS]) == 0
    assert read_metadata(Path("data/it"))["columns"] == {"user": "user", "item": "track_id"}


def test_a_folder_of_parquet_files_is_read_whole() -> None:
    log = pl.DataFrame({"user": COLUMNS["user"], "item": COLUMNS["item"], "day": COLUMNS["date"]})
    for (day,), part in log.group_by("day"):
        Path(f"lake/day={day}").mkdir(parents=True)
        part.drop("day").write_parquet(f"lake/day={day}/part-0.parquet")
    Path("lake/_SUCCESS").touch()
    assert len(content(opened("table", path="lake"))["user"]) == len(log)


def test_without_a_header_the_columns_count_by_their_places() -> None:
    log = pl.DataFrame({"1": COLUMNS["user"], "2": COLUMNS["unix"], "3": COLUMNS["item"]})
    assert columns_by_position(log, AUTO, "log.csv") == {"user": "1", "item": "3", "time": "2"}
    with pytest.raises(ColumnUnknownError):
        columns_by_position(log.select("1"), AUTO, "log.csv")


def test_ratings_that_are_often_missing_can_be_left_out(capsys: Capture) -> None:
    ratings = [None if row % 5 == 4 else 4 for row in range(600)]
    pl.DataFrame({"user": COLUMNS["user"], "item": COLUMNS["item"], "rating": ratings}).write_csv("log.csv")
    assert main(["prepare", "log.csv", *WORDS]) == 2
    assert "--rating=" in capsys.readouterr().err
    assert main(["prepare", "log.csv", *WORDS, "--rating="]) == 0


def test_named_columns_win_and_an_empty_name_means_none(capsys: Capture) -> None:
    log = pl.DataFrame({"client": COLUMNS["user"], "sku": COLUMNS["item"], "at": COLUMNS["iso"], "x": COLUMNS["few"]})
    found, *_ = looked(log, Path("log.csv"), item_column="x", time_column="")
    assert found.columns == {"user": "client", "item": "x"}
    for field in ("--user=", "--item="):  # which cannot be left out
        assert main(["prepare", "log.csv", field]) == 2
        assert capsys.readouterr().err.startswith(f"error: {field}: ")


def test_a_warning_names_the_other_times_and_none_is_silent() -> None:
    log = pl.DataFrame({"user": COLUMNS["user"], "item": COLUMNS["item"], "updated_at": COLUMNS["unix"]})
    dated = log.with_columns(at=pl.Series(COLUMNS["unix"]), date=pl.Series(COLUMNS["date"]))
    for table, options, offered in (
        (log, {}, "--time=updated_at"), (dated, {}, "--time=date"), (dated, {"time_column": "date"}, ""),
    ):  # fmt: skip
        warnings = " ".join(looked(table, Path("log.csv"), **options)[2])
        assert ("--time=" in warnings, offered in warnings) == (bool(offered), True)


CELLS = st.one_of(
    st.none(), st.sampled_from(["", "7", "-1", "2026-01-05", "20260105", "nan", "a b"]), st.text(max_size=5)
)
HEADS = st.one_of(st.sampled_from(["user_id", "item", "time", "title", "score", "id", "a/b", "日時", "."]), st.text())


@settings(max_examples=30, deadline=None)
@given(st.data())
def test_any_table_gives_columns_of_its_own_or_a_refusal(data: st.DataObject) -> None:
    names = data.draw(st.lists(HEADS, min_size=1, max_size=6, unique=True))
    n_rows = data.draw(st.sampled_from([0, 1, 5, 21]))
    lists = {name: data.draw(st.lists(CELLS, min_size=n_rows, max_size=n_rows)) for name in names}
    log = pl.DataFrame(lists, schema=dict.fromkeys(names, pl.String))
    log = log.cast(data.draw(st.sampled_from([pl.String, pl.Int64, pl.Float64])), strict=False)
    try:
        found = infer_columns(log, AUTO, "log.csv")
    except ColumnUnknownError:
        return
    assert set(found.values()) <= set(names)
    assert len({*found.values()}) == len(found)
    assert not {*other_times(log, found)} & {*found.values()}


@pytest.mark.parametrize(
    "names", [("year", "month", "day"), ("Jahr", "Monat", "Tag"), ("AÑO", "MES", "DIA"), ("order_month", "order_day")]
)
def test_a_date_in_several_columns_is_said_and_its_day_is_not_the_time(names: tuple[str, ...]) -> None:
    dates = [datetime.fromisoformat(day) for day in COLUMNS["date"]]
    parts = [[f"{date:%Y}" for date in dates], [f"{date:%m}" for date in dates], [f"{date.day}" for date in dates]]
    log = pl.DataFrame({"user": COLUMNS["user"], "item": COLUMNS["item"]})
    log = log.with_columns(pl.Series(name, part) for name, part in zip(names, parts[-len(names) :], strict=True))
    found, _, (warning,) = looked(log, Path("log.csv"))
    assert "time" not in found.columns
    assert (", ".join(names) in warning, "--order=" in warning) == (True, False)


def test_of_two_equally_named_times_the_earlier_is_taken_but_no_other_zone() -> None:
    log = pl.DataFrame({"user": COLUMNS["user"], "item": COLUMNS["item"]})
    seconds = pl.Series(COLUMNS["unix"]).cast(pl.Int64)
    late, zone = seconds + pl.Series(range(600)) % 9 * 977, seconds - 5 * 3600
    for other, taken in ((late, "b_time"), (zone, "a_time")):
        base = {"a_time": other, "b_time": seconds} if other is late else {"a_time": seconds, "b_time": other}
        found = infer_columns(log.with_columns(pl.Series(name, values) for name, values in base.items()), AUTO, "x")
        assert found["time"] == taken
    days = log.with_columns(
        value_date=pl.from_epoch(seconds + 86_400).dt.date(), posting_date=pl.from_epoch(seconds).dt.date()
    )
    assert infer_columns(days, AUTO, "x")["time"] == "posting_date"


def test_what_is_offered_as_the_order_or_as_another_time() -> None:
    log = pl.DataFrame({"user": COLUMNS["user"], "item": COLUMNS["item"]})
    tied = log.with_columns(time=pl.Series(COLUMNS["same"])).sort("user").with_columns(play_time=pl.Series(range(600)))
    assert order_options(looked(tied, Path("log.csv"))[0]) == []  # a duration
    birthdays = pl.Series([f"1999-02-{1 + int(user) % 28:02}" for user in COLUMNS["user"]])
    dated = log.with_columns(ts=pl.Series(COLUMNS["unix"]), date=pl.lit("2026-03-01"), birthday=birthdays)
    assert looked(dated, Path("log.csv"))[2] == []
    clocks = [datetime.fromisoformat(time) for time in COLUMNS["iso"]]
    users = [f"u{row % 3}" for row in range(600)]
    for name, values in (
        ("BonZeit", [f"{clock:%H:%M}" for clock in clocks]), ("hour", [clock.hour for clock in clocks]),
    ):  # fmt: skip
        log = pl.DataFrame({"user": users, "item": COLUMNS["item"], name: values, "date": COLUMNS["date"]})
        assert order_options(looked(log, Path("log.csv"))[0]) == [f"--order={name}"]
        assert order_options(looked(log.drop("date"), Path("log.csv"))[0]) == []
