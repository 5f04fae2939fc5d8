"""The pictures of a report."""

from pathlib import Path

from bert4rec.checkpoint.run_folder import PICTURE
from bert4rec.report.log import read_records


def draw_learning_curve(folder: Path) -> None:
    """`learning_curve.png`: the training loss by step, and HR@10 and NDCG@10 on validation where there is one."""
    from matplotlib.figure import Figure  # here, since it is slow to import and only the first process draws

    train, validation = read_records(folder, "train"), read_records(folder, "validation")
    n_plots = 2 if validation else 1
    # Without pyplot, which has a screen and figures of whoever calls this.
    figure = Figure(figsize=(5 * n_plots, 3.6), layout="constrained")
    ((left, *right),) = figure.subplots(1, n_plots, squeeze=False)
    left.plot([r["step"] for r in train], [r["loss"] for r in train], marker=".", color="tab:blue")
    left.set(title="Training loss", xlabel="step", ylabel="cross-entropy (nats)")
    for axes in right:
        for name, color in (("HR@10", "tab:orange"), ("NDCG@10", "tab:green")):
            values = [r["full"][name] for r in validation]
            axes.plot([r["step"] for r in validation], values, marker=".", color=color, label=name)
        axes.set(title="Validation, full catalogue", xlabel="step")
        axes.set_ylim(bottom=0)
        axes.legend()
    for axes in (left, *right):
        axes.grid(alpha=0.3)
        axes.xaxis.get_major_locator().set_params(integer=True)
    figure.savefig(folder / PICTURE, dpi=120)
