"""Which parameters each method of fine-tuning trains, and from which epoch on."""

import pytest
import timm
import torch

from vit.models import create_model, model_from_config
from vit.training.finetuning.finetune import Finetune, head_layer, train_only
from vit.training.optimization.optim import build_optimizer


def ours(depth=3, **options):
    return create_model(
        "vit_tiny", image_size=8, patch_size=4, num_classes=5, dim=16, depth=depth, num_heads=2, **options
    )


def timms(name="vit_tiny_patch16_224"):
    size = {"img_size": 8, "patch_size": 4, "embed_dim": 16, "depth": 3, "num_heads": 2} if "vit" in name else {}
    return timm.create_model(name, num_classes=5, **size)


def seq2seq():
    sizes = {"vocab_size": 11, "max_len": 9, "dim": 16, "depth": 2, "decoder_depth": 2, "num_heads": 2}
    return model_from_config({"kind": "encoder_decoder", **sizes})


def trained(model, **options):
    return set(Finetune(**options).start(model, epochs=10))


def names(model):
    return {name for name, _ in model.named_parameters()}


@pytest.mark.parametrize("make", [ours, timms, lambda: timms("test_resnet"), seq2seq])
def test_full_is_everything(make):
    model = make()
    assert trained(model) == names(model)


@pytest.mark.parametrize(
    ("make", "head"),
    [
        (ours, "head."),
        (timms, "head."),
        (lambda: timms("test_resnet"), "fc."),
        (lambda: timms("convnext_atto"), "head.fc."),
    ],
)
def test_the_head_alone(make, head):
    model = make()
    found = trained(model, trainable="head")
    assert found == {f"{head}weight", f"{head}bias"}
    assert {name for name, p in model.named_parameters() if p.requires_grad} == found


def test_the_head_of_a_seq2seq_model_is_its_decoder():
    found = trained(seq2seq(), trainable="head")
    assert found and all(name.startswith("decoder.") for name in found)  # the embedding is the encoder's as well (tied)


@pytest.mark.parametrize("make", [ours, timms])
def test_attention_is_as_in_deits_own_code(make):
    """Names with `.attn.`, the head, and the positions (facebookresearch/deit, `--attn-only`)."""
    model = make()
    expected = {n for n in names(model) if ".attn." in n or n.startswith("head.") or n.endswith("pos_embed")}
    assert trained(model, trainable="attention") == expected


def test_parameters_missing_from_the_source_are_trained_too():
    found = trained(ours(), trainable="head", always_trainable=["embed.proj"])
    assert found == {"head.weight", "head.bias", "embed.proj.weight", "embed.proj.bias"}


@pytest.mark.parametrize(
    ("options", "epochs", "expected"),
    [  # the epoch in which head, block 2, block 1, block 0 and embedding begin
        ({"unfreeze_epochs": 0.5}, 8, [0, 1, 2, 3, 4]),
        ({"unfreeze_epochs": 0.5}, 4, [0, 1, 1, 2, 2]),
        ({"unfreeze_epochs": 0.5}, 3, [0, 1, 1, 2, 2]),
        ({"unfreeze_epochs": 6}, 30, [0, 2, 3, 5, 6]),
        ({"unfreeze_epochs": 0}, 1, [0, 0, 0, 0, 0]),
        ({"unfreeze_epochs": 1}, 8, [0, 1, 1, 1, 1]),
        ({"unfreeze_epochs": 2, "depth": 2}, 5, [0, 1, 2, None, None]),
        ({"depth": 1}, 1, [0, 0, None, None, None]),
        ({"depth": 3}, 1, [0, 0, 0, 0, None]),
    ],
)
def test_blocks_are_unfrozen_from_the_head_down(options, epochs, expected):
    begins = Finetune(**options).begins(ours(depth=3), epochs)
    parts = ["head.weight", *(f"encoder.blocks.{i}.attn.qkv.weight" for i in (2, 1, 0)), "embed.proj.weight"]
    assert [begins.get(name) for name in parts] == expected
    assert begins.get("encoder.norm.weight") == expected[1] and begins.get("embed.pos_embed") == expected[4]


