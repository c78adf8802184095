"""Parameter groups and layer-wise learning rates against timm's, and optimizers by name."""

import inspect
from collections import OrderedDict

import numpy as np
import pytest
import timm
import torch
from timm.optim import get_optimizer_info, list_optimizers, param_groups_layer_decay
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from vit.models import VisionTransformer, VisionTransformerConfig, model_from_config
from vit.nn import MixedRotary
from vit.nn.stem import NormedPatches
from vit.training.optimization.gradient_clipping import clip_gradients
from vit.training.optimization.layer_decay import layer_numbers
from vit.training.optimization.optim import (
    UNSUPPORTED_OF_TIMM,
    build_optimizer,
    check_options,
    check_shardable,
    fusable,
    optimizer_classes,
    parameter_groups,
    scaled_lr,
    undecayed,
)
from vit.weights.training_checkpoint import clean_name


@pytest.fixture(scope="module")
def timm_vit():
    return timm.create_model(
        "vit_tiny_patch16_224",
        img_size=16,
        patch_size=8,
        embed_dim=24,
        depth=3,
        num_heads=2,
        num_classes=5,
        init_values=1e-5,
        qk_norm=True,
    )


class Ours(nn.Module):
    """A model with the parameter names of this project."""

    def __init__(self, depth=3, dim=8):
        super().__init__()
        self.embed = nn.Module()
        self.embed.proj = nn.Linear(4, dim)
        self.embed.cls_token = nn.Parameter(torch.zeros(1, 1, dim))
        self.embed.pos_embed = nn.Parameter(torch.zeros(1, 5, dim))
        self.encoder = nn.Module()
        self.encoder.blocks = nn.ModuleList(
            nn.ModuleDict({"norm1": nn.LayerNorm(dim), "attn": nn.Linear(dim, dim)}) for _ in range(depth)
        )
        self.encoder.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, 3)

    def forward(self, x):
        x = self.embed.proj(x) + self.embed.cls_token[0] + self.embed.pos_embed[0, :1]
        for block in self.encoder.blocks:
            x = x + block["attn"](block["norm1"](x))
        return self.head(self.encoder.norm(x))


def rates(groups, names):
    return {names[id(p)]: (g["lr"], g["weight_decay"]) for g in groups for p in g["params"]}


@pytest.mark.parametrize("name", ["vit", "resnet10t", "convnext_atto"])
def test_layer_decay_equals_timms_for_transformers_and_convolutions(name, timm_vit):
    model = timm_vit if name == "vit" else timm.create_model(name, num_classes=5)
    names = {id(p): n for n, p in model.named_parameters()}
    ours = rates(parameter_groups(model, 0.05, 0.75, lr=0.1), names)
    # timm decays what has two dimensions; the names exempt what the model itself lists, as we do
    theirs = param_groups_layer_decay(
        model, 0.05, no_weight_decay_list=model.no_weight_decay() if name == "vit" else (), layer_decay=0.75
    )
    expected = {names[id(p)]: (0.1 * g["lr_scale"], g["weight_decay"]) for g in theirs for p in g["params"]}
    assert ours.keys() == expected.keys()
    for key, value in ours.items():
        assert value == pytest.approx(expected[key], rel=1e-12), key


def test_our_names_number_the_layers_like_timms():
    numbers = layer_numbers(Ours(depth=3))
    assert {
        name: number for name, number in numbers.items() if name.endswith("weight") or "_" in name.split(".")[-1]
    } == {
        "embed.cls_token": 0,
        "embed.pos_embed": 0,
        "embed.proj.weight": 0,
        "encoder.blocks.0.norm1.weight": 1,
        "encoder.blocks.0.attn.weight": 1,
        "encoder.blocks.1.norm1.weight": 2,
        "encoder.blocks.1.attn.weight": 2,
        "encoder.blocks.2.norm1.weight": 3,
        "encoder.blocks.2.attn.weight": 3,
        "encoder.norm.weight": 3,
        "head.weight": 4,
    }


