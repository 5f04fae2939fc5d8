"""Columns with names of many languages and programs, and columns that only their values tell apart."""

import random
import shlex
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bert4rec.__main__ import main
from bert4rec.dataset.reader import read_metadata
from bert4rec.runtime.errors import ColumnUnknownError
from bert4rec.sources.column_inference import infer_columns, other_times
from bert4rec.sources.column_words import name_words
from tests.fixture_types import Capture, Patch

AUTO = dict.fromkeys(("user", "item", "time", "rating", "title"), "auto")
START = 1_767_600_000


def column(kind: str) -> list[Any]:
    """The values of a column, all text, in 600 rows of 60 users and 40 items that are sorted by time."""
    draw = random.Random(0)
    values = []
    for row in range(600):
        user, item, second = draw.randrange(60), draw.randrange(40), START + 4000 * row
        time = datetime.fromtimestamp(second, UTC)
        values.append({
            "user": f"{100 + user}", "item": f"{7000 + item}", "title": f"Thing no. {item}", "artist": f"By {item % 6}",
            "email": f"u{user}@example.org", "name": f"Ann B. {user}", "order": f"{row}", "few": f"{row % 3}",
            "amount": f"{draw.random() * 9:.2f}", "count": f"{1 + draw.randrange(60)}", "blank": "",
            "unix": f"{second}", "iso": time.isoformat(" ")[:19], "date": f"{time:%Y-%m-%d}", "ymd": f"{time:%Y%m%d}",
            "clock": f"{time:%H%M}", "day": f"{1 + row // 22}", "later": f"{second + 9000}", "same": "2026-03-01",
            "release": f"{2000 + item % 20}-05-{1 + item % 28:02d}", "offset": f"{(row * 7919) % 600}",
        }[kind])  # fmt: skip
    return values


COLUMNS = {kind: column(kind) for kind in (
    "user", "item", "title", "artist", "email", "name", "order", "few", "amount", "count", "blank", "unix", "iso",
    "date", "ymd", "clock", "day", "later", "same", "release", "offset",
)}  # fmt: skip


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


VALUES = {
    "a name beside an id is the title": (
        "buyer_no:user, article_no:item, article_name:title, date:date", ("buyer_no", "article_no", "date")),
    "the id has another word than the name": (
        "user_name:user, listened_at:unix, recording_msid:item, track_name:title",
        ("user_name", "recording_msid", "listened_at")),
    "a user before a session": (
        "username:user, session_id:order, course_id:item, time:iso", ("username", "course_id", "time")),
    "an empty user": ("sessionId:user, userId:blank, itemId:item, at:iso", ("sessionId", "itemId", "at")),
    "a client that is a kind of program": (
        "client:few, visit_id:user, item_id:item, at:iso", ("visit_id", "item_id", "at")),
    "the part, not the whole": ("user:user, artist_id:artist, track_id:item, at:unix", ("user", "track_id", "at")),
    "numbers of seconds before a duration": (
        "user:user, item:item, play_time:count, timestamp:unix", ("user", "item", "timestamp")),
    "dates before a duration": ("user:user, item:item, watch_time:count, date:date", ("user", "item", "date")),
    "counts are no times": ("user:user, item:item, watching_times:count", ("user", "item", None)),
    "the finer of two": ("user:user, item:item, event_date:ymd, event_time:unix", ("user", "item", "event_time")),
    "the start before the end": ("user:user, item:item, end_ts:later, begin_ts:iso", ("user", "item", "begin_ts")),
    "no load, edit or birth": (
        "user:user, item:item, etl_date:unix, updated_at:unix, birth_date:unix, day:date", ("user", "item", "day")),
    "no release": ("user:user, item:item, released_on:release, date:release, at:date", ("user", "item", "at")),
    "time of an item under any name": ("user:user, item:item, date:release, when:date", ("user", "item", "when")),
    "days that are numbered": ("user:user, item:item, DAY:day, TRANS_TIME:clock", ("user", "item", "DAY")),
    "a date in all first rows": ("date:same, user:user, item:item", ("user", "item", "date")),
    "time in a session before its day": (
        "sessionId:user, itemId:item, timeframe:offset, day:date", ("sessionId", "itemId", "timeframe")),
    "the only column that is left": ("listener:user, what:item, at:iso, spent:amount", ("listener", "what", "at")),
}  # fmt: skip


@pytest.mark.parametrize("case", VALUES)
def test_values_decide_between_names(case: str) -> None:
    header, (user, item, time) = VALUES[case]
    found = columns_of(header)
    assert (found["user"], found["item"], found.get("time")) == (user, item, time)


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


@pytest.mark.parametrize(
    ("header", "title"),
    [
        ("user:user, StockCode:item, Description:title, Country:few", "Description"),
        ("user:user, track_id:item, artist_name:artist, track_name:title", "track_name"),
        ("user:user, item:item, xyz:title, brand:artist", "xyz"),
        ("user:user, item:item, category:few, artist_name:artist", None),
    ],
)
def test_a_title_is_the_text_that_tells_the_items_apart(header: str, title: str | None) -> None:
    assert columns_of(header).get("title") == title


def test_other_columns_with_times_are_named() -> None:
    names = {"user": "user", "item": "item", "event_timestamp": "unix", "event_date": "ymd", "updated_at": "later"}
    log = pl.DataFrame({name: COLUMNS[kind] for name, kind in names.items()})
    found = infer_columns(log, AUTO, "log.csv")
    assert found["time"] == "event_timestamp"
    assert other_times(log, found) == ["event_date"]
    assert other_times(log.drop("event_timestamp", "event_date"), {"user": "user", "item": "item"}) == ["updated_at"]


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


