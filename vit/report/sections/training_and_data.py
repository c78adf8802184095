"""The sections about training and data: learning curves with speed and memory, and the audit."""

from collections.abc import Callable, Sequence
from functools import partial

from vit.data.quality.audit import audit
from vit.exchange.run_records import best_epoch
from vit.messages import duration, left_to_right, mega, number_of, path_left_to_right
from vit.report.figures.curves import curves_picture
from vit.report.pages.html_parts import cut_note, drawing, facts, heading, paragraph, preformatted, table
from vit.report.sections.subject import Section, Subject, missing

LISTED = 20  # files of each kind in the audit; the JSON file has all
EQUAL = 10  # further files of a group with equal content, which may be all files; the JSON file has all
SHOWN = 1000  # classes in the tables of the page


def training(subject: Subject) -> Section:
    """Learning curves, speed and memory of the run."""
    key, title, run = "training", "Training", subject.run
    if run is None:
        return missing(key, title, "the model is not in a run folder, which has the learning curves; pass the run")
    html, metrics = "", run.metrics
    if not metrics:
        html += paragraph(f"{run.path / 'metrics.json'} is missing: the run has not finished.")
    else:
        html += facts(cost(metrics))
    url = subject.figure("curves.png", curves_picture, run.log, "", "", best_epoch(metrics)) if run.curves else None
    if url is None:
        html += paragraph(f"{run.log} has no values, so there are no learning curves.")
    else:
        last = (f"{name} ends at {curve.y[-1]:.4g}" for name, curve in run.curves.items() if name.startswith("val/"))
        alt = "Learning curves over the epochs: " + ", ".join(last)
        html += drawing(url, alt) + paragraph(
            "The training loss includes the augmentation and regularization of the recipe, so it is not comparable "
            "with the validation loss.", muted=True)
    if command := run.environment.get("command"):
        html += heading("Command of the run") + preformatted(command)
    curves = {name: {"epoch": curve.x.tolist(), "value": curve.y.tolist()} for name, curve in run.curves.items()
              if name.startswith("val/")}
    return Section(key, title, html, {"run": str(run.path), "metrics": dict(metrics), "curves": curves,
                                      "environment": dict(run.environment)})


def cost(metrics: dict) -> dict[str, str | None]:
    """Duration, speed and memory of the training for people."""
    def number(key: str, form: str, scale: float = 1) -> str | None:
        value = metrics.get(key)
        return form.format(value * scale) if isinstance(value, int | float) else None

    seconds, flops = metrics.get("seconds"), metrics.get("flops")
    return {
        "epochs": number("epochs", "{:,}"),
        "best epoch": None if (epoch := best_epoch(metrics)) is None else f"{epoch:,}",
        "steps": number("steps", "{:,}"),
        "duration": duration(seconds) if isinstance(seconds, int | float) else None,
        **{key.replace("_", " "): number(key, "{:,.1f}") for key in metrics if key.endswith("_per_second")},
        "waiting for data": number("data_wait", "{:.1%}"),
        "peak memory": number("peak_memory", "{:,.0f} MB", 1e-6),
        "parameters": number("parameters", "{:,}"),
        "operations per sample": f"{mega(flops)} MFLOP" if isinstance(flops, int | float) else None,
    }


def data_audit(subject: Subject) -> Section:
    """Faults of the data set: unreadable images, copies across splits, unusual files, and the counts of the classes."""
    report = subject.audit or audit(subject.source, subject.predictor.preprocessing, subject.audit_seconds,
                                    statistics=False)
    decoded = (f"All {number_of(report.total, 'image')} were decoded and hashed." if report.complete else
               f"{report.decoded:,} of {number_of(report.total, 'image')} were decoded and hashed within "
               f"{subject.audit_seconds:g} s, so unreadable images and copies may be missing; vit audit reads all.")
    html = paragraph(decoded) + facts({
        "unreadable images": f"{len(report.unreadable):,}",
        "same content in different splits": f"{number_of(len(report.duplicates), 'group')}",
        "same content with different labels": f"{number_of(len(report.contradictions), 'group')}",
        "left out": f"{len(report.left_out):,}",
        "sizes": ", ".join(f"{count:,} of {size}" for size, count in list(report.sizes.items())[:5]),
    })
    splits = list(report.counts)
    rows = [(name, *(report.counts[split][name] for split in splits)) for name in report.classes[:SHOWN]]
    html += table(("class", *splits), rows, "Images of each class", range(1, 1 + len(splits)))
    html += cut_note(len(report.classes), SHOWN, "classes")
    lists = {  # what was found, and its row
        "Unreadable": (report.unreadable, lambda bad: (in_split(bad.split, bad.name), bad.reason)),
        "Same content in different splits": (report.duplicates, partial(equal_files, in_split)),
        "Same content with different labels": (report.contradictions, partial(equal_files, with_label)),
        "Unusual files": (list(report.odd.items()),
                          lambda odd: (odd[0], f"{len(odd[1]):,}, such as {path_left_to_right(odd[1][0])}")),
        "Left out": (report.left_out, lambda left_out: left_out),
    }
    html += "".join(table(("file", "remark"), map(row, found[:LISTED]), f"{name} ({len(found):,})")
                    for name, (found, row) in lists.items() if found)
    return Section("data", "Data", html, report.to_dict())


def equal_files(describe: Callable[[str, str], str], group: Sequence[tuple[str, str]]) -> tuple[str, str]:
    """The row of a group of files with equal content: the first one, and up to `EQUAL` others."""
    first, *others = (describe(*each) for each in group[: EQUAL + 1])
    more = len(group) - EQUAL - 1
    return first, ", ".join(others) + (f" and {more:,} more" if more > 0 else "")


def in_split(split: str, name: str) -> str:
    """`test: cat/1.png`"""
    return left_to_right(f"{split}: ", path_left_to_right(name))


def with_label(name: str, label: str) -> str:
    """`cat/1.png (cat)`"""
    return left_to_right(path_left_to_right(name), " (", label, ")")


def texts_data(subject: Subject) -> Section:
    """The counts of the classes in each split of labelled texts."""
    source = subject.source
    counts = {name: source.counts(name) for name in source.splits}
    rows = [(name, *(f"{int(count[c]):,}" for count in counts.values()))
            for c, name in enumerate(source.classes[:SHOWN])]
    html = table(("class", *counts), rows, "Texts of each class", range(1, 1 + len(counts)))
    html += cut_note(len(source.classes), SHOWN, "classes")
    if source.left_out:
        html += table(("text", "remark"), source.left_out[:LISTED], f"Left out ({len(source.left_out):,})")
    return Section("data", "Data", html, {
        "counts": {key: dict(zip(source.classes, map(int, count), strict=True)) for key, count in counts.items()},
        "left_out": [list(each) for each in source.left_out]})