def test_only_matrices_decay():
    model = Ours()
    decayed = {name for name, _ in model.named_parameters()} - undecayed(model)
    assert decayed == {"embed.proj.weight", "head.weight", *(f"encoder.blocks.{i}.attn.weight" for i in range(3))}


def test_tables_of_positions_and_two_dimensional_norms_do_not_decay_but_token_tables_do():
    class LayerNorm2d(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(1, 4))

    model = nn.ModuleDict(
        {
            "position_embeddings": nn.Embedding(6, 4),
            "words": nn.Embedding(9, 4),
            "n": LayerNorm2d(),
            "query": nn.Linear(4, 4, bias=False),
            "rotary": MixedRotary((2, 2), 4, 1, 1),
        }
    )
    assert undecayed(model) == {"position_embeddings.weight", "n.weight", "rotary.freqs"}


def test_the_patch_projection_between_two_norms_decays():
    stem = NormedPatches(3, 8, (2, 2))
    assert undecayed(stem) == {name for name, _ in stem.named_parameters()} - {"weight"}


def test_groups_are_few_and_frozen_parameters_stay_out():
    model = Ours()
    model.embed.requires_grad_(False)
    groups = parameter_groups(model, 0.1)
    assert len(groups) == 2
    assert sum(len(g["params"]) for g in groups) == sum(p.requires_grad for p in model.parameters())
    model.requires_grad_(False)
    with pytest.raises(ValueError, match="no trainable parameter"):
        parameter_groups(model, 0.1)


def test_wrappers_do_not_change_the_groups():
    plain, wrapped = Ours(), torch.compile(Ours(), backend="eager")
    shape = lambda model: [(g["lr"], g["weight_decay"], len(g["params"])) for g in parameter_groups(model, 0.1, 0.5)]  # noqa: E731
    assert shape(plain) == shape(wrapped)
    assert clean_name("module._orig_mod.encoder.blocks.0._orig_mod.norm1.weight") == "encoder.blocks.0.norm1.weight"


def test_layer_decay_reaches_the_update():
    """With plain SGD and equal gradients, the step of each layer is its own rate: also after a scheduler's step."""
    model = Ours(depth=2)
    optimizer = build_optimizer(model, "SGD", lr=1.0, weight_decay=0.0, layer_decay=0.5)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.1)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    scheduler.step()
    steps = {name: (before[name] - p.detach()).mean().item() for name, p in model.named_parameters()}
    assert steps["head.weight"] == pytest.approx(0.1)
    assert steps["encoder.blocks.1.attn.weight"] == pytest.approx(0.05)
    assert steps["encoder.blocks.0.attn.weight"] == pytest.approx(0.025)
    assert steps["embed.cls_token"] == pytest.approx(0.0125)


def test_layer_decay_without_layers_is_an_error():
    with pytest.raises(ValueError, match="numbered blocks"):
        parameter_groups(nn.Linear(2, 2), 0.1, 0.75)
    with pytest.raises(ValueError, match=r"layer_decay is 1.5.*\(0, 1\]"):
        parameter_groups(Ours(), 0.1, 1.5)


