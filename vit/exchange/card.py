"""The model card: README.md of a bundle, generated from the bundle and its run folder."""

import json
import re
import shlex
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vit.bundle import Bundle
from vit.exchange.options import OptionError
from vit.exchange.private_paths import overrides_without_folders
from vit.exchange.run_records import RunRecords, best_epoch, read_records
from vit.exchange.source_names import HUB, TIMM, TIMM_SLASH
from vit.exchange.usage import usage
from vit.messages import agree, duration, number_of

MARK = "<!-- written by vit card -->"  # a card without it was written by hand
LICENCE = re.compile(r"[a-z0-9][a-z0-9.-]*")
PIPELINES = {
    "vit": "image-classification",
    "timm": "image-classification",
    "ensemble": "image-classification",
    "text_classifier": "text-classification",
    "encoder_decoder": "translation",
    "masked_text": "fill-mask",
}
CLASSIFICATION = ("image-classification", "text-classification")
TYPES = {"top5": "top_5_accuracy", "map": "mean_average_precision", "f1_micro": "f1"}  # our names -> the hub's
CLASSES = 200  # most classes that are listed
UNITS = ("images", "sentences", "pairs")  # of samples, whose number is among the metrics of a run


def model_card(bundle: Bundle, repo: str | None = None, licence: str | None = None) -> str:
    """The text of README.md: metadata for the hub, then a description. It names only the last part of a path.

    Raises:
        OptionError: the licence is not an identifier of the hub.
    """
    from huggingface_hub import ModelCardData

    if licence is not None and not LICENCE.fullmatch(licence):
        raise OptionError(f"--licence {licence!r} is not an identifier of the hub; write it like apache-2.0, mit, "
                          "cc-by-4.0, other")
    run = read_records(bundle)
    name = repo.split("/")[1] if repo else title(bundle, run)
    facts = {
        "license": licence,
        "library_name": "timm" if "architecture" in bundle_config(bundle) else "vit",
        "pipeline_tag": pipeline(bundle),
        "tags": tags(bundle),
        "datasets": [run.config["data"]["repo"]] if run.config.get("data", {}).get("repo") else None,
        "base_model": base_model(run.config.get("init_from")),
    }
    results = eval_results(bundle, run)
    data = ModelCardData(**{key: value for key, value in facts.items() if value},
                         **({"model_name": name, "eval_results": results} if results else {}))
    parts = [f"---\n{data.to_yaml()}\n---", f"# {name}", about(bundle, run), usage(bundle, repo),
             metrics_section(bundle, run), classes_section(bundle, run), data_section(run),
             preprocessing_section(bundle), recipe_section(bundle, run), licence_section(licence), MARK]
    return "\n\n".join(part for part in parts if part) + "\n"


def tags(bundle: Bundle) -> list[str]:
    """The tags by which the hub lists the model."""
    family = "vision-transformer" if bundle.preprocessing is not None else "transformer"
    return ["vit", family, *(["multi-label"] if bundle.thresholds else [])]


def title(bundle: Bundle, run: RunRecords) -> str:
    """The heading of a model without a repository, `vit_tiny-digits`."""
    parts = run.config.get("model_name", bundle.model.config.kind), run.config.get("name", "model")
    return re.sub(r"[/:]", "-", "-".join(parts))


def bundle_config(bundle: Bundle) -> dict[str, Any]:
    from vit.bundle import CONFIG

    return json.loads((bundle.path / CONFIG).read_text(encoding="utf-8"))


def pipeline(bundle: Bundle) -> str | None:
    """The hub's name of the task; None for a model that predicts nothing."""
    task = PIPELINES.get(bundle.model.config.kind)
    if task == "translation" and bundle.preprocessing is not None:
        return "image-to-text"
    return None if task in CLASSIFICATION and not bundle.classes else task


def base_model(source: str | None) -> str | None:
    """The model of the hub that the run started from; None if it started from another source or from none."""
    if source and source.startswith(HUB):
        return source.removeprefix(HUB).partition("@")[0]
    if source and source.startswith((TIMM, TIMM_SLASH)):
        return TIMM_SLASH + source.removeprefix(TIMM).removeprefix(TIMM_SLASH)
    return None


