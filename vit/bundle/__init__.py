"""The bundle: one folder that explains itself, `model.safetensors` + `config.json`.

Where timm can express the model, the folder is a timm folder, which timm and transformers load as it is; our own record
stands under the key `vit`. In memory the names are ours; on disk they are the ones that `vit.weights` says.
"""

from vit.bundle.reading import Bundle, find_bundle, is_bundle, load_bundle, model_kind
from vit.bundle.record import CONFIG, WEIGHTS, BundleError, Contract
from vit.bundle.writing import save_bundle

__all__ = [
    "CONFIG", "WEIGHTS", "Bundle", "BundleError", "Contract", "find_bundle", "is_bundle", "load_bundle", "model_kind",
    "save_bundle",
]
