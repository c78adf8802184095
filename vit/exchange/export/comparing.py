"""The check of a conversion: the saved model is read back and its outputs are compared with those of the original."""

import copy
import importlib
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from vit.bundle import load_bundle
from vit.bundle.files import SourceError, read_file
from vit.exchange.importing import import_checkpoint
from vit.exchange.options import Hints
from vit.exchange.read import read_checkpoint, read_config
from vit.messages import on_one_line

TOLERANCE = 1e-5  # relative to the largest output; in float64, another order of summation makes far smaller differences
Reading = tuple[str, Callable[[], list[Tensor]]]  # a library, and a function that computes its outputs


def check_same(path: Path, to: str, model: nn.Module) -> None:
    """Check in float64 that the saved model, loaded by this project and by the target library if it is installed,
    computes the outputs of the original. Needs three times the memory of the model.

    Raises:
        SourceError: the outputs differ, or the saved model cannot be read.
    """
    probe = make_probe(model.config)
    with torch.inference_mode(), unchanged_random_state():
        expected = outputs(copy.deepcopy(model), probe)
        for library, compute in readings(path, to, model.config, probe):
            try:
                found = compute()
            except Exception as error:
                reason = on_one_line(error, 300)
                raise SourceError(f"{library} cannot read the model that --to {to} would save ({type(error).__name__}: "
                                  f"{reason}); nothing was saved, --to bundle saves it unchanged") from error
            difference = max(map(relative_difference, found, expected))
            if len(found) != len(expected) or difference > TOLERANCE:
                raise SourceError(f"the model that --to {to} would save computes other outputs in {library}: they "
                                  f"differ by {difference:.2g} of the largest output; nothing was saved, --to bundle "
                                  "saves the model unchanged")


@contextmanager
def unchanged_random_state() -> Iterator[None]:
    """Restores torch's random state, from which libraries draw initial weights."""
    state = torch.get_rng_state()
    try:
        yield
    finally:
        torch.set_rng_state(state)


def relative_difference(found: Tensor, expected: Tensor) -> float:
    """The largest difference, relative to the largest output; infinite if the shapes differ or an output is NaN."""
    if found.shape != expected.shape:
        return math.inf
    difference = float((found.double() - expected).abs().max() / expected.abs().max().clamp(min=1e-3))
    return math.inf if math.isnan(difference) else difference  # a comparison with NaN would be false


def make_probe(config: Any) -> dict[str, Tensor]:
    """Two random inputs for a float64 model of this config."""
    generator = torch.Generator().manual_seed(0)
    draw = {"generator": generator, "dtype": torch.float64}
    if config.kind in ("vit", "timm", "ensemble", "mae"):
        height, width = config.image_size
        noise = {"noise": torch.rand(2, config.grid[0] * config.grid[1], **draw)} if config.kind == "mae" else {}
        return {"images": torch.randn(2, config.in_chans, height, width, **draw), **noise}
    length = min(7, config.max_len)
    if config.kind != "encoder_decoder":
        return {"ids": torch.randint(config.vocab_size, (2, length), generator=generator)}
    target = torch.randint(config.vocab_size, (2, length), generator=generator)
    if config.source == "image":
        return {"images": torch.randn(2, config.in_chans, *config.image_size, **draw), "target": target}
    source_vocab = config.source_vocab or config.vocab_size
    return {"ids": torch.randint(source_vocab, (2, length), generator=generator), "target": target}


def outputs(model: nn.Module, probe: dict[str, Tensor]) -> list[Tensor]:
    """The outputs of one of our models for the probe; the model is cast to float64."""
    found = in_float64(model)(*probe.values())
    if model.config.kind == "mae":
        return [found[0]]
    return list(found) if isinstance(found, tuple) else [found]


def in_float64(model: nn.Module) -> nn.Module:
    """The model, cast to float64 in place: in float32 another order of summation may change the outputs more than a
    wrong weight does.
    """
    return model.eval().double()


def readings(path: Path, to: str, config: Any, probe: dict[str, Tensor]) -> Iterator[Reading]:
    """The libraries that read the saved model, as far as they are installed, this project first."""
    if config.kind != "mae" or to == "bundle":  # of a ViTMAE folder, only the encoder is imported
        yield "vit", lambda: outputs(read_back(path, config), probe)
    if to in ("timm", "bundle") and "architecture" in read_config(path) and find_spec("timm"):
        yield "timm", lambda: [timm_outputs(path, probe)]
    if to == "transformers" and find_spec("transformers"):
        yield "transformers", lambda: transformers_outputs(path, probe)
    if to == "torchvision":
        yield "torchvision", lambda: [torchvision_outputs(path, config, probe)]


def read_back(path: Path, config: Any) -> nn.Module:
    """The saved model, loaded by `load_bundle` if it is an ensemble, otherwise as by `import_weights`. A file with only
    a state dict does not contain the number of heads and the activation, so they are passed.
    """
    if config.kind == "ensemble":
        return load_bundle(path).model
    hints = Hints() if path.is_dir() else Hints(config.num_heads, config.activation)
    return import_checkpoint(read_checkpoint(path, hints))[0]


def timm_outputs(path: Path, probe: dict[str, Tensor]) -> Tensor:
    import timm

    return in_float64(timm.create_model(f"local-dir:{path}", pretrained=True))(probe["images"])


def torchvision_outputs(path: Path, config: Any, probe: dict[str, Tensor]) -> Tensor:
    from torchvision.models import VisionTransformer

    model = VisionTransformer(config.image_size[0], config.patch_size[0], config.depth, config.num_heads, config.dim,
                              config.hidden, num_classes=config.num_classes)
    model.load_state_dict(read_file(path))
    return in_float64(model)(probe["images"])


def transformers_outputs(path: Path, probe: dict[str, Tensor]) -> list[Tensor]:
    """The outputs of the transformers class that the folder names.

    Raises:
        ValueError: transformers does not find all weights in the folder.
    """
    library = importlib.import_module("transformers")
    with silent(library.logging):
        name = read_config(path)["architectures"][0]
        model, loading = getattr(library, name).from_pretrained(path, output_loading_info=True, dtype=torch.float32)
        missing = [key for key in loading["missing_keys"] if not key.startswith("pooler.")]
        if missing or loading["mismatched_keys"]:
            raise ValueError(f"it finds no weights for {', '.join(missing) or loading['mismatched_keys']}")
        inputs = {"pixel_values": probe["images"]} if "images" in probe else {"input_ids": probe["ids"]}
        found = in_float64(model)(**inputs, **({"noise": probe["noise"]} if "noise" in probe else {}))
    return comparable_outputs(name, model.config, found)


def comparable_outputs(name: str, config: Any, found: Any) -> list[Tensor]:
    """The outputs of a transformers model that correspond to the outputs of ours."""
    if "prediction_logits" in found:
        return [found.prediction_logits, found.seq_relationship_logits]
    for key in ("logits", "image_embeds"):
        if key in found:
            return [found[key]]
    if name.startswith(("CLIP", "DINOv3")) or (name.startswith("Siglip") and config.vision_use_head):
        return [found.pooler_output]
    return [found.last_hidden_state.mean(1) if name.startswith("Siglip") else found.last_hidden_state[:, 0]]


@contextmanager
def silent(logging: Any) -> Iterator[None]:
    """Suppresses progress bars and warnings of transformers."""
    level, progress_bar = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if progress_bar:
            logging.enable_progress_bar()
