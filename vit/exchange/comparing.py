"""What a conversion wrote, read back and compared with the model it was written from, before it takes its place."""

import copy
import importlib
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from vit.bundle import CONFIG
from vit.bundle.files import SourceError, read_file
from vit.exchange.importing import take
from vit.exchange.read import read

CLOSE = 1e-5  # of the largest output, computed in float64: rounding in another order stays far below
Reading = tuple[str, Callable[[], list[Tensor]]]  # whose, and what it computes of the probe


def check_same(place: Path, to: str, model: nn.Module) -> None:
    """Check that what was written computes the outputs of the model, in float64: read by us, and by the library it is
    for where that is installed. Needs three times the memory of the model.

    Raises:
        SourceError: it does not, or cannot be read.
    """
    probe = make_probe(model.config)
    with torch.inference_mode(), unchanged_random_state():
        wanted = outputs(copy.deepcopy(model), probe)
        for whose, compute in readings(place, to, model.config, probe):
            try:
                found = compute()
            except Exception as error:
                reason = " ".join(str(error).split())[:300]
                raise SourceError(f"{whose} cannot read the model that --to {to} would write ({type(error).__name__}: "
                                  f"{reason}); nothing was written, --to bundle keeps it as it is") from error
            far = max(map(apart, found, wanted))
            if len(found) != len(wanted) or not far <= CLOSE:
                raise SourceError(f"the model that --to {to} would write gives other outputs when {whose} reads it (up "
                                  f"to {far:.2g} apart, of the largest); nothing was written, --to bundle keeps it as "
                                  "it is")


@contextmanager
def unchanged_random_state() -> Iterator[None]:
    """Other libraries draw first weights."""
    state = torch.get_rng_state()
    try:
        yield
    finally:
        torch.set_rng_state(state)


def apart(found: Tensor, wanted: Tensor) -> float:
    """The largest difference, as a part of the largest output; infinite where shapes differ."""
    if found.shape != wanted.shape:
        return torch.inf
    return float((found.double() - wanted).abs().max() / wanted.abs().max().clamp(min=1e-3))


def make_probe(config: Any) -> dict[str, Tensor]:
    """Two random inputs for a float64 model of this config."""
    generator = torch.Generator().manual_seed(0)
    draw = {"generator": generator, "dtype": torch.float64}
    if config.kind in ("vit", "timm", "mae"):
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
    """What one of our models, which is cast to float64, computes of the probe."""
    found = exact(model)(*probe.values())
    if model.config.kind == "mae":
        return [found[0]]
    return list(found) if isinstance(found, tuple) else [found]


def exact(model: nn.Module) -> nn.Module:
    """Cast in place, because float32 sums in another order may differ by more than two networks do."""
    return model.eval().double()


def readings(place: Path, to: str, config: Any, probe: dict[str, Tensor]) -> Iterator[Reading]:
    if config.kind != "mae" or to == "bundle":  # of a folder of ViTMAE we read the encoder alone
        yield "vit", lambda: outputs(read_back(place, config), probe)
    if to in ("timm", "bundle") and "architecture" in described(place) and find_spec("timm"):
        yield "timm", lambda: [by_timm(place, probe)]
    if to == "transformers" and find_spec("transformers"):
        yield "transformers", lambda: by_transformers(place, probe)
    if to == "torchvision":
        yield "torchvision", lambda: [by_torchvision(place, config, probe)]


def described(place: Path) -> dict[str, Any]:
    return json.loads((place / CONFIG).read_text(encoding="utf-8")) if (place / CONFIG).is_file() else {}


def read_back(place: Path, config: Any) -> nn.Module:
    """The model as `import_weights` reads it; a file of a state dict says neither heads nor activation."""
    from vit.exchange.importing import Wanted

    wanted = Wanted() if place.is_dir() else Wanted(config.num_heads, config.activation)
    return take(read(place), wanted)[0]


def by_timm(place: Path, probe: dict[str, Tensor]) -> Tensor:
    import timm

    return exact(timm.create_model(f"local-dir:{place}", pretrained=True))(probe["images"])


def by_torchvision(place: Path, config: Any, probe: dict[str, Tensor]) -> Tensor:
    from torchvision.models import VisionTransformer

    model = VisionTransformer(config.image_size[0], config.patch_size[0], config.depth, config.num_heads, config.dim,
                              config.hidden, num_classes=config.num_classes)
    model.load_state_dict(read_file(place))
    return exact(model)(probe["images"])


def by_transformers(place: Path, probe: dict[str, Tensor]) -> list[Tensor]:
    """What the class of transformers that the folder names computes; no weight of it may be a new one."""
    library = importlib.import_module("transformers")
    with silent(library.logging):
        name = described(place)["architectures"][0]
        model, loading = getattr(library, name).from_pretrained(place, output_loading_info=True, dtype=torch.float32)
        missing = [key for key in loading["missing_keys"] if not key.startswith("pooler.")]
        if missing or loading["mismatched_keys"]:
            raise ValueError(f"it finds no weights for {', '.join(missing) or loading['mismatched_keys']}")
        given = {"pixel_values": probe["images"]} if "images" in probe else {"input_ids": probe["ids"]}
        found = exact(model)(**given, **({"noise": probe["noise"]} if "noise" in probe else {}))
    return answers(name, model.config, found)


def answers(name: str, config: Any, found: Any) -> list[Tensor]:
    """Which of its outputs are what our model gives."""
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
    """Without bars and warnings of transformers."""
    level = logging.get_verbosity()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        logging.enable_progress_bar()
