"""Pre-training on images, labelled or not: its parts, its pictures, and its test."""

import logging
from dataclasses import dataclass
from pathlib import Path

from pytorch_lightning import Callback
from torch import Tensor, nn

from vit.bundle import load_bundle, save_bundle
from vit.data import Preprocessing
from vit.evaluation.progress import Progress
from vit.evaluation.reconstruction import evaluate_reconstruction
from vit.models import MaskedImageConfig, flops
from vit.report.reconstructions import reconstructions_picture
from vit.run.config.composing import ConfigError
from vit.run.config.overrides import override_text
from vit.run.folder import RunFolder
from vit.run.jobs.base import Tested, completed, log_parts
from vit.run.jobs.images import ImageJob, audited, cost, recorded_data
from vit.run.parts import networks
from vit.run.parts.auto_values import fit_recipe, steps_per_epoch
from vit.run.parts.batches import build_augment, build_batches, check_devices
from vit.run.parts.data_source import build_source
from vit.run.parts.devices import Devices
from vit.run.parts.init_from import load_initial, load_weights_of
from vit.run.parts.optimization import build_optimization
from vit.run.parts.preprocessing import build_preprocessing
from vit.run.reconstructions import Reconstructions, reconstructed, some_images
from vit.run.records import DataRecord
from vit.tasks import MaskedImages

log = logging.getLogger("vit")


@dataclass(frozen=True)
class MaskedImagesJob(ImageJob):
    """Images, to learn from what is hidden in them; its model is the beginning of others."""

    @property
    def description(self) -> str:
        return describe(self.model)

    def callbacks(self, folder: RunFolder) -> list[Callback]:
        task, val = self.config["task"], self.source.splits["val"]
        if not task["examples"]:
            return []
        place = folder.path / "reconstructions"
        return [Reconstructions(place, val, self.preprocessing, task["examples"], task["examples_every"])]

    def save(self, path: Path, weights: dict[str, Tensor], metrics: dict, extra: dict) -> None:
        save_bundle(path, self.model, (), self.preprocessing, metrics, extra, weights)

    def test(self, folder: RunFolder, settings: dict, progress: Progress) -> Tested:
        bundle, samples = load_bundle(folder.model), self.samples
        images, index = some_images(samples, bundle.preprocessing, self.config["task"]["examples"])
        if len(images):
            pictures = reconstructed(bundle.model, bundle.preprocessing, images, index)
            heading = f"{self.config['name']}, {self.split}: the best epoch"
            reconstructions_picture(folder.path / "reconstructions.png", *pictures, heading)
        settings = settings | {"on_bad_sample": self.config["data"]["on_bad_sample"], "progress": progress}
        return Tested(*evaluate_reconstruction(bundle.model, bundle.preprocessing, samples, **settings))

    def write_samples(self, folder: RunFolder) -> Path | None:
        return None

    def next_words(self, folder: RunFolder, samples: Path | None) -> tuple:
        data = self.config["data"]
        if not self.source.classes:
            return ("train", "experiment=finetune", "data.root=PHOTOS", override_text("init_from", str(folder.path)))
        words = [f"data={data['name']}", *([override_text("data.root", data["root"])] if data.get("root") else [])]
        height, width = self.preprocessing.size
        size = str(height) if height == width else f"[{height},{width}]"
        return ("train", *words, f"data.image_size={size}", override_text("init_from", str(folder.path)))

    def headline(self, metrics: dict) -> dict[str, str]:
        return {f"{self.split} loss": f"{metrics[f'{self.split}/loss']:.4f} per hidden patch"}


def prepare(
    config: dict, devices: Devices, checkpoint: Path | None = None, record: DataRecord | None = None
) -> MaskedImagesJob:
    """Data, preprocessing, model, task. A resumed run takes nothing from `init_from`, but all from its checkpoint."""
    data, recipe, seed = config["data"], config["recipe"], config["seed"]
    check_examples(config["task"])
    source = build_source(data, record)
    initial = load_initial(config, checkpoint, config["model"])
    preprocessing = build_preprocessing(data, source, initial)
    source, report = audited(source, preprocessing, data)
    config = fit_recipe(config, len(source.splits["train"]), devices.world)
    check_devices(config, devices.world)
    model = build_masked(config["model"], data["patch_size"], preprocessing)
    if initial is not None:
        again = initial.model is not None and initial.model["kind"] == MaskedImageConfig.kind
        parts = ("embed.", "encoder.", "decoder.") if again else ("embed.", "encoder.")
        load_weights_of(initial, model, source_grid=initial.grid, parts=parts)
    name = config.get("model_name") or config["model"]["name"]
    config = completed(config, model, name, data=recorded_data(data, source, preprocessing), classes=[])
    work = flops(model)
    log_parts(source.name, source.splits, "labels are not used", model, describe(model), cost(work, preprocessing.size))
    task = MaskedImages(
        model,
        preprocessing,
        build_optimization(recipe, model, steps_per_epoch(recipe, len(source.splits["train"]))),
        augment=build_augment(recipe["augment"], seed),
        seed=seed,
        config=config,
    )
    batches = build_batches(config, source, preprocessing)
    return MaskedImagesJob(config, model, task, batches, source, preprocessing, report, work)


def build_masked(model: dict, patch_size, preprocessing: Preprocessing) -> nn.Module:
    """The masked autoencoder of a `model` node, for these pixels."""
    kind = model.get("kind") or (model["name"] or "").split("_")[0]
    if kind != MaskedImageConfig.kind:
        name = model["name"] or model.get("kind")
        raise ConfigError(f"model={name}: task=masked_image trains masked autoencoders; take model=mae, and for a size "
                          "model.name=mae_small (mae_tiny, mae_base, ...)")
    return networks.build_model(model, patch_size, preprocessing, [], None)


def check_examples(task: dict) -> None:
    for key, least in (("examples", 0), ("examples_every", 1)):
        if not isinstance(task[key], int) or task[key] < least:
            raise ConfigError(f"task.{key}={task[key]}: must be a whole number, {least} or more")


def describe(model: nn.Module) -> str:
    config = model.config
    total = config.grid[0] * config.grid[1]
    return (f"mae, {config.dim} wide, {config.depth} deep, sees {config.visible} of {total} patches; decoder "
            f"{config.decoder_dim} wide, {config.decoder_depth} deep")