def final_metrics(bundle: Bundle, run: RunRecords) -> tuple[str, dict[str, float]]:
    """The split and the metrics of the finished model; without a run folder, the metrics of the best epoch, from the
    bundle. A run also records whole numbers for a split, which count its samples and are left out.
    """
    found, number = (run.metrics, float) if run.metrics else (bundle.metrics, int | float)
    for split in ("test", "val"):
        chosen = {key.partition("/")[2]: value for key, value in found.items()
                  if key.startswith(f"{split}/") and isinstance(value, number)}
        if chosen:
            return split, chosen
    return "", {}


def eval_results(bundle: Bundle, run: RunRecords) -> list:
    """The final metrics as `EvalResult` of huggingface_hub."""
    from huggingface_hub import EvalResult

    split, found = final_metrics(bundle, run)
    task = pipeline(bundle)
    if task is None:
        return []
    name = data_name(run)
    return [
        EvalResult(task_type=task, dataset_type=re.sub(r"[^\w./-]", "_", name), dataset_name=name, dataset_split=split,
                   metric_type=TYPES.get(key, key), metric_name=key, metric_value=value)
        for key, value in found.items()
    ]


def data_name(run: RunRecords) -> str:
    """The name of the data: its repository, otherwise the last part of its path, otherwise the name of its config."""
    data = run.config.get("data", {})
    path = data.get("root") or data.get("path")
    return data.get("repo") or (Path(path).name if path else None) or data.get("name") or "unknown"


def about(bundle: Bundle, run: RunRecords) -> str:
    config = bundle.model.config
    parameters = sum(p.numel() for p in bundle.model.parameters())
    description = run.metrics.get("model") or config.kind
    source = base_model(run.config.get("init_from"))
    start = f", trained from the weights of {code_span(source)}" if source else ""
    start = start or (", trained from other weights" if run.config.get("init_from") else "")
    return f"{description}; {parameters:,} parameters{start}. {task_sentence(bundle)}"


def task_sentence(bundle: Bundle) -> str:
    """A sentence on the inputs and outputs of the model."""
    task, classes = pipeline(bundle), len(bundle.classes)
    if task is None:
        return "It is pre-trained and makes no predictions; it is a start for training."
    if task == "fill-mask":
        return "It predicts masked words of a text, and is a start for training."
    if not classes:
        return "It generates text from " + ("an image." if bundle.preprocessing else "a text.")
    source = "a text" if task == "text-classification" else "an image"
    if bundle.thresholds:
        return f"It assigns {source} any number of {number_of(classes, 'label')}, each above its own threshold."
    return f"It assigns {source} one of {number_of(classes, 'class')}."


def metrics_section(bundle: Bundle, run: RunRecords) -> str:
    split, found = final_metrics(bundle, run)
    if not found:
        return ""
    counts = (run.metrics.get(f"{split}/{unit}") for unit in UNITS)
    count = next((count for count in counts if count), run.sizes.get(split))  # unreadable samples are not measured
    measured = f", {number_of(count, 'sample')} of {code_span(data_name(run))}" if count else ""
    rows = [[key, f"{value:.4f}" if isinstance(value, float) else str(value)] for key, value in found.items()]
    measured_on = {"test": "Test split", "val": "Validation split, by which the best epoch was chosen"}[split]
    return f"## Metrics\n\n{measured_on}{measured}.\n\n{table(['metric', 'value'], rows)}"


def classes_section(bundle: Bundle, run: RunRecords) -> str:
    """The classes in the order of the outputs, with their training samples and thresholds."""
    if not bundle.classes:
        return ""
    counts, shown = run.counts.get("train", {}), bundle.classes[:CLASSES]
    head = ["class", *(["training samples"] if counts else []), *(["threshold"] if bundle.thresholds else [])]
    rows = [[escaped(name), *([f"{counts.get(name, 0):,}"] if counts else []),
             *([f"{bundle.thresholds[i]:.4f}"] if bundle.thresholds else [])] for i, name in enumerate(shown)]
    rest = len(bundle.classes) - len(shown)
    more = f"\n\n... and {rest:,} more, listed in config.json." if rest else ""
    return f"## Classes\n\n{table(head, rows)}{more}"


def data_section(run: RunRecords) -> str:
    data = run.config.get("data")
    if not data:
        return ""
    parts = [f"{code_span(data_name(run))} (data={data['name']})"]
    parts += [f"revision `{data['revision']}`"] if data.get("revision") else []
    parts += [" / ".join(f"{count:,} {key}" for key, count in run.sizes.items())] if run.sizes else []
    return f"## Data\n\n{', '.join(parts)}."


