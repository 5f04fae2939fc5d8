"""Settings with the value "auto", resolved, and settings that contradict each other."""

from itertools import product

import pytest

from bert4rec.config.kinds import SHARDING_TYPES, supports_column_sharding
from bert4rec.config.load import flat, load_config, parse_command_line
from bert4rec.config.resolve import Facts, choices, resolve, slow_settings
from bert4rec.config.tables import Config
from bert4rec.runtime.errors import SettingsError
from tests.checks import one_line

FEW = Facts(100)
LARGE = Facts(10**6)
CPU, CUDA = ("cpu", 1), ("cuda", 1)  # device, number of processes
FACTORS = "--model=matrix_factorization"
GBCE = "--loss=gbce --training.n_train_negatives=9"
WISE = "--parallelism.sharding_type"
OPTIMIZER, RATE = "--parallelism.sparse_optimizer", "--parallelism.sparse_learning_rate"
DECAY = "--training.weight_decay"
ADAM, ADAGRAD, ROWWISE = (
    f"{OPTIMIZER}={name} {RATE}={rate}"
    for name, rate in (("adam", 0.003), ("adagrad", 0.02), ("rowwise_adagrad", 0.02))
)
ADAMW = "--training.optimizer=adamw"
AGE, SEEN, TIMES = "--training.average_age", "--evaluation.seen_items", "--model.times"
STEP = "--max-len=50 --batch-size=64 --loss=gbce"
NEGATIVES, SHARED = "--training.n_train_negatives", "--training.negatives_shared_by"


def config_of(words: str) -> Config:
    return load_config(None, parse_command_line(words.split())[1])