def test_fused_adamw_follows_plain_torch():
    torch.manual_seed(0)
    ours, reference = Ours(), Ours()
    reference.load_state_dict(ours.state_dict())
    decayed = [p for n, p in reference.named_parameters() if n not in undecayed(reference)]
    rest = [p for n, p in reference.named_parameters() if n in undecayed(reference)]
    optimizer = build_optimizer(ours, "AdamW", lr=1e-2, weight_decay=0.3, options={"betas": [0.8, 0.9]})
    plain = torch.optim.AdamW(
        [{"params": rest, "weight_decay": 0.0}, {"params": decayed, "weight_decay": 0.3}],
        lr=1e-2,
        betas=(0.8, 0.9),
        foreach=False,
        fused=False,
    )
    assert optimizer.defaults["fused"] is True
    for step in range(5):
        x = torch.randn(16, 4, generator=torch.Generator().manual_seed(step))
        for model, opt in ((ours, optimizer), (reference, plain)):
            opt.zero_grad()
            model(x).square().mean().backward()
            opt.step()
    for a, b in zip(ours.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "name", ["sgd", "adamw", "Adam", "rmsprop", "lamb", "lion", "muon", "adafactorbv", "nadamw", "lookahead_radam"]
)
def test_any_torch_or_timm_optimizer_takes_a_step(name):
    model = Ours()
    optimizer = build_optimizer(model, name, lr=1e-3, weight_decay=0.1, layer_decay=0.9)
    before = model.head.weight.detach().clone()
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.ones(2, 4)).square().mean().backward()
        optimizer.step()
    assert torch.isfinite(model.head.weight).all() and not torch.equal(before, model.head.weight)
    assert {g["weight_decay"] for g in optimizer.param_groups} == {0.0, 0.1}


@pytest.mark.parametrize("name", [*optimizer_classes(), *list_optimizers(exclude_filters=UNSUPPORTED_OF_TIMM)])
def test_processes_with_equal_gradients_keep_equal_weights(name):
    """Each has random states of its own, which an optimizer such as kron must not use."""
    weights = []
    with torch.compiler.set_stance("force_eager"):  # kron compiles its functions
        for rank in range(2):
            torch.manual_seed(0)
            model = Ours()
            optimizer = build_optimizer(model, name, lr=1e-3, weight_decay=0.1)
            torch.manual_seed(1 + rank)
            for _ in range(2):
                optimizer.zero_grad()
                model(torch.ones(2, 4)).square().mean().backward()
                optimizer.step()
            weights.append(torch.cat([each.detach().flatten() for each in model.parameters()]))
    assert torch.equal(*weights)


@pytest.mark.parametrize("nesterov", [False, True])
def test_muon_updates_hidden_matrices_as_torchs_and_the_rest_as_adamw(nesterov):
    ours, reference = small_vit(), small_vit()
    reference.load_state_dict(ours.state_dict())
    coefficients = [3.4445, -4.775, 2.0315]
    options = {"adjust_lr_fn": "original", "ns_coefficients": coefficients, "fallback_lr_scale": 0.1, "momentum": 0.9,
               "nesterov": nesterov, "betas": [0.8, 0.9], "eps": 1e-7}
    optimizer = build_optimizer(ours, "muon", lr=0.02, weight_decay=0.3, options=options)
    groups = {"hidden": [], "matrices": [], "rest": []}
    for name, parameter in reference.named_parameters():
        hidden = "blocks" in name and parameter.ndim == 2
        decays = name.endswith("weight") and parameter.ndim > 1
        groups["hidden" if hidden else "matrices" if decays else "rest"].append(parameter)
    assert {key: len(value) for key, value in groups.items()} == {"hidden": 8, "matrices": 2, "rest": 22}
    muon = torch.optim.Muon(groups["hidden"], lr=0.02, weight_decay=0.3, momentum=0.9, nesterov=nesterov,
                            ns_coefficients=tuple(coefficients))
    adamw = timm.optim.NAdamW if nesterov else torch.optim.AdamW
    others = adamw([{"params": groups["matrices"], "weight_decay": 0.3}, {"params": groups["rest"], "weight_decay": 0}],
                   lr=0.002, betas=(0.8, 0.9), eps=1e-7)
    start = {name: parameter.detach().clone() for name, parameter in ours.named_parameters()}
    for step in range(3):
        images = torch.randn(8, 3, 16, 16, generator=torch.Generator().manual_seed(step))
        for model, optimizers in ((ours, [optimizer]), (reference, [muon, others])):
            for each in optimizers:
                each.zero_grad()
            nn.functional.cross_entropy(model(images), torch.arange(8) % 3).backward()
            for each in optimizers:
                each.step()
    for (name, a), b in zip(ours.named_parameters(), reference.parameters(), strict=True):
        moved = (b - start[name]).norm()
        assert moved > 0 and (a - b).norm() <= 0.2 * moved, name  # torch orthogonalizes in bfloat16