def test_only_what_is_not_trained_from_the_start_on_is_frozen():
    assert not Finetune().freezes and not Finetune(unfreeze_epochs=0).freezes
    assert Finetune(unfreeze_epochs=0.5).freezes and Finetune(depth=1, unfreeze_epochs=0).freezes


def test_gradual_unfreezing_finds_the_layers_of_timms_networks():
    begins = Finetune(unfreeze_epochs=4).begins(timms(), 8)
    assert [begins[n] for n in ("head.weight", "blocks.2.mlp.fc1.weight", "blocks.0.norm1.weight", "cls_token")] == [
        0, 1, 3, 4,
    ]  # fmt: skip
    begins = Finetune(unfreeze_epochs=4).begins(timms("test_resnet"), 8)
    assert begins["fc.weight"] == 0 and begins["conv1.0.weight"] == 4 and 0 < begins["layer4.0.conv1.weight"] < 4


def test_lora_matrices_are_unfrozen_with_their_blocks():
    model = ours(depth=3)
    lora = {"matrices": ["q"], "rank": 2, "alpha": 2.0, "dropout": 0.0}
    begins = Finetune("lora", "head", depth=2, unfreeze_epochs=2, lora=lora).start(model, 5)
    added = {name: epoch for name, epoch in begins.items() if name.endswith("lora.up")}
    assert added == {"encoder.blocks.2.attn.qkv.lora.up": 1, "encoder.blocks.1.attn.qkv.lora.up": 2}


def test_frozen_blocks_cost_no_backward_pass_and_behave_as_in_use():
    model = ours(depth=3, dropout=0.5, drop_path=0.5).train()
    begins = Finetune(depth=1).start(model, 1)
    seen = {}
    for i, block in enumerate(model.encoder.blocks):
        block.register_forward_hook(lambda module, inputs, output, i=i: seen.update({i: output.requires_grad}))
    images = torch.randn(2, 3, 8, 8)
    model(images).sum().backward()
    assert seen == {0: False, 1: False, 2: True}
    assert {name for name, p in model.named_parameters() if p.grad is not None} == set(begins)
    x = model.encoder.blocks[0](model.embed(images))
    assert torch.equal(x, model.encoder.blocks[0](model.embed(images)))
    assert not torch.equal(model.encoder.blocks[2](x), model.encoder.blocks[2](x))
    train_only(model, names(model))
    assert all(module.training for module in model.modules())
    assert not torch.equal(model.encoder.blocks[0](x), model.encoder.blocks[0](x))


@pytest.mark.parametrize(("options", "updated"), [
    ({"trainable": "head"}, False),
    ({"batch_norm": "frozen"}, False),
    ({"batch_norm": "frozen", "unfreeze_epochs": 2}, False),
    ({"batch_norm": "train"}, True),
])
def test_frozen_batch_norms_keep_their_statistics(options, updated):
    model = timms("test_resnet").train()
    Finetune(**options).start(model, 4)
    before = {name: buffer.clone() for name, buffer in model.named_buffers()}
    assert before and model.get_classifier().training
    model(torch.randn(4, 3, 32, 32)).sum().backward()
    assert all(torch.equal(buffer, before[name]) != updated for name, buffer in model.named_buffers())


