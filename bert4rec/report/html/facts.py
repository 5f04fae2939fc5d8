"""What a report says beside its figures: data, time, memory, settings, versions."""

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, NamedTuple

from bert4rec.config.abilities import examples_of, is_trained
from bert4rec.report.contestants import contestants, main_protocol
from bert4rec.report.html.contents import Contents, Settings
from bert4rec.runtime.wording import clock, counted, rounded

PARTS = {
    "start": "start",
    "training": "training steps",
    "validation": "validation",
    "saving": "checkpoints",
    "test": "test and baselines",
    "rest": "training, not told apart",
}
NOT_MINE = ("data.dataset_dir", "run.dir", "run.name", "run.resume")  # places, not what was trained


class Fact(NamedTuple):
    """A line of a list: what it is, and its value; perhaps a remark."""

    name: str
    value: str
    remark: str = ""


class Part(NamedTuple):
    """Of the time of a run: which `kind`, its name, how long, and its share in %."""

    kind: str
    name: str
    value: str
    share: float


class Setting(NamedTuple):
    """One that is not as by default; `is_chosen`: by the program, in the place of "auto"."""

    name: str
    value: str
    default: str
    is_chosen: bool


def tiles(report: Mapping[str, Any]) -> list[Fact]:
    """The few figures that are shown large."""
    found: list[Fact] = []
    protocol, ratings = main_protocol(report), report.get("ratings") or {}
    if protocol:
        model = contestants(report)[0]
        for name in ("HR@10", "NDCG@10"):
            if name in model.metrics[protocol]:
                interval = model.interval(protocol, name)
                remark = f"{interval[0]:.4f} – {interval[1]:.4f}" if interval else f"{protocol} ranking, test"
                found.append(Fact(name, f"{model.metrics[protocol][name]:.4f}", remark))
    if "RMSE" in ratings:
        found.append(Fact("RMSE", f"{ratings['RMSE']:.4f}", f"MAE {ratings['MAE']:.4f}" if "MAE" in ratings else ""))
    training = report.get("training") or {}
    was_trained = is_trained(report.get("kind", "bert4rec"))
    if "epochs" in training and was_trained:
        remark = f"{counted(training.get('steps', 0), 'step')}, ended by {training.get('stopped_by', '')}"
        found.append(Fact("epochs", rounded(training["epochs"]), remark))
    if "seconds" in training:
        rate = training.get("sequences_per_second")
        name, examples = "training" if was_trained else "counting", examples_of(report.get("kind", "bert4rec"))
        found.append(Fact(name, _duration(training["seconds"]), f"{rounded(rate)} {examples}/s" if rate else ""))
    return found


def data_facts(report: Mapping[str, Any]) -> list[Fact]:
    """Of the dataset; a report of an older version has fewer."""
    return list(_data_facts(report["dataset"]))


def _data_facts(dataset: Mapping[str, Any]) -> Iterator[Fact]:
    yield Fact("source", str(dataset["source"]), dataset.get("file", ""))
    for name, noun in (("users", "users"), ("items", "items"), ("rows", "interactions")):
        read = dataset.get(f"{name}_read")
        yield Fact(noun, f"{dataset[name]:,}", f"of {read:,} read" if read and read != dataset[name] else "")
    if dataset.get("density"):
        yield Fact("density", f"{100 * dataset['density']:.3g} %", "of all pairs of a user and an item")
    if lengths := dataset.get("lengths"):
        yield Fact("a user has", f"{lengths['median']:,.0f}", f"interactions (median), {lengths['mean']:,.1f} (mean)")
    if span := dataset.get("time_span"):
        first, last = (datetime.fromtimestamp(time, UTC).date().isoformat() for time in span)
        yield Fact("from, to", f"{first}, {last}")
    if dataset.get("train_windows"):
        yield Fact("training windows", f"{dataset['train_windows']:,}", f"of at most {dataset['max_len']:,} items")
    yield Fact("split", str(dataset.get("split", "")).replace("_", " "))
    for split in ("validation", "test"):
        if count := dataset.get("repeated_targets", {}).get(split):
            seen = f"{count['users']:,} with a target that they had seen" if count["users"] else ""
            yield Fact(f"{split} users", f"{count['of']:,}", seen)
    for kind, n in dataset.get("bad_rows", {}).items():
        yield Fact("unusable rows", f"{n:,}", str(kind))
    for name, n in dataset.get("dropped", {}).items():
        yield Fact("dropped rows", f"{n:,}", f"by {name}")
    if "fingerprint" in dataset:
        yield Fact("fingerprint", str(dataset["fingerprint"])[:12])


def time_parts(report: Mapping[str, Any]) -> list[Part]:
    """Where the time went; nothing for a report of an older version.

    What a run that an older version began does not know of its first parts is named as such.
    """
    training = report.get("training") or {}
    seconds = dict(training.get("seconds_by_part", {}))
    known = sum(seconds.get(name, 0.0) for name in ("training", "validation", "saving"))
    if seconds and (rest := training.get("seconds", 0.0) - known) > 0.05 * training["seconds"]:
        seconds["rest"] = rest
    total = sum(seconds.values())
    return [
        Part(name, title, _duration(seconds[name]), 100 * seconds[name] / total)
        for name, title in PARTS.items()
        if seconds.get(name)
    ]


def _duration(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds < 60 else clock(seconds)


def memory(report: Mapping[str, Any]) -> list[list[str]]:
    """A row a process: its number, bytes of weights and of optimizer state, its peak."""
    sharding, peaks = report.get("sharding") or {}, (report.get("training") or {}).get("peak_memory_bytes", [])
    columns = [sharding.get("weights", []), sharding.get("optimizer_state", []), peaks]
    return [
        [str(rank), *(_size(column[rank]) if rank < len(column) else "–" for column in columns)]
        for rank in range(max(map(len, columns)))
    ]


def _size(n_bytes: float) -> str:
    """In the unit that leaves one to three digits before the point."""
    for unit in ("B", "kB", "MB", "GB"):
        if n_bytes < 1000 or unit == "GB":
            break
        n_bytes /= 1000
    return f"{n_bytes:,.0f} {unit}" if unit == "B" else f"{n_bytes:,.3g} {unit}"


def other_settings(settings: Settings, defaults: Settings) -> list[Setting]:
    """Those that are not as by default, in the order of `settings`."""
    found = []
    for table, values in settings.items():
        for key, value in values.items():
            name, default = f"{table}.{key}", defaults.get(table, {}).get(key)
            if value != default and name not in NOT_MINE:
                found.append(Setting(name, _value(value), _value(default), default == "auto"))
    return found


def _value(value: Any) -> str:
    if value is None:
        return "–"
    return str(value).lower() if isinstance(value, bool) else f'"{value}"' if isinstance(value, str) else str(value)


def versions(contents: Contents) -> list[Fact]:
    """What it ran on."""
    return [
        Fact(name.replace("_", " "), " ".join(map(str, value)) if isinstance(value, list) else str(value))
        for name, value in contents.environment.items()
    ]
