"""The bundle: a model as one self-describing folder, `model.safetensors` and `config.json`.

If timm supports the model, the folder is a timm folder that timm and transformers load as it is; vit's own record is
under the key `vit` of config.json. Parameters have vit's names in memory and timm's in a timm folder (`vit.weights`).
"""

from vit.bundle.calibration import Calibration, Quantiles, SelectiveRisk, UnknownScore
from vit.bundle.ensemble import MEMBER_PATHS, save_ensemble
from vit.bundle.label_calibration import LabelCalibration
from vit.bundle.loading import Bundle, find_bundle, is_bundle, load_bundle, model_kind
from vit.bundle.record import CONFIG, WEIGHTS, BundleError
from vit.bundle.saving import save_bundle
from vit.data import AnyPreprocessing

Contract = AnyPreprocessing  # alias: former name

__all__ = [
    "CONFIG", "MEMBER_PATHS", "WEIGHTS", "Bundle", "BundleError", "Calibration", "Contract", "LabelCalibration",
    "Quantiles", "SelectiveRisk", "UnknownScore", "find_bundle", "is_bundle", "load_bundle", "model_kind",
    "save_bundle", "save_ensemble",
]