def test_a_warning_names_the_other_times_and_none_is_silent(capsys: Capture) -> None:
    log = pl.DataFrame({"user": COLUMNS["user"], "item": COLUMNS["item"], "updated_at": COLUMNS["unix"]})
    log.write_csv("edits.csv")
    log.with_columns(at=pl.Series(COLUMNS["unix"]), date=pl.Series(COLUMNS["date"])).write_csv("log.csv")
    assert main(["prepare", "edits.csv", *WORDS]) == 0
    assert "--time=updated_at" in capsys.readouterr().out
    for more, is_warned in (([], True), (["--time=date"], False)):
        assert main(["prepare", "log.csv", *WORDS, "--data.replace=true", *more]) == 0
        assert ("--time=date" in capsys.readouterr().out.partition("next:")[0]) == is_warned


def test_columns_of_movielens_in_an_unknown_file_are_a_table() -> None:
    kinds = {"userId": "user", "movieId": "item", "rating": "few", "timestamp": "unix"}
    pl.DataFrame({name: COLUMNS[kind] for name, kind in kinds.items()}).write_csv("ratings.csv")
    assert main(["prepare", "ratings.csv", *WORDS]) == 0
    columns = {"user": "userId", "item": "movieId", "time": "timestamp", "rating": "rating"}
    assert read_metadata(Path("data/it"))["columns"] == columns


CELLS = st.one_of(
    st.none(), st.sampled_from(["", "7", "-1", "2026-01-05", "20260105", "nan", "a b"]), st.text(max_size=5)
)
HEADS = st.one_of(st.sampled_from(["user_id", "item", "time", "title", "score", "id", "a/b", "日時", "."]), st.text())


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_any_table_gives_columns_of_its_own_or_a_refusal(data: st.DataObject) -> None:
    names = data.draw(st.lists(HEADS, min_size=1, max_size=6, unique=True))
    n_rows = data.draw(st.integers(0, 30))
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
def test_a_date_in_several_columns_is_said_and_its_day_is_not_the_time(names: tuple[str, ...], capsys: Capture) -> None:
    dates = [datetime.fromisoformat(day) for day in COLUMNS["date"]]
    parts = [[f"{date:%Y}" for date in dates], [f"{date:%m}" for date in dates], [f"{date.day}" for date in dates]]
    log = pl.DataFrame({"user": COLUMNS["user"], "item": COLUMNS["item"]})
    log = log.with_columns(pl.Series(name, part) for name, part in zip(names, parts[-len(names) :], strict=True))
    assert "time" not in infer_columns(log, AUTO, "log.csv")
    log.write_csv("log.csv")
    assert main(["prepare", "log.csv", *WORDS]) == 0
    printed = capsys.readouterr().out
    assert (", ".join(names) in printed, "--order=" in printed) == (True, False)


@pytest.mark.parametrize(
    ("header", "time"),
    [
        ("user:user, item:item, fulfilled_at:later, created_at:iso", "created_at"),
        ("user:user, item:item, refund_date:iso, order_date:date", "order_date"),
        ("user:user, item:item, offline_timestamp:unix, ts:iso", "ts"),
        ("user:user, item:item, previous_visit:iso, visited_at:iso", "visited_at"),
        ("user:user, item:item, event_time:later, client_event_time:iso", "event_time"),
        ("user:user, item:item, dropoff_time:later, pickup_time:unix", "pickup_time"),
    ],
)
def test_the_time_of_the_event_comes_before_later_ones(header: str, time: str) -> None:
    assert columns_of(header)["time"] == time


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


def test_a_time_of_day_is_offered_as_the_order_only_beside_dates(capsys: Capture) -> None:
    """And a duration is not, nor are constant dates or birthdays as times."""
    log = pl.DataFrame({"user": COLUMNS["user"], "item": COLUMNS["item"]})
    tied = log.with_columns(time=pl.Series(COLUMNS["same"])).sort("user").with_columns(play_time=pl.Series(range(600)))
    birthdays = pl.Series([f"1999-02-{1 + int(user) % 28:02}" for user in COLUMNS["user"]])
    dated = log.with_columns(ts=pl.Series(COLUMNS["unix"]), date=pl.lit("2026-03-01"), birthday=birthdays)
    for table, offered in ((tied, "=play_time"), (dated, "--time=")):
        table.write_csv("log.csv")
        assert main(["prepare", "log.csv", *WORDS, "--data.replace=true"]) == 0
        assert offered not in capsys.readouterr().out.replace("--user, --item, --time", "")
    clocks = [datetime.fromisoformat(time) for time in COLUMNS["iso"]]
    users = [f"u{row % 3}" for row in range(600)]
    for name, values in (
        ("BonZeit", [f"{clock:%H:%M}" for clock in clocks]),
        ("hour", [clock.hour for clock in clocks]),
    ):
        log = pl.DataFrame({"user": users, "item": COLUMNS["item"], name: values, "date": COLUMNS["date"]})
        for table, is_offered in ((log, True), (log.drop("date"), False)):
            table.write_csv("log.csv")
            assert main(["prepare", "log.csv", *WORDS, "--data.replace=true"]) == 0
            assert (f"--order={name}" in capsys.readouterr().out) == is_offered
