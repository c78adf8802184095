"""The sections about model, training and data: attention maps, learning curves with speed and memory, and the audit."""

import numpy as np

from vit.data.audit import audit
from vit.nn import Attention
from vit.report.attention import image_picture
from vit.report.attention_report import image_attention
from vit.report.curves import curves_picture
from vit.report.embedded import figure_url
from vit.report.html_parts import drawing, facts, heading, paragraph, preformatted, table
from vit.report.runs_table import duration
from vit.report.sections.subject import Section, Subject, missing

LISTED = 20  # files of each kind in the audit; the JSON file has all


def attention(subject: Subject) -> Section:
    """Attention maps of the most confident errors and of correct predictions, half each."""
    key, title, model = "attention", "Attention", subject.predictor.model
    if not hasattr(model, "embed"):
        return missing(key, title, f"the attention of models of kind {model.config.kind} cannot be recorded")
    if not any(isinstance(layer, Attention) for layer in model.modules()):
        return missing(key, title, "no layer of the model has attention")
    chosen = attention_samples(subject)
    html = paragraph("Attention of the pooled output to the patches: the rollout over all layers, the mean of the last "
                     "layer, and its heads. It shows which patches are read, not why the class was chosen.")
    for i in chosen:
        html += attention_of(subject, i)
    return Section(key, title, html, {"samples": [subject.values(i) for i in chosen]})


def attention_samples(subject: Subject) -> list[int]:
    """Indices of the samples with maps."""
    count = subject.attention_images
    wrong = subject.confident_errors(count // 2).tolist()
    right = np.flatnonzero(subject.right)
    spread = np.linspace(0, max(len(right) - 1, 0), min(count - len(wrong), len(right))).astype(int)
    return [int(i) for i in (*wrong, *right[spread])]


def attention_of(subject: Subject, i: int) -> str:
    """The maps of one sample."""
    row = int(subject.evaluation.rows[i])
    true, predicted, probability = subject.answer(i)
    maps = image_attention(subject.predictor, subject.samples.read(row), subject.name(i))
    last = list(maps.layers)[-1]
    peak = np.unravel_index(maps.pooled_rollout().argmax(), maps.grid)
    alt = (f"Attention maps of {subject.name(i)}, {true}, predicted as {predicted}: the rollout is highest in row "
           f"{peak[0] + 1} of {maps.grid[0]}, column {peak[1] + 1} of {maps.grid[1]}")
    title = f"{subject.name(i)}: {true}, predicted {predicted}, {probability:.1%}"
    return drawing(figure_url(image_picture, maps, [last], title), alt)


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
    url = figure_url(curves_picture, run.log) if run.curves else None
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
    def number(key: str, form: str, scale: float = 1.0) -> str | None:
        value = metrics.get(key)
        return form.format(value * scale) if isinstance(value, int | float) else None

    seconds = metrics.get("seconds")
    return {
        "epochs": number("epochs", "{:,}"),
        "best epoch": number("best_epoch", "{:,}"),
        "steps": number("steps", "{:,}"),
        "duration": duration(seconds) if isinstance(seconds, int | float) else None,
        "images per second": number("images_per_second", "{:,.1f}"),
        "waiting for data": number("data_wait", "{:.1%}"),
        "peak memory": number("peak_memory", "{:,.0f} MB", 1e-6),
        "parameters": number("parameters", "{:,}"),
        "operations per image": number("flops", "{:,.1f} MFLOP", 1e-6),
    }


def data_audit(subject: Subject) -> Section:
    """Faults of the data set: unreadable images, copies across splits, unusual files, and the counts of the classes."""
    report = audit(subject.source, subject.predictor.preprocessing, subject.audit_seconds)
    decoded = (f"All {report.total:,} images were decoded and hashed." if report.complete else
               f"{report.decoded:,} of {report.total:,} images were decoded and hashed within "
               f"{subject.audit_seconds:g} s, so unreadable images and copies may be missing; vit audit reads all.")
    html = paragraph(decoded) + facts({
        "unreadable images": f"{len(report.unreadable):,}",
        "same content in different splits": f"{len(report.duplicates):,} groups",
        "left out": f"{len(report.left_out):,}",
        "sizes": ", ".join(f"{count:,} of {size}" for size, count in list(report.sizes.items())[:5]),
    })
    splits = list(report.counts)
    rows = [(name, *(report.counts[split][name] for split in splits)) for name in report.classes[:1000]]
    html += table(("class", *splits), rows, "Images of each class", range(1, 1 + len(splits)))
    lists = {
        "Unreadable": [(f"{bad.split}: {bad.name}", bad.reason) for bad in report.unreadable],
        "Same content in different splits": [(f"{group[0][0]}: {group[0][1]}",
                                              ", ".join(f"{split}: {name}" for split, name in group[1:]))
                                             for group in report.duplicates],
        "Unusual files": [(what, f"{len(names):,}, such as {names[0]}") for what, names in report.odd.items()],
        "Left out": [(name, reason) for name, reason in report.left_out],
    }
    html += "".join(table(("file", "remark"), found[:LISTED], f"{name} ({len(found):,})")
                    for name, found in lists.items() if found)
    return Section("data", "Data", html, report.to_dict())
