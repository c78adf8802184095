"""Which of timm's Vision Transformers can be imported: every architecture of these names, with random weights.

An architecture is built by its name with width 96 and one block, imported by `import_weights`, exported to timm and
built there again. "ours" and "back" are the largest differences of a logit from timm's; an architecture that is not
supported has the reason instead.

    python benchmarks/timm_families.py                       two minutes on one core
    python benchmarks/timm_families.py --names "vit_*dinov3*"
"""

import argparse
import warnings

import timm
import torch
from pairs import report
from timm.layers import to_2tuple
from torch import Tensor, nn

from vit.exchange import import_weights
from vit.weights import timm_arguments, to_timm

NAMES = ("vit_*", "deit*", "eva*", "flexivit*", "beit*", "aimv2*", "test_vit*")
SMALL = {"embed_dim": 96, "depth": 1, "num_heads": 4, "num_classes": 5}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--names", nargs="+", default=NAMES, metavar="PATTERN")
    names = timm.list_models(parser.parse_args().names)
    torch.manual_seed(0)
    warnings.simplefilter("ignore")
    rows = [compared(name) for name in names]
    equal = [row for row in rows if row["refused"] is None]
    worst = max((float(row[way]) for row in equal for way in ("ours", "back")), default=0.0)
    title = f"{len(equal)} of {len(rows)} architectures of timm {timm.__version__}, largest difference {worst:.1e}"
    report(title, rows, timm=timm.__version__, equal=len(equal), largest=worst)


def compared(name: str) -> dict[str, object]:
    try:
        theirs = small(name)
        model, _ = import_weights(theirs)
    except ValueError as error:
        return {"name": name, "ours": None, "back": None, "refused": str(error)}
    images = torch.randn(2, 3, *model.config.image_size)
    with torch.no_grad():
        expected = theirs(images)
        back = exported(model)(images)
        return {"name": name, "ours": difference(model(images), expected), "back": difference(back, expected),
                "refused": None}


def small(name: str) -> nn.Module:
    """The architecture with a smaller width and depth, or unchanged if these cannot be set."""
    with torch.device("meta"):
        whole = timm.create_model(name)
    patch = to_2tuple(getattr(whole.patch_embed, "patch_size", 16))
    try:
        model = timm.create_model(name, **SMALL, img_size=(3 * patch[0], 4 * patch[1]))
    except (TypeError, AssertionError, RuntimeError):  # no such options, or parts that depend on each other
        return whole
    return randomized(model)


def randomized(model: nn.Module) -> nn.Module:
    """Randomize every parameter, including those initialized to zeros and ones."""
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn_like(parameter)
            parameter.copy_(1 + 0.3 * noise if parameter.ndim == 1 and parameter.mean() > 0.5 else 0.08 * noise)
    return model.eval()


def exported(model: nn.Module) -> nn.Module:
    """The imported model as a model of timm."""
    arguments = timm_arguments(model.config)
    back = timm.create_model(arguments["architecture"], num_classes=5, **arguments["model_args"]).eval()
    back.load_state_dict(to_timm(model.state_dict(), model.config))
    return back


def difference(ours: Tensor, theirs: Tensor) -> str:
    return f"{(ours - theirs).abs().max().item():.1e}"


if __name__ == "__main__":
    main()
