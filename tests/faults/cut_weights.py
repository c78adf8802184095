"""Weights that do not match their config are refused: every tensor, group and block is removed once."""

import json
import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

from tests.faults.promise import Case, Promise

TRANSFORMERS = (
    "ViT", "ViT, other options", "DeiT", "DeiT, distilled", "DeiT without head", "ViT without head", "DINOv2",
    "DINOv2, SwiGLU", "DINOv2, registers", "DINOv2, classifier", "DINOv2, registers, classifier", "CLIP",
    "CLIP, exact GELU", "CLIP, projected", "CLIP, both towers", "CLIP, classifier", "SigLIP", "SigLIP, both towers",
    "SigLIP, classifier", "ViTMAE", "DINOv3, registers", "DINOv3, all biases", "DINOv3, gated", "BERT", "BERT, classes",
)
TIMM = (
    "AugReg", "MAE", "not square", "no head", "DeiT", "DeiT distilled", "DeiT III", "FlexiViT", "gap", "reg4 gap",
    "reg4 map", "pooled registers", "RMSNorm", "InternViT", "DINOv2", "DINOv2 reg4", "DINOv2 giant", "CLIP",
    "CLIP quick", "CLIP mean", "SigLIP", "SigLIP so400m", "SigLIP 2", "SigLIP gap", "AIMv2", "res-post-norm",
    "parallel", "relative", "relative cls", "relative clsgap", "relative rpn", "relative shared", "EVA-02 enormous",
    "parallel reg gap", "BEiT-3", "EVA", "EVA-CLIP", "EVA-02 tiny", "EVA-02", "EVA-02 CLIP", "EVA-02 CLIP 16",
    "rope reg gap", "rope reg gap d", "RoPE-ViT", "RoPE-ViT ape", "RoPE-Mixed", "RoPE-Mixed ape", "PE core",
    "PE core gigantic", "PE lang", "PE spatial", "DINOv3", "DINOv3 qkvb", "DINOv3 plus",
)
OTHERS = ("OpenCLIP", "OpenCLIP, tower of timm", "bundle", "bundle under our names")
QUICK = ("transformers ViT", "transformers DINOv2, registers", "transformers CLIP", "transformers BERT, classes",
         "timm relative shared", "OpenCLIP", "bundle")
NUMBER = re.compile(r"\.(\d+)\.")
# keys of a transformers config.json that determine the shapes of tensors
SIZES = ("hidden_size", "num_hidden_layers", "intermediate_size", "patch_size", "num_channels", "num_register_tokens",
         "projection_dim", "vocab_size", "max_position_embeddings", "type_vocab_size")


def transformers(case: str, folder: Path) -> None:
    import transformers as hf

    from tests.exchange.conftest import scramble
    from tests.exchange.test_convert import BOTH_WAYS

    small = {"vocab_size": 30, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
             "intermediate_size": 48, "max_position_embeddings": 12}
    texts = {"BERT": (hf.BertForPreTraining, hf.BertConfig(**small)),
             "BERT, classes": (hf.BertForSequenceClassification, hf.BertConfig(**small, num_labels=3))}
    cls, config, *_ = {**BOTH_WAYS, **texts}[case]
    scramble(cls(config)).save_pretrained(folder)


def timm(case: str, folder: Path) -> None:
    from safetensors.torch import save_file

    from tests.weights.formats.test_timm import foreign, source_config

    save_file(foreign(case).state_dict(), folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(source_config(case)))