def preprocessing_section(bundle: Bundle) -> str:
    """The preprocessing as in config.json."""
    if bundle.preprocessing is None:
        return ""
    values = {key: value for key, value in bundle.preprocessing.to_dict().items() if key != "max_pixels"}
    rows = [[key, escaped(", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value))]
            for key, value in values.items()]
    return f"## Preprocessing\n\n{table(['', 'value'], rows)}"


def recipe_section(bundle: Bundle, run: RunRecords) -> str:
    """The command and the main values of its config."""
    if not run.config:
        return ""
    recipe, metrics, environment = run.config["recipe"], run.metrics, run.environment
    optimizer, schedule = recipe["optimizer"], recipe["schedule"]
    start = ", before training" if best_epoch(metrics) == 0 else ""
    facts = {
        "epochs": f"{metrics.get('epochs')} (best: {best_epoch(metrics)}{start}), "
                  f"{number_of(metrics.get('steps', 0), 'step')}",
        "batch size": recipe.get("batch_size"),
        "batch tokens": recipe.get("batch_tokens"),
        "optimizer": f"{optimizer['name']}, lr {optimizer['lr']}, weight decay {optimizer.get('weight_decay')}",
        "schedule": f"{schedule['name']}, warm-up {schedule['warmup']}",
        "loss": described(recipe.get("loss")) or None,
        "augmentation": ", ".join(key for key, step in (recipe.get("augment") or {}).items() if step) or "none",
        "mixup": described(recipe.get("mixup")) or "none",
        "average of weights": recipe.get("ema") or recipe.get("average_epochs") or "none",
        "fine-tuning": run.config.get("finetune", {}).get("name") if run.config.get("init_from") else None,
        "precision": precision(bundle, run),
        "seed": run.config.get("seed"),
        "time": f"{duration(metrics.get('seconds', 0))} on {hardware(environment)}",
        "versions": ", ".join(f"{name} {version}" for name, version in bundle.record.get("versions", {}).items()),
    }
    rows = [[key, escaped(str(value))] for key, value in facts.items() if value is not None]
    overrides = run.config["overrides" if "overrides" in run.config else "words"]  # words: runs of earlier versions
    command = shlex.join(["python", "-m", "vit", "train", *overrides_without_folders(overrides)])
    return f"## Recipe\n\n```bash\n{command}\n```\n\n{table(['', 'value'], rows)}"


def described(values: Mapping[str, Any] | None) -> str:
    """A node of the config on one line: its name, then `key value` of each option."""
    return ", ".join(f"{key} {value}" if key != "name" else str(value) for key, value in (values or {}).items())


def precision(bundle: Bundle, run: RunRecords) -> str | None:
    """The precision of the training. `auto` depends on the machine, so the precision that was used is added."""
    stated, used = run.config.get("precision"), bundle.extra.get("evaluation", {}).get("precision")
    return f"{used} (auto)" if stated == "auto" and used else stated


def hardware(environment: Mapping[str, Any]) -> str:
    """`2 x NVIDIA H100`, or `2 cores of AMD EPYC`"""
    cards = Counter(environment.get("accelerators") or [])
    listed = ", ".join(f"{count} x {name}" for name, count in cards.items())
    cores = environment.get("cores", "?")
    return listed or f"{cores} {agree(cores, 'core', 'cores')} of {environment.get('processor', 'a processor')}"


def licence_section(licence: str | None) -> str:
    return f"## Licence\n\n{licence}" if licence else ""


def table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def escaped(text: str) -> str:
    """A text for one cell of a Markdown table, without a character that starts emphasis, code, a link, HTML or, on the
    hub and GitHub, a formula.
    """
    text = re.sub(r"[\\|`*~\[\]]|(?<![^\W_])_|_(?![^\W_])", r"\\\g<0>", text)  # _ within a word starts nothing
    return " ".join(text.replace("&", "&amp;").replace("<", "&lt;").replace("$", "&#36;").split())


def code_span(text: str) -> str:
    """A code span of Markdown; its quotes are longer than any run of ` in the text."""
    quotes = "`" * (max(map(len, re.findall("`+", text)), default=0) + 1)
    space = " " if "`" in text else ""
    return f"{quotes}{space}{' '.join(text.split())}{space}{quotes}"
