"""Masked pre-training with fine-tuning against training from scratch, in the same total time on the same images.

For each budget of minutes, two classifiers of the same architecture are trained with the same recipe: one from scratch
for the whole time, the other for the time that remains after its encoder was pre-trained on the same images without
labels. The numbers of epochs follow from the measured time of one epoch; the seconds in the table are those of training
with validation, without the test. Finished runs are not repeated, and stopped runs are resumed.

    python benchmarks/mae_vs_scratch.py --root CIFAR10                        60 minutes each, half for pre-training
    python benchmarks/mae_vs_scratch.py --root CIFAR10 --minutes 15 30 60 --share 0.6
    python benchmarks/mae_vs_scratch.py --root CIFAR10 --tune recipe.optimizer.layer_decay=0.8
    python benchmarks/mae_vs_scratch.py --experiment digits --overrides data.image_size=32 --minutes 2
"""

import argparse
import json
import sys
from dataclasses import dataclass
from pathlib import Path

from pairs import report

from vit.report.figures.style import BLUE, FONT, INK, MUTED, ORANGE, new_figure, save_figure, set_title, style_axes
from vit.report.logged_values import Curve, read_curves
from vit.run.config.overrides import override_text
from vit.run.processes.separate_process import train_in_new_process

SCRATCH, MAE = "from scratch", "pre-trained"


@dataclass(frozen=True)
class Arm:
    """A trained classifier with the time that it took; `x` of the curve is in minutes since the start of pre-training.
    """

    name: str
    minutes: float
    epochs_before: int
    epochs: int
    seconds: float
    accuracy: float
    curve: Curve

    def row(self) -> dict:
        return {
            "": self.name,
            "minutes": self.minutes,
            "epochs of pre-training": self.epochs_before,
            "epochs": self.epochs,
            "seconds": round(self.seconds),
            "test accuracy": f"{self.accuracy:.2%}",
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", default=None, help="the folder of the data set")
    parser.add_argument("--experiment", default="cifar10", help="name of the experiment and of its data set")
    parser.add_argument("--minutes", type=float, nargs="+", default=[60.0])
    parser.add_argument("--share", type=float, default=0.5, help="fraction of the time for pre-training")
    parser.add_argument("--overrides", nargs="*", default=[], help="for every run, such as seed=1 recipe.epochs=9")
    parser.add_argument("--before", nargs="*", default=[], help="for pre-training only")
    parser.add_argument("--tune", nargs="*", default=[], help="for fine-tuning only")
    parser.add_argument("--out", type=Path, default=Path("runs/mae_vs_scratch"))
    options = parser.parse_args()
    root = [override_text("data.root", options.root)] if options.root else []
    scratch = [f"experiment={options.experiment}", *root, *options.overrides]
    before = ["experiment=mae", f"data={options.experiment}", *root, *options.overrides, *options.before]
    seconds = {name: timed(overrides, options.out / f"one_epoch_{name.replace(' ', '_')}")
               for name, overrides in ((SCRATCH, scratch), (MAE, before))}
    arms = []
    for minutes in sorted(options.minutes):
        arms += train_both(minutes, options, seconds, scratch, before)
    heading = f"{options.experiment}: {options.share:.0%} of the time for pre-training"
    report(heading, [arm.row() for arm in arms])
    print(draw(options.out / "mae_vs_scratch.png", arms, heading), file=sys.stderr)


def train_both(
    minutes: float, options: argparse.Namespace, seconds: dict[str, float], scratch: list[str], before: list[str]
) -> list[Arm]:
    """The two classifiers of one budget."""
    folder, available = options.out / f"{minutes:g}_minutes", 60 * minutes
    alone = epochs(available, seconds[SCRATCH])
    first = epochs(available * options.share, seconds[MAE])
    rest = epochs(available * (1 - options.share), seconds[SCRATCH])
    made = trained([*scratch, f"recipe.epochs={alone}"], folder / "scratch")
    pre = trained([*before, f"recipe.epochs={first}"], folder / "mae")
    start = override_text("init_from", str(folder / "mae"))
    tuned = trained([*scratch, f"recipe.epochs={rest}", start, *options.tune], folder / "tuned")
    return [
        arm(SCRATCH, minutes, 0, alone, 0.0, made, folder / "scratch"),
        arm(MAE, minutes, first, rest, pre["seconds"], tuned, folder / "tuned"),
    ]


def epochs(available: float, each: float) -> int:
    return max(1, int(available / each))


def timed(overrides: list[str], folder: Path) -> float:
    """Seconds of an epoch with its validation."""
    return trained([*overrides, "recipe.epochs=1"], folder)["seconds"]


def trained(overrides: list[str], folder: Path) -> dict:
    """Metrics of the run in `folder`, which is trained or resumed first if it is not finished."""
    result = folder / "metrics.json"
    if not result.exists():
        begun = (folder / "config.yaml").exists()
        path = str(folder)
        arguments = [override_text("resume", path)] if begun else [*overrides, override_text("run_dir", path)]
        code = train_in_new_process(arguments)
        if code:
            raise SystemExit(code)
    return json.loads(result.read_text(encoding="utf-8"))


def arm(name: str, minutes: float, epochs_before: int, epochs: int, earlier: float, metrics: dict, run: Path) -> Arm:
    """A finished run; its curve starts after the `earlier` seconds of pre-training."""
    curve = read_curves(run / "metrics.csv")["val/accuracy"]
    x = (earlier + curve.x / curve.x[-1] * metrics["seconds"]) / 60
    whole = earlier + metrics["seconds"]
    return Arm(name, minutes, epochs_before, epochs, whole, metrics["test/accuracy"], Curve(x, curve.y))


def draw(path: Path, arms: list[Arm], heading: str) -> Path:
    """Validation accuracy over the total time of each model, and its test accuracy at the end."""
    figure = new_figure(7.2, 4.4)
    axes = figure.subplots()
    style_axes(axes)
    for name, colour in ((SCRATCH, ORANGE), (MAE, BLUE)):
        own = [each for each in arms if each.name == name]
        for each in own:
            axes.plot(each.curve.x, each.curve.y, color=colour, linewidth=1.2, alpha=0.5)
        ends = [each.seconds / 60 for each in own], [each.accuracy for each in own]
        axes.plot(*ends, "o-", color=colour, linewidth=2, label=f"{name}: test")
        for x, y in zip(*ends, strict=True):
            axes.annotate(f"{y:.1%}", (x, y), xytext=(4, 6), textcoords="offset points", fontsize=8, color=INK)
    axes.set_xlabel("minutes of training, pre-training included", fontsize=9, color=MUTED, family=FONT)
    axes.set_xlim(left=0)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    axes.legend(frameon=False, fontsize=9, loc="lower right")
    set_title(axes, heading, "thin lines: validation")
    return save_figure(figure, path)


if __name__ == "__main__":
    main()
