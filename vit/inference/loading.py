"""From a folder to something that answers."""

from collections.abc import Sequence
from os import PathLike

import torch

from vit.bundle import load_bundle
from vit.exchange.opening import open_model
from vit.exchange.read import Anything
from vit.inference.images import Predictor
from vit.inference.multi_label import MultiLabelPredictor
from vit.inference.seq2seq import Seq2SeqPredictor
from vit.inference.text_classification import TextPredictor

USES = {  # model kind -> what answers with it
    "vit": Predictor,
    "timm": Predictor,
    "text_classifier": TextPredictor,
    "encoder_decoder": Seq2SeqPredictor,
}


def load(
    source: Anything,
    device: str | torch.device | None = None,
    precision: str = "32-true",
    ensemble: Sequence[str | PathLike[str]] = (),
    *,
    num_heads: int | None = None,
    act: str | None = None,
) -> Predictor | TextPredictor | Seq2SeqPredictor:
    """The model in a bundle, a run folder or any source that `import_weights` takes, ready to answer, on the GPU where
    there is one.

    What a source leaves open of its preprocessing or class names is told by a warning.

    Args:
        ensemble: more models that write texts with the same tokenizer; the mean of all their probabilities counts.
        num_heads, act: of somebody else's weights, where nothing tells them.
    """
    bundle = open_model(source, num_heads=num_heads, act=act)
    kind = bundle.model.config.kind
    if kind not in USES:
        raise ValueError(f"{bundle.path} holds a pre-trained model ({kind}) that has no answers yet; "
                         f"train it for a task with init_from={bundle.path}")
    if bundle.thresholds and not ensemble:
        return MultiLabelPredictor(bundle, device, precision)
    if not ensemble:
        return USES[kind](bundle, device, precision)
    if USES[kind] is not Seq2SeqPredictor:
        raise ValueError(f"an ensemble is of models that write texts, and {bundle.path} is none ({kind})")
    return Seq2SeqPredictor(bundle, device, precision, [load_bundle(other) for other in ensemble])
