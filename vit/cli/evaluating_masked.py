"""`vit evaluate` of a masked autoencoder: how well it tells what is hidden from it."""

from pathlib import Path

from vit.cli.data_sets import data_config
from vit.cli.terminal import list_unreadable, progress


def is_masked(model: Path) -> bool:
    from vit.bundle import model_kind

    return model_kind(model) == "mae"


def evaluate_masked(
    model: Path, words: list[str], split: str | None, batch_size: int | None, precision: str | None, device: str | None
) -> dict:
    """The loss on images, by default the run's own, with the patches hidden that the run's test hid."""
    from rich.console import Console

    from vit.bundle import load_bundle
    from vit.cli.evaluating import measured
    from vit.data import Source, TextSplit
    from vit.evaluation.reconstruction import evaluate_reconstruction
    from vit.report.summary import summary_table

    bundle = load_bundle(model)
    data, tested = data_config(words, bundle), bundle.extra.get("evaluation", {})
    source, split = measured(data, bundle, split)
    if not isinstance(source, Source) or isinstance(source.splits["train"], TextSplit):
        raise ValueError(f"{source.name} holds no images, and {bundle.path} is for images; name some, data=folder")
    if split not in source.splits:
        raise ValueError(f"{source.name} has no {split} split; it has {', '.join(source.splits)}")
    samples = source.splits[split]
    with progress() as bar:
        task = bar.add_task("evaluate", total=len(samples))
        metrics, unreadable = evaluate_reconstruction(
            bundle.model, bundle.preprocessing, samples, batch_size or tested.get("batch_size") or 64,
            str(precision or tested.get("precision", "32-true")), data["on_bad_sample"], device,
            lambda count: bar.advance(task, count),
        )
    list_unreadable(unreadable, len(samples))
    images = len(samples) - len(unreadable)
    facts = {"loss per hidden patch": repr(metrics["loss"]), "images": f"{images:,}"}
    Console().print(summary_table(facts, f"{source.name}, {split}"))
    found = {f"{split}/{name}": value for name, value in metrics.items()}
    return {**found, "images": images, "unreadable": [str(error) for error in unreadable]}
