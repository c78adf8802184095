"""The result of a cross-validation in the terminal."""

from statistics import fmean

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from vit.messages import number_of
from vit.report.summary import number


def print_cross_validation(result: dict, console: Console) -> None:
    """Print mean and deviation of each test metric over the runs, and what was saved."""
    title = f"Cross-validation, {number_of(len(result['runs']), 'run')}"
    table = Table(box=SIMPLE_HEAD, title=title, title_justify="left", title_style="bold")
    table.add_column("metric", overflow="fold")
    for heading in ("mean", "sd", "lowest", "highest"):
        table.add_column(heading, justify="right", no_wrap=True)
    for name, mean in result["mean"].items():
        if name.startswith("test/") and name.rpartition("/")[2] not in ("images", "texts", "sentences"):
            values = [run[name] for run in result["runs"].values()]
            cells = mean, result["deviation"][name], min(values), max(values)
            table.add_row(escape(name), *(number(value) for value in cells))
    console.print(table)
    for line in summary_lines(result):
        console.print(line, markup=False, highlight=False, soft_wrap=True)


def summary_lines(result: dict) -> list[str]:
    """A line for each kind of saved result, with its accuracy and its path."""
    whole, ensemble, soups = result["out_of_fold"], result["ensemble"], result["soups"]
    labels = whole.get("labels")
    of_all = f"{whole['accuracy']:.2%} of {counted(whole['samples'], labels)}"
    lines = [f"  out of fold     {of_all}, {result['predictions']}"]
    if ensemble is not None:
        tested = ""
        if "test_accuracy" in ensemble:
            tested = (f", {ensemble['test_accuracy']:.2%} of {counted(ensemble['test_samples'], labels, 'test ')} (its "
                      f"members: {ensemble['member_test_accuracy']:.2%})")
        lines.append(f"  ensemble        {number_of(ensemble['members'], 'model')}{tested}, {ensemble['path']}")
    if soups:
        tested, single = (fmean(soup[key] for soup in soups) for key in ("test_accuracy", "single_test_accuracy"))
        count = sum(len(soup["ingredients"]) > 1 for soup in soups)
        lines.append(f"  soups           {count} of {number_of(len(soups), 'fold')}, {tested:.2%} out of fold (single "
                     f"models: {single:.2%})")
    return lines


def counted(samples: int, labels: int | None, split: str = "") -> str:
    """What an accuracy is a share of: samples, or, of several labels per sample, decisions at a threshold of 0.5."""
    if labels is None:
        return number_of(samples, f"{split}sample")
    return f"the decisions about {number_of(labels, 'label')} of {number_of(samples, f'{split}image')} at threshold 0.5"