OF_OPTIMIZERS = [
    (f"--mode=ddp {GBCE}", CPU, ADAM), (GBCE, CUDA, ADAM),
    ("", CPU, ADAM),  # every row has a gradient at every step, and an ordinary optimizer
    (f"--parallelism.sparse_weight_decay=0.1 {GBCE}", CPU, ADAM), (GBCE, CPU, ROWWISE),
    (f"{WISE}=table_wise", CPU, ROWWISE), ("--model.head=linear", CPU, ROWWISE),
    (f"{WISE}=column_wise", CPU, ADAGRAD), (f"{WISE}=column_wise", CUDA, ADAM),
    (f"{WISE}=column_wise --mode=ddp", CPU, ADAM),
]  # fmt: skip
OF_LOGS = [
    *[("", Facts(100, typical_length=typical), f"--max-len={n}")
      for typical, n in ((0, 50), (50, 50), (51, 100), (101, 200), (900, 200))],
    ("--training.sliding_step=70", Facts(100, typical_length=50), "--max-len=70"),
    ("--max-len=90", Facts(100, typical_length=51), "--max-len=90"),
    *[("--model=sasrec", Facts(100, n), f"--model.dropout={rate}")
      for n, rate in ((10_000, 0.1), (9_900, 0.3), (3_000, 0.3), (2_900, 0.5), (0, 0.1))],
    *[("", Facts(100, n), f"--model.dropout={rate}") for n, rate in ((10_000, 0.1), (9_900, 0.2), (2_900, 0.2))],
    ("--model.dropout=0.25", Facts(100, 200), "--model.dropout=0.25"),
    (FACTORS, Facts(100, 200), "--model.dropout=0.1"),
    *[("", Facts(100, repeats=share), f"{SEEN}={chosen}")
      for share, chosen in ((0.0, "leave_out"), (0.05, "leave_out"), (0.06, "keep"))],
    *[("", Facts(100, repeats=0.06, missed=share), f"{SEEN}={chosen}")
      for share, chosen in ((0.0, "by_item"), (0.01, "by_item"), (0.02, "keep"))],
    *[(f"{SEEN}={chosen}", Facts(100, repeats=0.06), f"{SEEN}={chosen}")
      for chosen in ("keep", "leave_out", "by_item")],
    ("", Facts(100, moved=0.149), f"{TIMES}=none"), ("", Facts(100, moved=0.15), f"{TIMES}=history"),
    ("", Facts(100, moved=0.9, times="none"), f"{TIMES}=none"), ("", Facts(100, times="target"), f"{TIMES}=target"),
    (f"{TIMES}=none", Facts(100, moved=0.9), f"{TIMES}=none"), (FACTORS, Facts(100, moved=0.9), f"{TIMES}=none"),
    (FACTORS, Facts(100, 100_000, n_windows=900), "--batch-size=64"),  # of pairs
    (FACTORS, Facts(100, 900, n_windows=900), "--batch-size=32"),
    (f"{FACTORS} --model.form=neural", FEW, "--loss=sampled_softmax"),
    (f"{FACTORS} --model.form=dot", FEW, "--loss=softmax"),
    ("--model=sasrec --model.form=neural", FEW, "--loss=softmax"),
]  # fmt: skip
OF_SETTINGS = [
    *[(words, FEW, f"{AGE}={age}") for words, age in (
        ("", 0.1), (f"--mode=ddp {GBCE}", 0.1),
        (GBCE, 0.0),  # fbgemm updates a table that may be as large as the memory
        (f"{GBCE} {AGE}=0.2", 0.2), ("--training.lr_schedule=linear", 0.0),
        (f"--training.lr_schedule=linear {AGE}=0.2", 0.2), (f"{AGE}=0.0", 0.0))],
    ("--model=sasrec", FEW, "--model.input_norm=true"), ("", FEW, "--model.input_norm=false"),
    ("--model=sasrec --model.input_norm=false", FEW, "--model.input_norm=false"),
    ("--model.input_norm=true", FEW, "--model.input_norm=true"),
]  # fmt: skip
OF_RATES = [  # Muon's is in proportion to the windows of a step; tables have that of Adam
    *[
        (f"--batch-size={n}", of, f"--training.optimizer=muon --lr={rate} {RATE}=0.001")
        for n, of, rate in ((64, 1, 0.008), (16, 1, 0.002), (16, 2, 0.004), (64, 2, 0.012), (64, 64, 0.012))
    ],
    ("--lr=0.003", 1, f"--training.optimizer=muon --lr=0.003 {RATE}=0.001 {DECAY}=0.1"),
    (f"{DECAY}=0.0", 1, f"--training.optimizer=muon {DECAY}=0.0"),
    (ADAMW, 64, f"{ADAMW} --lr=0.001 {RATE}=0.001 {DECAY}=0.0"),
    (FACTORS, 64, f"{ADAMW} --lr=0.001 {RATE}=0.001 {DECAY}=0.0"),
]
OF_UPDATES = [  # an average is of tables that fbgemm does not update
    *[(words, CUDA, f"{AGE}={age}") for words, age in (
        ("", 0.1), (GBCE, 0.0), ("--parallelism.compute_kernel=fused_uvm", 0.0), ("--model.head=linear", 0.0),
        (f"{GBCE} --parallelism.sparse_weight_decay=0.1", 0.1), (f"{WISE}=table_wise", 0.0))],
]  # fmt: skip
OF_STEPS = [
    *[(words, LARGE, ("cpu", n), f"{NEGATIVES}={k} {SHARED}={shared}") for words, n, k, shared in (
        ("", 1, 256, "all"),  # 704 masked positions, 2.75 a negative
        ("", 2, 256, 1),  # 5.5
        (f"{SHARED}=all", 512, 131_072, "all"), (f"{SHARED}=8", 512, 2048, 8),
        (f"{NEGATIVES}=352", 2, 352, "all"), (f"{NEGATIVES}=20", 2, 20, "all"),  # too few, which is warned of
        ("--model=sasrec", 1, 1024, "all"), ("--model=sasrec", 512, 1024, 1),  # all 3,200 positions
        (FACTORS, 4, 256, "all"))],
    (f"{SHARED}=all", Facts(400), ("cpu", 512), f"{NEGATIVES}=399"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("words", "facts", "where", "expected"),
    [
        *[(f"{ADAMW} --lr=0.003 {NEGATIVES}=9 {words}", FEW, *others) for words, *others in OF_OPTIMIZERS + OF_UPDATES],
        *[(words, FEW, ("cpu", n), expected) for words, n, expected in OF_RATES],
        *[(words, facts, CPU, expected) for words, facts, expected in OF_LOGS + OF_SETTINGS],
        *[(f"{STEP} {words}", *others) for words, *others in OF_STEPS],
        ("--parallelism.compute_kernel=fused_uvm_caching", FEW, CUDA, "--parallelism.compute_kernel=fused_uvm_caching"),
    ],
)
def test_settings_become_what_the_device_and_the_dataset_ask(
    words: str, facts: Facts, where: tuple[str, int], expected: str
) -> None:
    device, n_processes = where
    found = flat(resolve(config_of(words), device, facts, n_processes).model_dump())
    assert parse_command_line(expected.split())[1].items() <= found.items()
    assert found["parallelism.device"] == device


@pytest.mark.parametrize(
    ("n_windows", "world_size", "sasrec", "bert4rec"),
    [
        (10, 1, 1, 1), (100, 1, 4, 4),  # 25 steps; 8 would leave 13
        (1090, 1, 16, 64),  # no fewer, as long as 16 steps are left
        (1090, 2, 8, 32), (1090, 3, 4, 16),  # a power of two
        (1090, 32, 1, 2), (2047, 1, 16, 64),  # 32 would leave 64 steps but for one
        (2048, 1, 32, 64), (8648, 3, 32, 32), (10**8, 8, 64, 64), (0, 8, 64, 64),  # not known
    ],
)  # fmt: skip
def test_the_fewer_windows_there_are_the_smaller_are_batches(
    n_windows: int, world_size: int, sasrec: int, bert4rec: int
) -> None:
    facts = Facts(100, 1000, n_windows=n_windows)
    for kind, given, size in (("sasrec", "auto", sasrec), ("bert4rec", "auto", bert4rec), ("sasrec", "8", 8)):
        config = config_of(f"--model={kind} --batch-size={given}")
        assert resolve(config, "cpu", facts, world_size).training.per_device == size


@pytest.mark.parametrize(
    ("words", "facts", "named"),
    [
        ("", Facts(100, 200), ["model.dropout = 0.2", "training.per_device_train_batch_size = 64"]),
        ("--model.dropout=0.2 --batch-size=8", Facts(100, 200), []), (FACTORS, Facts(100, 200), []),
        ("--model.dropout=0.2", Facts(100, typical_length=60, n_windows=10),
         ["model.max_len = 100", "training.per_device_train_batch_size = 1"]),
        ("--model.dropout=0.2 --batch-size=8", Facts(100, moved=0.2), ['model.times = "history"']),
        ("--model.dropout=0.2 --batch-size=8", Facts(100, prior=["neighbours"]), ['model.prior = "auto"']),
        ("--model.dropout=0.2 --batch-size=8 --model.prior=['neighbours']", Facts(100, prior=["neighbours"]), []),
        ("--model=popularity", Facts(10**6, repeats=0.1), ['evaluation.seen_items = "keep"']),
        (f"{FACTORS} --loss=gbce", Facts(10**6, repeats=0.1),
         ['evaluation.seen_items = "keep"', "training.n_train_negatives = 256"]),
    ],
)  # fmt: skip
def test_a_line_says_what_the_dataset_decides(words: str, facts: Facts, named: list[str]) -> None:
    assert [line.partition(": ")[0] for line in choices(config_of(words), facts, 1)] == named


@pytest.mark.parametrize("words", ["--precision=bf16", "--training.compile=true"])
def test_what_is_slower_on_cpu_is_warned_of_there(words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda name: f"/usr/bin/{name}")
    for some, device, n in ((words, "cpu", 1), (words, "cuda", 0), ("", "cpu", 0)):
        assert len([*slow_settings(resolve(config_of(some), device, FEW))]) == n


@pytest.mark.parametrize(
    ("mode", "device", "loss", "wise"), [*product(("dmp", "ddp"), ("cpu", "cuda"), ("auto", "gbce"), SHARDING_TYPES)]
)
def test_no_auto_becomes_what_the_sharding_refuses(mode: str, device: str, loss: str, wise: str) -> None:
    found = resolve(config_of(f"--mode={mode} --loss={loss} {WISE}={wise}"), device, FEW).parallelism
    assert mode == "ddp" or supports_column_sharding(found.sparse_optimizer, wise)


PRECISION = "parallelism.table_precision"
HALF = f"--{PRECISION}=fp16"
REFUSED = [  # the settings, also in the way that goes, and how the refusal begins
    (f"{HALF} {GBCE} {OPTIMIZER}=adam", f"{HALF} {GBCE}", PRECISION),
    (f"{HALF} {GBCE} --parallelism.sparse_weight_decay=0.1", f"{HALF} {WISE}=table_wise", PRECISION),
    (HALF, f"{HALF} --model.head=linear", PRECISION),
    (f"{OPTIMIZER}=adam {WISE}=table_wise", f"{OPTIMIZER}=adam {GBCE}", "parallelism.sparse_optimizer"),
    (f"{OPTIMIZER}=adam {WISE}=column_wise", f"{OPTIMIZER}=adam --model.head=linear", "parallelism.sparse_optimizer"),
    (f"--loss=gbce {NEGATIVES}=100", f"--loss=gbce {NEGATIVES}=99", "training.n_train_negatives"),
    ("--parallelism.compute_kernel=fused_uvm", "--parallelism.compute_kernel=fused", "parallelism.compute_kernel"),
]  # fmt: skip


@pytest.mark.parametrize(("words", "valid", "setting"), REFUSED)
def test_what_the_device_or_the_dataset_lacks_is_refused(words: str, valid: str, setting: str) -> None:
    named = parse_command_line(valid.split())[1]
    assert named.items() <= flat(resolve(config_of(valid), "cpu", FEW).model_dump()).items()
    with one_line(f"{setting} = ", error=SettingsError):
        resolve(config_of(words), "cpu", FEW)


def test_a_single_item_leaves_no_negatives() -> None:
    with one_line("training.loss = ", '"softmax"', error=SettingsError):
        resolve(config_of("--loss=gbce"), "cpu", Facts(1))


AVERAGE, UVM = f"{AGE}=0.1", "--parallelism.compute_kernel=fused_uvm"


@pytest.mark.parametrize(
    "words",  # the error names the first option
    [
        "--model.n_heads=3", "--training.sliding_step=51 --max-len=50", "--training.random_token_share=0.5",
        "--preprocessing.max_user_interactions=4 --preprocessing.min_user_interactions=5",
        "--preprocessing.time_until=2019-03-01 --preprocessing.time_from=2019-03-01T12:00:00",
        "--run.init_from=runs/a --resume=runs/b", "--run.init_from=runs/a --model=popularity", "--loss=mse",
        "--model.positions=rotary --embed-dim=36 --model.n_heads=4", f"--model.head=linear {FACTORS}",
        f"{AVERAGE} {HALF}", f"{AVERAGE} {UVM}", f"--training.compile=true {FACTORS}",
        "--precision=tf32 --device=cpu", "--training.rating_range=[5.0,0.0]",
        f"--loss=softmax --model.form=neural {FACTORS}",
        "--training.warmup_steps=3 --training.lr_schedule=one_cycle",
        f"--parallelism.sparse_weight_decay=0.1 {WISE}=table_wise", "--data.title_column=name --data.titles_path=t.csv",
        f"{OPTIMIZER}=rowwise_adagrad {WISE}=column_wise", f"{HALF} --mode=ddp",
        "--parallelism.messages=bf16 --mode=ddp",
        "--parallelism.sharding_group_size=2 --mode=ddp", f"--parallelism.sharding_group_size=2 {UVM}",
        "--preprocessing.hide_before_target=visit",
        f"{UVM} --mode=ddp --device=cuda", f"{UVM} --mode=ddp", f"{UVM} --device=cpu",
    ],
)  # fmt: skip
def test_a_conflict_is_one_line_that_begins_with_the_setting_and_its_value(words: str) -> None:
    with one_line(f"{words.split()[0]}: ", error=SettingsError):
        config_of(words)


@pytest.mark.parametrize(
    "words",
    [
        HALF, "--parallelism.messages=bf16", f"{FACTORS} --model.n_heads=3", "--data.title_column=name",
        f"{OPTIMIZER}=adagrad {WISE}=column_wise", f"{UVM} --device=cuda", UVM,
    ],
)  # fmt: skip
def test_these_go_together(words: str) -> None:
    config_of(words)