@pytest.mark.parametrize("name", ["adamw", "sgd", "lion", "lamb"])
def test_frozen_parameters_have_no_optimizer_state_and_no_decay(name):
    """As in gradual unfreezing: the optimizer holds all parameters, those without a gradient stay as they are."""
    model = ours()
    finetune = Finetune(unfreeze_epochs=2)
    begins = finetune.start(model, 4)
    optimizer = build_optimizer(model, name, lr=0.1, weight_decay=0.5)
    train_only(model, {each for each, epoch in begins.items() if epoch <= 0})
    before = {each: p.detach().clone() for each, p in model.named_parameters()}
    for _ in range(2):
        model(torch.randn(2, 3, 8, 8)).sum().backward()  # of one sign: a step never takes another one back
        optimizer.step()
    moved = {each for each, p in model.named_parameters() if not torch.equal(p, before[each])}
    assert moved == {"head.weight", "head.bias"}
    held = {id(p) for p, state in optimizer.state.items() if state}
    assert {each for each, p in model.named_parameters() if id(p) in held} <= moved


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"trainable": "haed"}, r"trainable is haed, but must be one of all, attention, head; did you mean head\?"),
        ({"depth": 4}, "depth is 4, but the model has 3 blocks"),
        ({"depth": 0}, "depth is 0, but must be 1 or more"),
        ({"unfreeze_epochs": 10}, "unfreeze_epochs is 10: the last of 4 layers would be unfrozen in epoch 11 of 10"),
        ({"unfreeze_epochs": -1}, "unfreeze_epochs is -1"),
        ({"trainable": "head", "depth": 2}, "depth and unfreeze_epochs select trained blocks"),
        ({"head_init": "zero"}, "head_init is zero, but must be one of auto, fit, random"),
        ({"batch_norm": "none"}, "batch_norm is none, but must be one of auto, frozen, train"),
        ({"lora": {"matrices": ["q"]}}, "trainable is all; set trainable=head with it"),
    ],
)
def test_invalid_options_are_errors(options, message):
    with pytest.raises(ValueError, match=message):
        Finetune(**options).start(ours(), 10)


@pytest.mark.parametrize(("options", "message"), [
    ({"trainable": "head", "always_trainable": ["encoder.norm", "embd.proj"]},
     r"always_trainable has 'embd.proj', but no parameter has a name that begins with it; did you mean embed.proj\?"),
    ({"always_trainable": [1]}, "always_trainable has '1', but no parameter"),
])
def test_a_prefix_of_no_parameter_is_an_error(options, message):
    with pytest.raises(ValueError, match=message):
        Finetune(**options).start(ours(), 10)


def test_one_text_is_no_list_of_prefixes_or_matrices():
    """Its letters were the prefixes: "embed" trained all parameters that begin with e, m, b or d."""
    with pytest.raises(TypeError, match=r"always_trainable is one str, but takes several; .*=\['embed'\]"):
        Finetune("head", "head", always_trainable="embed")
    with pytest.raises(TypeError, match=r"lora.matrices is one str, but takes several; .*=\['proj'\]"):
        Finetune("lora", "head", lora={"matrices": "proj"}).start(ours(), 10)


def test_a_network_without_attention_or_head_is_an_error():
    with pytest.raises(ValueError, match="trainable is attention, but ResNet has no attention layers"):
        Finetune(trainable="attention").start(timms("test_resnet"), 10)
    with pytest.raises(ValueError, match="has no head to train"):
        Finetune(trainable="head").start(create_model("vit_tiny", image_size=8, patch_size=4, num_classes=0), 10)


@pytest.mark.parametrize("former, name, value", [
    ("trains", "trainable", "head"), ("always", "always_trainable", ("embed.",)), ("over", "unfreeze_epochs", 0.5),
])
def test_former_arguments_are_those_of_the_present_name(former, name, value):
    with pytest.warns(DeprecationWarning, match=f"{former}= is deprecated; use {name}="):
        found = Finetune(**{former: value})
    assert found == Finetune(**{name: value}) != Finetune()


def test_a_head_is_a_layer_only_where_it_is_one_linear_layer_with_a_bias():
    class Network(torch.nn.Module):
        def __init__(self, head):
            super().__init__()
            self.body, self.head = torch.nn.Linear(4, 4), head

    linear = torch.nn.Linear(4, 2)
    assert head_layer(Network(linear)) is linear
    for other in (torch.nn.Linear(4, 2, bias=False), torch.nn.Conv2d(4, 2, 1)):
        assert head_layer(Network(other)) is None
