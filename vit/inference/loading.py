"""`vit.load`: from a bundle or any source of weights to the predictor of its kind."""

from collections.abc import Sequence
from os import PathLike

import torch

from vit.bundle import Bundle, load_bundle
from vit.exchange.opening import is_foreign, open_model
from vit.exchange.options import Hints, current_activation
from vit.exchange.sources import WeightSource
from vit.inference.images import Predictor
from vit.inference.masked_text import MaskedTextPredictor
from vit.inference.multi_label import MultiLabelPredictor
from vit.inference.seq2seq import Seq2SeqPredictor
from vit.inference.text_classification import TextPredictor
from vit.messages import ArgumentError, check_several, override_for_shell
from vit.torch_defaults import torch_defaults

PREDICTORS = {  # model kind -> its predictor
    "vit": Predictor,
    "timm": Predictor,
    "ensemble": Predictor,
    "text_classifier": TextPredictor,
    "encoder_decoder": Seq2SeqPredictor,
    "masked_text": MaskedTextPredictor,
}


def load(
    source: WeightSource,
    device: str | torch.device | None = None,
    precision: str = "32-true",
    ensemble: Sequence[str | PathLike[str]] = (),
    *,
    num_heads: int | None = None,
    activation: str | None = None,
    act: str | None = None,
    fast: bool = False,
    prepack: bool = False,
) -> Predictor | TextPredictor | Seq2SeqPredictor | MaskedTextPredictor:
    """The predictor of a bundle, a run folder or any source that `import_weights` accepts; by default on the GPU if
    there is one.

    If a source does not state preprocessing or class names, a warning names the assumptions.

    Args:
        ensemble: more seq2seq models with the same tokenizers and preprocessing; the probabilities of all are averaged.
        num_heads, activation: values for foreign weights that do not contain them; for any other source they must be
            those of the model.
        act: deprecated name of `activation`.
        fast: image classifiers compute in bf16 (on a GPU also float16), with channels last or with linear layers in
            int8, if this is faster on this machine and predicts the same for 64 of the images. Models that generate
            text use the compiled decoding step, if it is faster and generates the same texts for the first batch.
            `predictor.fast_mode` is the choice.
        prepack: for image classifiers that are called many times with one or a few images: cast and pack the weights
            once instead of in every call. It takes up to twice the memory of the linear layers; the weights of
            `predictor.model` must not change afterwards.

    Raises:
        SourceError, BundleError, FileNotFoundError: the source does not exist, is damaged, cannot predict, or
            contradicts `num_heads` or `activation`.
        TypeError: `ensemble` is one path instead of several.
        ValueError: an unknown `precision`, a pre-trained model without a task, an ensemble of other models than seq2seq
            models, `fast` with another kind of model or with another precision than the default, or `prepack` with
            another kind of model.
    """
    if ensemble:
        check_several("ensemble", ensemble)
    if is_foreign(source) or (num_heads, activation, act) != (None, None, None):
        with torch_defaults():
            bundle = open_model(source, Hints(num_heads, current_activation(activation, act)))
    else:
        bundle = load_bundle(source)
    return predictor_of(bundle, device, precision, ensemble, fast=fast, prepack=prepack)


def predictor_of(
    bundle: Bundle,
    device: str | torch.device | None = None,
    precision: str = "32-true",
    ensemble: Sequence[str | PathLike[str]] = (),
    *,
    fast: bool = False,
    prepack: bool = False,
) -> Predictor | TextPredictor | Seq2SeqPredictor | MaskedTextPredictor:
    """The predictor of a model that has been opened, with arguments and errors as in `load`."""
    check_options(bundle, ensemble, fast, prepack)
    kind = bundle.model.config.kind
    if PREDICTORS[kind] is Seq2SeqPredictor:
        return Seq2SeqPredictor(bundle, device, precision, [load_bundle(other) for other in ensemble], fast)
    predictor = MultiLabelPredictor if bundle.thresholds else PREDICTORS[kind]
    options = {"fast": fast, "prepack": prepack} if PREDICTORS[kind] is Predictor else {}
    return predictor(bundle, device, precision, **options)


def check_options(bundle: Bundle, ensemble: Sequence[str | PathLike[str]], fast: bool, prepack: bool) -> None:
    """Check that a model predicts something, and has the options that are set.

    Raises:
        ValueError: it does not.
    """
    kind = bundle.model.config.kind
    if kind not in PREDICTORS:
        raise ValueError(f"{bundle.path} holds a pre-trained model ({kind}), which makes no predictions; train it "
                         f"for a task with {override_for_shell('init_from', bundle.path)}")
    if fast and PREDICTORS[kind] not in (Predictor, Seq2SeqPredictor):
        raise ArgumentError(f"fast=True is for image classifiers and for models that generate text, but {bundle.path} "
                            f"is of kind {kind}; leave it out")
    if prepack and PREDICTORS[kind] is not Predictor:
        raise ValueError(f"prepack=True is for image classifiers, but {bundle.path} is of kind {kind}; leave it out")
    if ensemble and PREDICTORS[kind] is not Seq2SeqPredictor:
        raise ValueError(f"ensemble= is for models that generate text, but {bundle.path} is of kind {kind}; "
                         "combine classifiers of images with vit.bundle.save_ensemble")
