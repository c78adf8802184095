"""A training step (forward, backward, clipping, fused AdamW) of this project's Vision Transformer and timm's.

Both have the same size and initial weights and see the same batch; their first losses are compared. With `--size base`,
torchvision's vit_b_16 is measured too. "times as fast" is the peer's time divided by that of `vit`.

    python benchmarks/train_step.py                                        tiny, float32 and bf16, on the CPU
    python benchmarks/train_step.py --size base --batch 8 --rounds 5
    python benchmarks/train_step.py --size small --batch 256 --device cuda --compiled
"""

import argparse
import statistics
from functools import partial

import timm
import torch
import torchvision
from pairs import in_turns, report, times_as_fast
from torch import nn
from torch.nn import functional as F

import vit
from vit.training import build_optimizer, clip_gradients
from vit.weights import from_torchvision, to_timm

OURS = "vit"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", default="tiny", help="tiny, small, base, ...")
    parser.add_argument("--image", type=int, default=224)
    parser.add_argument("--patch", type=int, default=16)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--device", default="cpu", help="cpu (default) or cuda")
    parser.add_argument("--precision", nargs="+", choices=("float32", "bf16"), default=["float32", "bf16"])
    parser.add_argument("--compiled", action="store_true", help="also under torch.compile, which needs a compiler")
    options = parser.parse_args()
    rows = []
    for mode in ("eager", "compiled") if options.compiled else ("eager",):
        for precision in options.precision:
            seconds = measure(options, mode, precision)
            rows += table(seconds, mode, precision, options.batch)
    image = f"{options.image}x{options.image}"
    report(f"training step, {options.size}, patch {options.patch}, {image}, batch {options.batch}", rows)


def measure(options: argparse.Namespace, mode: str, precision: str) -> dict[str, list[float]]:
    torch.manual_seed(0)
    images = torch.randn(options.batch, 3, options.image, options.image, device=options.device)
    labels = torch.randint(0, 1000, (options.batch,), device=options.device)
    steps, losses = {}, {}
    for name, model in models(options).items():
        model.to(options.device).train()
        optimizer = build_optimizer(model, lr=1e-4)
        if mode == "compiled":
            model.compile()
        clip = clip_gradients if name == OURS else nn.utils.clip_grad_norm_
        steps[name] = partial(step, model, optimizer, clip, images, labels, precision == "bf16")
        losses[name] = float(steps[name]())
    low, high = min(losses.values()), max(losses.values())
    if high - low > (1e-4 if precision == "float32" else 2e-2) * high:
        raise SystemExit(f"the models differ: first losses {losses}")
    return in_turns(steps, options.rounds, warmup=2)


def models(options: argparse.Namespace) -> dict[str, nn.Module]:
    """The same network from each library, with the same weights."""
    ours = vit.create_model(f"vit_{options.size}", image_size=options.image, patch_size=options.patch)
    peers = {}
    if (options.size, options.patch) == ("base", 16):
        peers["torchvision"] = torchvision.models.vit_b_16(image_size=options.image)
        nn.init.normal_(peers["torchvision"].heads.head.weight, std=0.02)
        ours.load_state_dict(from_torchvision(peers["torchvision"].state_dict()))
    peers["timm"] = timm.models.VisionTransformer(
        img_size=options.image,
        patch_size=options.patch,
        embed_dim=ours.config.dim,
        depth=ours.config.depth,
        num_heads=ours.config.num_heads,
        mlp_ratio=ours.config.mlp_ratio,
    )
    peers["timm"].load_state_dict(to_timm(ours.state_dict(), ours.config))
    return {OURS: ours, **peers}


def step(model, optimizer, clip, images, labels, bf16: bool) -> torch.Tensor:
    with torch.autocast(images.device.type, torch.bfloat16, enabled=bf16):
        logits = model(images)
    loss = F.cross_entropy(logits.float(), labels)
    loss.backward()
    clip(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    return loss.detach()


def table(seconds: dict[str, list[float]], mode: str, precision: str, batch: int) -> list[dict]:
    rows = []
    for name, times in seconds.items():
        fast = None if name == OURS else times_as_fast(seconds, OURS, name)
        rows.append(
            {
                "mode": mode,
                "numbers": precision,
                "library": name,
                "images/s": batch / statistics.median(times),
                "vit is times as fast": fast,
            }
        )
    return rows


if __name__ == "__main__":
    main()
