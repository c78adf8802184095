"""Masked pre-training on images, labelled or not (MAE, arXiv 2111.06377)."""

from pathlib import Path

from pytorch_lightning import Callback
from torch import Tensor, nn

from vit.bundle import load_bundle, save_bundle
from vit.evaluation.progress import Progress
from vit.evaluation.reconstruction import evaluate_reconstruction
from vit.messages import number_of
from vit.models import MaskedImageConfig
from vit.report.figures.reconstructions import reconstructions_picture
from vit.run.config.composing import ConfigError
from vit.run.config.overrides import override_text
from vit.run.film import ReconstructionFilm
from vit.run.jobs.base import Tested
from vit.run.jobs.images import ImageJob
from vit.run.parts.batches import build_augment
from vit.run.parts.data_source import data_overrides
from vit.run.parts.devices import Devices
from vit.run.parts.init_from import Initial, load_initial_weights
from vit.run.parts.networks import build_model, check_neighbours, check_patch_size
from vit.run.reconstructions import Reconstructions, reconstruct, select_images
from vit.run.records.folder import RunFolder
from vit.tasks import MaskedImages
from vit.weights import KeyReport


class MaskedImageJob(ImageJob):
    """Pre-training for image classifiers: reconstruct masked patches."""

    model_configs = (MaskedImageConfig,)
    finetunes = False
    recipe_keys = ("augment", "crop")

    @classmethod
    def check_config(cls, config: dict, devices: Devices) -> None:
        """Raises ConfigError: as `ImageJob.check_config`, or the layers of the model depend on neighbours."""
        cls.check_kind(config["model"])
        super().check_config(config, devices)
        if not config.get("resumed"):
            check_neighbours(config["model"], f"task={config['task']['name']}")

    @staticmethod
    def check_kind(model: dict) -> None:
        """Raises ConfigError for a model that is no masked autoencoder."""
        kind = model.get("kind") or str(model["name"] or "").split("_")[0]
        if kind != MaskedImageConfig.kind:
            name = model["name"] or model.get("kind")
            raise ConfigError(f"model={name}: task=masked_image trains masked autoencoders; use model=mae, and for a "
                              "size model.name=mae_small (mae_tiny, mae_base, ...)")

    def build_model(self, initial: Initial | None) -> nn.Module:
        made = build_model(self.config["model"], self.config["data"]["patch_size"], self.preprocessing, [], None)
        check_patch_size(self.config, made)
        return made

    def load_weights(self, initial: Initial | None) -> KeyReport | None:
        if initial is None:
            return None
        autoencoder = initial.model is not None and initial.model["kind"] == MaskedImageConfig.kind
        parts = ("embed.", "encoder.", *(["decoder."] if autoencoder else []))
        return load_initial_weights(initial, self.model, parts=parts)

    def name_model(self, initial: Initial | None) -> str:
        return self.config["model"]["name"]

    @property
    def data_facts(self) -> str:
        return "labels are not used"

    @property
    def description(self) -> str:
        config = self.model.config
        total = config.grid[0] * config.grid[1]
        return (f"mae, {config.dim} wide, {config.depth} deep, encodes {config.visible} of "
                f"{number_of(total, 'patch')}; decoder {config.decoder_dim} wide, {config.decoder_depth} deep")

    def resolve_config(self, loaded: KeyReport | None) -> dict:
        return {**super().resolve_config(loaded), "classes": []}

    def build_task(self) -> MaskedImages:
        config = self.config
        return MaskedImages(
            self.model,
            self.preprocessing,
            self.build_optimization(),
            augment=build_augment(config["recipe"]["augment"], config["seed"]),
            seed=config["seed"],
            config=config,
        )

    def callbacks(self, folder: RunFolder) -> list[Callback]:
        task, val = self.config["task"], self.source.splits["val"]
        pictures = folder.path / "reconstructions"
        return [Reconstructions(pictures, val, self.preprocessing, task["examples"], task["examples_every"])]

    def film(self, folder: RunFolder, count: int) -> ReconstructionFilm:
        split, metric = self.source.splits["val"], self.config["callbacks"]["monitor"]
        return ReconstructionFilm(folder.path, metric, split, self.preprocessing, count)

    def save(self, path: Path, weights: dict[str, Tensor], metrics: dict, extra: dict) -> None:
        save_bundle(path, self.model, (), self.preprocessing, metrics, extra, weights)

    def test(self, folder: RunFolder, settings: dict, progress: Progress) -> Tested:
        bundle, samples = load_bundle(folder.model), self.evaluated(self.split)
        images, index = select_images(samples, bundle.preprocessing, self.config["task"]["examples"])
        if len(images):
            pictures = reconstruct(bundle.model, bundle.preprocessing, images, index)
            heading = f"{self.title}: the best epoch"
            reconstructions_picture(folder.path / "reconstructions.png", *pictures, heading)
        settings = settings | {"on_bad_sample": self.config["data"]["on_bad_sample"], "progress": progress,
                               "device": self.devices.evaluation}
        return Tested(*evaluate_reconstruction(bundle.model, bundle.preprocessing, samples, **settings))

    def next_command(self, folder: RunFolder, samples: Path | None) -> tuple:
        data, init_from = self.config["data"], override_text("init_from", str(folder.path))
        if not self.source.classes:
            return ("train", "experiment=finetune", "data.root=PHOTOS", init_from)
        # `data.image_size` follows, and the patch size is that of the model
        recorded = [each for each in data_overrides(self.config)
                    if not each.startswith(("data.image_size=", "data.patch_size="))]
        chosen = [each for each in recorded if each.startswith("data=")] or [f"data={data['name']}"]
        own = [each for each in recorded if each.lstrip("+").startswith("data.")]
        height, width = self.preprocessing.size
        size = str(height) if height == width else f"[{height},{width}]"
        return ("train", *chosen, *own, f"data.image_size={size}", init_from)

    def headline(self, metrics: dict) -> dict[str, str]:
        return {f"{self.split} loss": f"{metrics[f'{self.split}/loss']:.4f} per masked patch"}