def moco_lars_step(weights, gradients, velocity, lr, decays, momentum=0.9, trust_coefficient=0.001):
    """Arrays by name; the formulas of LARS (arXiv 1708.03888), with the exceptions of MoCo v3, in float64."""
    for name, weight in weights.items():
        update = gradients[name]
        if weight.ndim > 1:
            update = update + decays[name] * weight
            norms = np.linalg.norm(weight), np.linalg.norm(update)
            update = update * (trust_coefficient * norms[0] / norms[1] if min(norms) > 0 else 1)
        velocity[name] = momentum * velocity.get(name, 0) + update
        weights[name] = weight - lr * velocity[name]


@pytest.mark.parametrize(("decay", "options"), [
    (0.0, {}), (0.1, {}), (0.0, {"momentum": 0.0}), (0.3, {"momentum": 0.5, "trust_coefficient": 0.02}),
])
def test_moco_lars_follows_its_formulas(decay, options):
    """The tokens and positions of `Ours` are 0 and some of its gradients too, so that they have no ratio of norms."""
    torch.manual_seed(0)
    model = Ours().double()
    optimizer = build_optimizer(model, "moco_lars", lr=3.0, weight_decay=decay, options=options)
    weights = {name: p.detach().numpy().copy() for name, p in model.named_parameters()}
    decays, velocity = {name: 0 if name in undecayed(model) else decay for name in weights}, {}
    for step in range(4):
        for group in optimizer.param_groups:
            group["lr"] = 3.0 / (step + 1)
        gradients = {}
        for name, parameter in model.named_parameters():
            parameter.grad = torch.randn_like(parameter) if "embed.proj" not in name else torch.zeros_like(parameter)
            gradients[name] = parameter.grad.numpy().copy()
        optimizer.step()
        moco_lars_step(weights, gradients, velocity, 3.0 / (step + 1), decays, **options)
        for name, parameter in model.named_parameters():
            torch.testing.assert_close(parameter.detach(), torch.from_numpy(weights[name]), rtol=1e-9, atol=1e-12)


