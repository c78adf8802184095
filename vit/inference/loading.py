"""From a folder to something that answers."""

from os import PathLike

import torch

from vit.bundle import load_bundle
from vit.inference.images import Predictor
from vit.inference.text_classes import TextPredictor
from vit.inference.texts import Writer

USES = {  # model kind -> what answers with it
    "vit": Predictor,
    "timm": Predictor,
    "text_classifier": TextPredictor,
    "encoder_decoder": Writer,
}


def load(
    path: str | PathLike[str], device: str | torch.device | None = None, precision: str = "32-true"
) -> Predictor | TextPredictor | Writer:
    """The model in a bundle or run folder, ready to answer, on the GPU where there is one."""
    bundle = load_bundle(path)
    kind = bundle.model.config.kind
    if kind not in USES:
        raise ValueError(f"{bundle.path} holds a pre-trained model ({kind}) that has no answers yet; "
                         f"train it for a task with init_from={bundle.path}")
    return USES[kind](bundle, device, precision)