def other(case: str, folder: Path) -> None:
    if case.startswith("bundle"):
        import vit
        from vit.bundle import save_bundle
        from vit.data import Preprocessing

        model = vit.create_model("vit_tiny", image_size=32, patch_size=16, dim=32, depth=3, num_heads=2, num_classes=2,
                                 pre_norm=case == "bundle")
        save_bundle(folder, model, ["a", "b"], Preprocessing(32))
        return
    from open_clip import model as open_clip
    from safetensors.torch import save_file

    from tests.exchange.conftest import scramble

    vision = {"layers": 2, "width": 64, "head_width": 16, "patch_size": 8, "image_size": 32}
    if case != "OpenCLIP":
        vision = {"timm_model_name": "test_vit", "timm_pool": "token", "timm_proj": "linear", "image_size": 160}
    text = open_clip.CLIPTextCfg(context_length=5, vocab_size=11, width=16, heads=2, layers=1)
    model = scramble(open_clip.CLIP(6, open_clip.CLIPVisionCfg(**vision), text, quick_gelu=True))
    state = {name: tensor for name, tensor in model.state_dict().items() if name.startswith("visual.")}
    save_file(state, folder / "open_clip_model.safetensors")
    config = {"embed_dim": 6, "quick_gelu": True, "vision_cfg": vision, "text_cfg": {}}
    (folder / "open_clip_config.json").write_text(json.dumps({"model_cfg": config}))


def groups(names: list[str]) -> dict[str, set[str]]:
    """Groups of tensors that are removed together: each leaf and layer of all blocks, each block, all biases."""
    found: dict[str, set[str]] = {"all biases": {name for name in names if name.endswith("bias")}}
    for name in names:
        everywhere = NUMBER.sub(".*.", name)
        keys = [everywhere, everywhere.rpartition(".")[0] + ".", name]
        keys += [f"block {number[1]}" for number in [NUMBER.search(name)] if number]
        for key in keys:
            found.setdefault(key, set()).add(name)
    return {key: group for key, group in found.items() if group}


def cut(make, case: str, folder: Path) -> None:
    """No tensor may be missing in a folder, except unused ones."""
    from safetensors.torch import load, save_file

    from vit.exchange import import_weights

    make(case, folder)
    file = next(folder.glob("*.safetensors"))
    state = load(file.read_bytes())  # not mapped: safetensors before 0.8 overwrites a file in place
    report = import_weights(folder)[1]
    apart = {name for row in report.rows if row.status == "excluded" for name in row.sources}
    accepted = []
    for name, group in groups([name for name in state if name not in apart]).items():
        save_file({each: tensor for each, tensor in state.items() if each not in group}, file)
        if case.startswith("bundle"):
            digest(folder)
        accepted += [] if refused(folder) else [name]
    assert not accepted, f"opened without {accepted}"
    save_file(state, file)
    for key, config in contradictions(folder).items():
        (folder / "config.json").write_text(json.dumps(config))
        accepted += [] if refused(folder) else [key]
    assert not accepted, f"opened with another {accepted}"


def refused(folder: Path) -> bool:
    """Whether opening the folder is refused with one sentence."""
    from vit.bundle import BundleError
    from vit.exchange import SourceError, import_weights

    try:
        import_weights(folder)
    except (SourceError, BundleError) as error:
        return "\n" not in str(error)
    return False


def digest(folder: Path) -> None:
    """Updates the SHA-256 of the bundle to that of the incomplete weights."""
    from vit.files.untrusted import file_sha256

    config = json.loads((folder / "config.json").read_text())
    config["vit"]["sha256"] = file_sha256(folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config))


def contradictions(folder: Path) -> dict[str, Mapping]:
    """Configs of transformers with one doubled size, or one more block."""
    path = folder / "config.json"
    config = json.loads(path.read_text()) if path.is_file() else {}
    if "architectures" not in config:
        return {}
    changed = {}
    for key in SIZES:
        for where in ("vision_config", None):
            values = config.get(where, {}) if where else config
            used = key != "projection_dim" or "projected" in folder.name
            if isinstance(values.get(key), int) and values[key] and used:
                other = {**values, key: 2 * values[key]}
                changed[f"{where}.{key}"] = {**config, where: other} if where else other
    return {name: each for name, each in changed.items() if not name.endswith("projection_dim")}


@cache
def names() -> list[tuple]:
    return [*((f"transformers {case}", transformers, case) for case in TRANSFORMERS),
            *((f"timm {case}", timm, case) for case in TIMM), *((case, other, case) for case in OTHERS)]


def cases() -> Iterator[Case]:
    for name, make, case in names():
        yield Case(name, lambda folder, m=make, c=case: cut(m, c, folder), quick=name in QUICK)


PROMISE = Promise("weights that do not match their config are refused", cases)