class Products(TorchDispatchMode):
    """Records the precision of each product of matrices; the profiler of torch 2.10 does not state it."""

    def __init__(self) -> None:
        super().__init__()
        self.dtypes: list[torch.dtype] = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function.overloadpacket is torch.ops.aten.addmm:
            self.dtypes.append(args[0].dtype)
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("name", ["muon", "nmuon", "adamuon", "nadamuon"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("has_bfloat16", [False, True])
def test_muon_computes_in_bfloat16_where_it_is_not_emulated(monkeypatch, name, dtype, has_bfloat16):
    monkeypatch.setattr("vit.training.optimization.muon_precision.has_bfloat16", lambda device: has_bfloat16)
    model = small_vit().to(dtype)
    optimizer = build_optimizer(model, name, lr=0.02)
    model(torch.ones(2, 3, 16, 16, dtype=dtype)).square().mean().backward()
    with Products() as products:
        optimizer.step()
    assert len(products.dtypes) == 8 * 5 * 3  # matrices, iterations, products of an iteration
    assert set(products.dtypes) == {torch.bfloat16 if has_bfloat16 else torch.float32}
    assert all(parameter.dtype == dtype and parameter.isfinite().all() for parameter in model.parameters())


def test_muon_moves_by_the_polynomial_of_the_singular_values(monkeypatch):
    monkeypatch.setattr("vit.training.optimization.muon_precision.has_bfloat16", lambda device: False)
    layer = nn.Sequential(OrderedDict(blocks=nn.Sequential(nn.Linear(6, 4, bias=False))))
    start = layer.blocks[0].weight.detach().clone()
    options = {"adjust_lr_fn": "original", "momentum": 0.0, "ns_coefficients": [3.4445, -4.775, 2.0315]}
    optimizer = build_optimizer(layer, "muon", lr=1.0, weight_decay=0.0, options=options)
    gradient = torch.randn(4, 6, generator=torch.Generator().manual_seed(1))
    layer.blocks[0].weight.grad = gradient.clone()
    optimizer.step()
    u, s, v = torch.linalg.svd(gradient.double(), full_matrices=False)
    s = s / gradient.double().norm()
    for _ in range(5):
        s = 3.4445 * s - 4.775 * s**3 + 2.0315 * s**5
    torch.testing.assert_close(start - layer.blocks[0].weight, (u * s @ v).float(), rtol=1e-5, atol=1e-5)


def test_muon_updates_the_later_convolutions_of_a_stem_but_not_the_first_one_or_the_head():
    model = small_vit(stem="compact", pool="attention", class_token=False)
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    optimizer = build_optimizer(model, "nmuon", lr=0.02, layer_decay=0.5)
    orthogonalized = {
        names[id(parameter)]: group["lr"]
        for group in optimizer.param_groups if not group.get("use_fallback") for parameter in group["params"]
    }
    layers = ("attn.qkv", "attn.proj", "mlp.fc1", "mlp.fc2")
    blocks = {f"encoder.blocks.{i}.{layer}.weight": 0.02 * 0.5 ** (2 - i) for i in range(2) for layer in layers}
    assert orthogonalized == pytest.approx({"embed.proj.later.0.weight": 0.02 * 0.5**3, **blocks})
    assert {id(p) for group in optimizer.param_groups for p in group["params"]} == set(names)


def test_muon_needs_numbered_blocks():
    with pytest.raises(ValueError, match="muon orthogonalizes.*Linear has none; use another optimizer, such as adamw"):
        build_optimizer(nn.Linear(4, 4), "muon")


def test_muon_resumes_from_its_saved_state_bit_by_bit(tmp_path):
    def steps(model, optimizer, first, last):
        for step in range(first, last):
            optimizer.zero_grad()
            images = torch.randn(4, 3, 16, 16, generator=torch.Generator().manual_seed(step))
            model(images).square().mean().backward()
            optimizer.step()

    whole, interrupted, resumed = small_vit(), small_vit(), small_vit()
    options = {"lr": 0.02, "options": {"nesterov": True, "fallback_lr_scale": 0.1}}
    steps(whole, build_optimizer(whole, "muon", **options), 0, 4)
    optimizer = build_optimizer(interrupted, "muon", **options)
    steps(interrupted, optimizer, 0, 2)
    torch.save({"model": interrupted.state_dict(), "optimizer": optimizer.state_dict()}, tmp_path / "state.pt")
    state = torch.load(tmp_path / "state.pt", weights_only=True)
    resumed.load_state_dict(state["model"])
    optimizer = build_optimizer(resumed, "muon", **options)
    optimizer.load_state_dict(state["optimizer"])
    steps(resumed, optimizer, 2, 4)
    assert all(torch.equal(a, b) for a, b in zip(whole.parameters(), resumed.parameters(), strict=True))


def small_vit(**values):
    options = {"image_size": 16, "patch_size": 4, "dim": 16, "depth": 2, "num_heads": 2, "num_classes": 3, **values}
    torch.manual_seed(0)
    return VisionTransformer(VisionTransformerConfig(**options))


def test_errors_of_wrong_names_propose_the_nearest():
    with pytest.raises(ValueError, match="unknown optimizer 'adamv'; nearest: .*adam"):
        build_optimizer(Ours(), "adamv")
    with pytest.raises(ValueError, match="unknown optimizer 'adahessian'"):  # it needs second derivatives
        build_optimizer(Ours(), "adahessian")
    with pytest.raises(ValueError, match="no option 'beta'; nearest: betas"):
        build_optimizer(Ours(), "adamw", options={"beta": 0.9})
    for name in ("lion", "lookahead_lion"):
        with pytest.raises(ValueError, match="has no option 'nothing'; nearest: caution"):
            build_optimizer(Ours(), name, options={"nothing": 1})


def test_optimizers_that_cannot_be_sharded():
    for name in ("adamw", "sgd", "Lamb", "lion", "muon", "nmuon", "adafactorbv", "lookahead_adan", "larc"):
        check_shardable(name, {"caution": False} if name == "lion" else None)
    unsupported = ("adafactor", "Adafactor", "adamuon", "nadamuon", "adamp", "lookahead_sgdp", "kron", "kronw", "mars",
                   "novogradc", "cadamw", "csgdp", "lookahead_clion")
    for name, options in [*((name, {}) for name in unsupported), ("lion", {"caution": True})]:
        with pytest.raises(ValueError, match=f"strategy=fsdp cannot shard the updates of {name}.*; use strategy=ddp"):
            check_shardable(name, options)


@pytest.mark.parametrize("share", [0.01, 0.7, 0.9995, 1.0005, 2.0])
def test_clipping_equals_torchs(share):
    torch.manual_seed(0)
    a, b = Ours(), Ours()
    b.load_state_dict(a.state_dict())
    for model in (a, b):
        (model(torch.full((3, 4), 5.0)) * 100).square().mean().backward()
    most = share * float(nn.utils.get_total_norm([p.grad for p in b.parameters()]))
    norm = clip_gradients(a.parameters(), most)
    torch.testing.assert_close(norm, nn.utils.clip_grad_norm_(b.parameters(), most))
    for p, q in zip(a.parameters(), b.parameters(), strict=True):
        torch.testing.assert_close(p.grad, q.grad)


def test_the_norm_is_that_of_the_parameters_with_a_gradient_in_float32():
    one, frozen = nn.Parameter(torch.zeros(4096, dtype=torch.bfloat16)), nn.Parameter(torch.zeros(2))
    one.grad = torch.ones_like(one)
    norm = clip_gradients([one, frozen], 32.0)
    assert norm.dtype == torch.float32 and norm == 64 and frozen.grad is None
    assert torch.equal(one.grad, torch.full_like(one, 0.5))


def test_vectors_of_any_name_do_not_decay():
    model = nn.Linear(3, 2, bias=False)
    model.mix = nn.Parameter(torch.ones(3))
    decays = {len(group["params"][0].shape): group["weight_decay"] for group in parameter_groups(model, 0.1)}
    assert decays == {1: 0.0, 2: 0.1}


def test_a_decoder_has_the_full_rate():
    sizes = {"vocab_size": 11, "max_len": 9, "dim": 16, "depth": 2, "decoder_depth": 3, "num_heads": 2}
    layers = layer_numbers(model_from_config({"kind": "encoder_decoder", **sizes}))
    of = {part: {number for name, number in layers.items() if name.startswith(part)}
          for part in ("embed.", "encoder.blocks.0.", "encoder.blocks.1.", "decoder.")}
    assert of == {"embed.": {0}, "encoder.blocks.0.": {1}, "encoder.blocks.1.": {2}, "decoder.": {3}}


def test_scaled_lr():
    assert scaled_lr(1e-3, 512) == pytest.approx(2e-3)
    assert scaled_lr(1e-3, 1024, rule="sqrt") == pytest.approx(2e-3)
    with pytest.raises(ValueError, match="linear, sqrt"):
        scaled_lr(1e-3, 512, rule="cubic")


@pytest.mark.parametrize("option", ["foreach", "differentiable"])
def test_an_option_that_excludes_the_fused_implementation_is_used(option):
    group = build_optimizer(nn.Linear(2, 2), options={option: True}).param_groups[0]
    assert group[option] and not group["fused"]


@pytest.mark.parametrize(("name", "options", "message"), [
    ("adamw", {"betas": [0.9]}, r"options.betas=\[0.9\] of optimizer 'adamw' must be a list of 2 numbers"),
    ("adamw", {"betas": 0.9}, "options.betas=0.9 of optimizer 'adamw' must be a list of 2 numbers"),
    ("adamw", {"foreach": True, "fused": True}, "cannot be `True` together"),
    ("sgd", {"momentum": 0.9, "nesterov": "no"}, "nesterov=no of optimizer 'sgd' must be true or false"),
    ("lion", {"betas": [0.9]}, "options.betas=.* of optimizer 'lion' must be a list of 2 numbers"),
    ("adamw", {"foreach": "no"}, "options.foreach=no of optimizer 'adamw' must be true or false, or null"),
    ("lamb", {"always_adapt": "nope"}, "options.always_adapt=nope of optimizer 'lamb' must be true or false$"),
    ("lookahead_lamb", {"caution": "False"}, "must be true or false; 'False' is a string"),
    ("lars", {"trust_coeff": "1e-3"}, "options.trust_coeff=1e-3 of .* must be a number; '1e-3' is a string"),
    ("lamb", {"max_grad_norm": "big"}, "options.max_grad_norm=big of optimizer 'lamb' must be a number, or null"),
    ("muon", {"ns_steps": 2.5}, "options.ns_steps=2.5 of optimizer 'muon' must be a whole number"),
    ("adan", {"betas": [0.9, 0.99]}, "options.betas=.* of optimizer 'adan' must be a list of 3 numbers"),
    ("cadafactor", {"betas": 0.9}, "must be a list of 2 numbers, or null"),
    ("lamb", {"layer_decay": 0.75}, "optimizer 'lamb' has no option 'layer_decay'"),
    ("mars", {"mars_type": "sgd"}, "'mars' does not accept its options.*MARS type not supported"),
    ("lion", {"weight_decay": 0.5}, "weight_decay is not an option of optimizer 'lion'"),
])
def test_options_that_an_optimizer_rejects_are_value_errors(name, options, message):
    with pytest.raises(ValueError, match=message):
        build_optimizer(Ours(), name, options=options)


@pytest.mark.parametrize("name", [*optimizer_classes(), *list_optimizers(exclude_filters=UNSUPPORTED_OF_TIMM)])
def test_the_defaults_of_every_optimizer_are_accepted_and_text_for_true_or_false_is_not(name):
    made = optimizer_classes().get(name)
    parameters = inspect.signature(made or get_optimizer_info(name).opt_class).parameters
    defaults = {key: each.default for key, each in parameters.items() if key not in ("params", "lr", "weight_decay")}
    check_options(name, defaults, parameters)
    if not made:
        check_options(name, get_optimizer_info(name).defaults or {}, parameters)
    switches = [key for key, value in defaults.items() if isinstance(value, bool) or key in ("foreach", "fused")]
    for key in switches:
        with pytest.raises(ValueError, match=f"options.{key}=off of optimizer '{name}' must be true or false"):
            check_options(name, {key: "off"}, parameters)


def test_rate_and_decay_are_no_options_of_an_optimizer():
    accepted = inspect.signature(torch.optim.AdamW).parameters
    for option in ("lr", "weight_decay", "params"):
        with pytest.raises(ValueError, match=f"optimizer 'adamw' has no option '{option}'; nearest: "):
            check_options("adamw", {option: 0.1}, accepted)
    check_options("adamw", {"betas": (0.9, 0.95)}, accepted)


def test_a_fused_kernel_needs_floating_point_and_a_device_that_has_one():
    weight, number, meta = torch.zeros(2), torch.zeros(2, dtype=torch.int64), torch.zeros(2, device="meta")
    assert fusable([weight, weight.half()], torch.optim.SGD)
    assert not fusable([weight, number], torch.optim.SGD) and not fusable([meta, weight], torch.optim.AdamW)
