"""Invalid input: one line that names the file or key, the numbers and the fix, before training starts; exit code not
0.
"""

import os
import re
import sys

import pytest
import torch
from pytorch_lightning import Callback
from safetensors.torch import save_file

import vit
from tests.run.conftest import SMALL, run, start, write_photos, write_questions
from vit.cli import main as vit_main
from vit.run import main

QUICK = ["recipe.epochs=2", "precision=32-true", "logger=csv", "report=false"]


@pytest.fixture
def refused(capsys, tmp_path, monkeypatch):
    """refused(arguments, code, *texts): the command ends with `code` and one line with all of `texts`; no file is left.
    """
    monkeypatch.chdir(tmp_path)

    def check(overrides, code, *texts, stopped=True):
        capsys.readouterr()
        before = set(tmp_path.rglob("*"))
        assert main([*map(str, overrides)]) == code
        printed = capsys.readouterr().err
        assert printed.startswith("error: ") and printed.count("\n") == 1, printed
        for text in texts:
            assert text in printed
        if not stopped:
            return
        assert not [
            path for path in set(tmp_path.rglob("*")) - before if path.name != "runs" and path.parent.name != "runs"
        ]
        assert not list(tmp_path.rglob("*.ckpt"))

    return check


def folder_overrides(root, *more):
    return ["data=folder", f"data.root={root}", *SMALL, *QUICK, *more]


def test_missing_folder_and_table(refused, tmp_path):
    refused(folder_overrides(tmp_path / "nowhere"), 1, f"data.root: {tmp_path / 'nowhere'} does not exist\n")
    refused(["data=table", "data.path=nowhere.csv"], 1, f"data.path: nowhere.csv does not exist in {tmp_path}\n")
    refused(["data=mnist"], 1, "data.root: data/mnist does not exist", "(data.download=true downloads it)")
    refused(["data=folder"], 2, "data.root must be given: add data.root=VALUE")


def test_a_path_that_the_shell_splits_at_its_spaces(refused, tmp_path):
    (tmp_path / "my photos 2024").mkdir()
    split = ["data=folder", "data.root=my", "photos", "2024"]
    refused(split, 2, """quote a path that contains spaces: "data.root='my photos 2024'"\n""")
    refused(["-m", *split, "seed=1,2"], 2, "quote a path that contains spaces")
    (tmp_path / "photos").mkdir()
    refused(["data=folder", "data.root=your", "photos"], 2, "'photos' is not of the form key=value")


def test_empty_class(refused, photos):
    (photos / "yak").mkdir()
    refused(
        folder_overrides(photos),
        1,
        "photos: 1 of 4 classes has no training image ('yak')",
        "add images or remove the class",
    )


def test_one_class_only(refused, tmp_path):
    root = write_photos(tmp_path / "photos", {"cat": 12})
    refused(folder_overrides(root), 1, "found 1 class ('cat')", "at least 2", "its own folder")


def test_label_out_of_range(refused, tmp_path, photos):
    files = sorted(str(path) for path in photos.rglob("*.png"))
    lines = [f"{path},{i % 3}" for i, path in enumerate(files)]
    lines[7] = f"{files[7]},3"
    (tmp_path / "labels.csv").write_text("\n".join(["path,label", *lines]) + "\n")
    overrides = ["data=table", "data.path=labels.csv", "data.classes=[a,b,c]", *SMALL, *QUICK]
    refused(overrides, 1, "labels.csv row 7: label 3 is out of range for 3 classes (0..2)", "1 of 42 labels")


def test_image_size_and_patch(refused):
    refused(["data.image_size=100", "data.patch_size=16"], 2, "100", "16", "96", "112")
    refused(["model.dim=65"], 2, "dim 65 is not divisible by num_heads 2", "64")


def test_model_that_does_not_fit_the_data(refused):
    refused(["model.in_chans=1"], 2, "model.in_chans=1", "in_chans 3", "data.preprocessing.mode")
    refused(["model.image_size=16"], 2, "model.image_size=16", "[8, 8]", "it is set by data.image_size")
    texts = ["data=spelled_numbers", "data.train=40", "data.val=10", "data.test=10", "model.dim=32"]
    refused([*texts, "model.max_len=3"], 2, "model.max_len=3", "max_len 128", "data.max_source_len")
    refused([*texts, "model.vocab_size=9"], 2, "model.vocab_size=9", "vocab_size 261", "tokens of the tokenizer")
    refused(["data.preprocessing.mode=CMYK"], 2, "data.preprocessing.mode=CMYK: must be one of RGB, L")
    refused(["data.preprocessing.mean=[0.5,0.5]"], 2, "mode RGB has 3 channels, but mean has 2")


@pytest.mark.parametrize(("overrides", "texts"), [
    (["recipe.batch_size=null"], ["recipe.batch_size=null: must be a number of samples"]),
    (["recipe.batch_size=64.0"], ["recipe.batch_size=64.0: must be a whole number"]),
    (["model.name=null"], ["model.name=null: must be a string, such as vit_tiny"]),
    (["model=timm", "model.name=resnet18", "data.patch_size=2"], ["data.patch_size=2 has no effect on a model of ti"]),
    (["experiment=mae", "data=digits", "data.image_size=8", "model.patch_size=2", "data.patch_size=4"],
     ["data.patch_size=4 is for models without a patch size, but this one has patches of 2x2"]),
    (["recipe.augment=randaugment"], ["recipe.augment=randaugment: did you mean augment=randaugment?"]),
    (["experment=mnist"], ["unknown key experment; did you mean experiment?"]),
    (["+recipe.augment.policy=flip"], ["recipe.augment.policy=flip: did you mean augment=flip?"]),
    (["recipe.augment.affine=3"], ["recipe.augment.affine=3", "such as recipe.augment.affine._target_"]),
    (["+recipe.augment.mine=3"], ["recipe.augment.mine=3: must be null, or a node with the _target_ of a step"]),
    (["recipe.augment.affine._target_=vit.data.RandomAfine"],
     ["recipe.augment.affine._target_=vit.data.RandomAfine: there is no such class",
      "did you mean vit.data.RandomAffine?"]),
    (["+recipe.augment.affine.degres=3"], ["recipe.augment.affine.degres: vit.data.RandomAffine has no parameter",
                                           "did you mean degrees?"]),
    (["+recipe.augment.erase={_target_: json}"], ["recipe.augment.erase._target_=json: is neither a class nor"]),
    (["recipe.mixup={mixup: 0.2, cutmx: 1.0}"], ["recipe.mixup.cutmx: there is no such key; did you mean cutmix?"]),
    (["+logger.mine=3"], ["logger.mine=3: must be null, or a node with the _target_ of a logger"]),
    (["recipe=finetune", "recipe.crop.scale=0.5"], ["recipe.crop.scale=0.5: must be a list of 2 numbers"]),
    (["recipe=finetune", "recipe.crop.ratio=[2,1]"], ["recipe.crop.ratio=[2, 1] must be [low, high]"]),
    (["recipe=finetune", "recipe.crop.ratio=null"], ["recipe.crop.ratio=None must be [low, high]"]),
    (["recipe=text"], ["this recipe has no key augment, so it is not for task=classification"]),
    (["recipe=mae"], ["this recipe has no key loss"]),
    (["data=digit_strips", "task=text_classification"], ["data=digit_strips has pairs", "needs labelled texts",
                                                         "task=seq2seq"]),
    (["data=spelled_numbers", "task=classification", "recipe=scratch", "model=tiny"], ["needs images", "task=seq2seq"]),
    (["data=text_table", "recipe.batch_size=auto"], ["recipe.batch_size=auto is for images", "trains on texts"]),
    (["data=text_table", "recipe.ema=auto"], ["recipe.ema=auto is for images", "trains on texts"]),
])
def test_a_part_of_the_config_that_does_not_fit_the_task(refused, overrides, texts):
    refused([*overrides, *QUICK], 2, *texts)


@pytest.mark.parametrize(("overrides", "texts"), [
    (["model=tiny", "model.vocab_size=3"], ["the model has no option 'vocab_size'"]),
    (["model=tiny", "model.dim=100"], ["dim 100 is not divisible by num_heads 3; nearest dim: 99, 102"]),
    (["model=tiny", "model.dim=100", "init_from=timm:vit_tiny_patch16_224"], ["dim 100 is not divisible by num_heads"]),
    (["model.pool=mean", "distill=token", "distill.teacher=timm:resnet18"], ["model.dist_token=true needs"]),
    (["model.image_size=64"], ["model.image_size=64, but the data has image_size [224, 224]"]),
    (["data.image_size=32", "data.patch_size=5"], ["image_size 32 is not divisible by patch_size 5"]),
    (["model=timm", "model.name=resnet1888"], ["timm has no model 'resnet1888'; nearest: timm:resnet18"]),
    (["recipe.progressive.image_size=[60,64]", "data.image_size=64"], ["image_size 60 is not divisible by patch_size"]),
    (["recipe.progressive.image_size=[32,64]", "data.image_size=64", "model.positions=relative"],
     ["recipe.progressive.image_size: positions=relative"]),
    (["recipe.progressive.patch_drop=[0.5,0]", "model.patch_dropout=0.2"], ["both drop patches; set one of them"]),
    (["recipe.progressive.image_size=[112,224]", "model=timm", "model.name=resnet18"], ["not for timm models"]),
    (["recipe.schedule.name=noam", "model=timm", "model.name=resnet18"], ["width of the model, which models of timm"]),
    (["recipe.optimizer.lr=null"], ["recipe.optimizer.lr is null, but recipe.schedule.name=cosine needs a rate"]),
    (["data.cache=device", "data.workers=2", "recipe.crop=null"], ["data.workers=2 has no effect with data.cache=d"]),
    (["data.cache=device", "recipe.crop={scale: [0.5,1], ratio: null}"], ["recipe.crop cuts random boxes"]),
    (["strategy=ddp", "+strategy.options.foo=1"], ["strategy=ddp has no option foo"]),
    (["experiment=mae", "model.decoder_dim=33"], ["decoder_dim 33 is not divisible by"]),
    (["experiment=mae", "model.name=vit_tiny"], ["model=vit_tiny: task=masked_image trains masked autoencoders"]),
    (["init_from=timm:vit_tinyy_patch16_224"], ["timm:vit_tinyy_patch16_224: timm", "nearest: timm:vit_tiny_patch16_"]),
    (["distill=soft", "distill.teacher=timm:resnet1888"], ["distill.teacher=timm:resnet1888: timm", "timm:resnet18"]),
    (["+recipe.optimizer.options.betaz=1"], ["optimizer 'adamw' has no option 'betaz'; nearest: betas"]),
    (["recipe.optimizer.name=lamb", "+recipe.optimizer.options.betaz=1"], ["'lamb' has no option 'betaz'"]),
    (["+recipe.mixup.cutmx=1"], ["recipe.mixup.cutmx: there is no such key; did you mean cutmix?"]),
    (["recipe=finetune", "recipe.crop.ratio=[2,1]"], ["recipe.crop.ratio=[2, 1] must be [low, high]"]),
    (["+callbacks.patence=1"], ["callbacks.patence=1: no such option; did you mean patience?"]),
    (["+logger.mine._target_=pytorch_lightning.loggers.WandbLoger"], ["did you mean pytorch_lightning.loggers.Wandb"]),
    (["+logger.mine._target_=pytorch_lightning.loggers.CSVLogger"], ["CSVLogger needs a value for save_dir; add +lo"]),
    (["+logger.mine={_target_: pytorch_lightning.loggers.CSVLogger, save_dir: logs, nme: a}"], ["did you mean name?"]),
])
def test_a_mistake_is_reported_before_the_images_are_read(refused, tmp_path, overrides, texts):
    """Reading this folder would be another error."""
    (tmp_path / "photos").mkdir()
    refused(["data=folder", f"data.root={tmp_path / 'photos'}", *overrides, *QUICK], 2, *texts)


@pytest.mark.parametrize(("data", "overrides", "texts"), [
    ("text_table", ["model.dim=65"], ["dim 65 is not divisible by num_heads 4"]),
    ("text_table", ["recipe.optimizer.lr=null"], ["recipe.optimizer.lr is null"]),
    ("text_table", ["model.tied=all"], ["the model has no option 'tied'"]),
    ("parallel", ["model.dim=65"], ["dim 65 is not divisible by num_heads 4"]),
    ("parallel", ["model.pool=mean"], ["the model has no option 'pool'"]),
    ("image_text", ["model=seq2seq"], ["model.tied=all needs source=text"]),
    ("corpus", ["model.dim=65"], ["dim 65 is not divisible by num_heads 4"]),
])
def test_a_mistake_is_reported_before_the_texts_are_read(refused, tmp_path, data, overrides, texts):
    """Reading this file or folder would be another error."""
    key, path = "path" if data in ("text_table", "image_text") else "root", tmp_path / "texts"
    path.mkdir() if key == "root" else path.write_text("")
    refused([f"data={data}", f"data.{key}={path}", *overrides, *QUICK], 2, *texts)


def test_a_recipe_of_translation_is_refused_for_text_classification(refused, tmp_path):
    table = write_questions(tmp_path / "questions.csv")
    refused(["task=text_classification", "data=text_table", table, "recipe=sequence", *QUICK], 2,
            "this recipe has no key loss.name, so it is not for task=text_classification")


@pytest.mark.parametrize(("name", "option"), [
    ("lars", "betas=[0.5,0.6]"), ("lion", "eps=0.1"), ("lamb", "momentum=0.5"), ("lookahead_lamb", "momentum=0.5")])
def test_an_option_that_an_optimizer_of_timm_drops(refused, name, option):
    refused([f"recipe.optimizer.name={name}", f"+recipe.optimizer.options.{option}", *QUICK], 2,
            f"optimizer '{name}' has no option '{option.partition('=')[0]}'")


def test_unreadable_image(refused, photos):
    (photos / "dog" / "003.png").write_bytes(b"<html>not found</html>")
    (photos / "emu" / "001.png").write_bytes(b"")
    refused(
        folder_overrides(photos),
        1,
        "dog/003.png: cannot be opened",
        "2 of 42 images are unreadable",
        "data.on_bad_sample=skip",
    )


def test_unreadable_image_beyond_the_time_limit_of_the_audit(photos, tmp_path, capfd, monkeypatch):
    """Found by the first epoch, in a worker, with the same line; nothing but the error is on standard error."""
    monkeypatch.setattr("vit.data.images.dataset.ImageDataset._fits", lambda self, limit: False)
    for path in (photos / "dog").iterdir():
        whole = path.read_bytes()
        path.write_bytes(whole[: len(whole) // 2])
    overrides = folder_overrides(photos, "data.audit_seconds=0", "data.workers=1", f"run_dir={tmp_path / 'run'}")
    code, err = main(overrides), capfd.readouterr().err
    assert code == 1 and re.fullmatch(
        r"error: dog/\d+\.png: cannot be decoded .*; remove it, or .*data\.on_bad_sample=skip\n", err
    ), err


def test_checkpoint_of_another_shape(refused, tmp_path):
    network = vit.create_model("vit_tiny", image_size=8, patch_size=4, num_classes=10, depth=2)
    torch.save(network.state_dict(), tmp_path / "tiny.pth")
    overrides = ["init_from=tiny.pth", "model=micro"]
    refused(overrides, 2, "init_from=tiny.pth", "192", "64", "here: the model has another size")
    save_file({"something.weight": torch.zeros(3)}, tmp_path / "odd.safetensors")
    refused(["init_from=odd.safetensors"], 2, "init_from=odd.safetensors", "not those of a known", "something.weight")
    (tmp_path / "broken.pth").write_bytes(b"no weights")
    refused(["init_from=broken.pth"], 2, "init_from=broken.pth: the file is of no known format")
    (tmp_path / "broken.safetensors").write_bytes(b"no weights")
    refused(["init_from=broken.safetensors"], 2, "init_from=broken.safetensors", "no known format")
    refused(["init_from=nowhere"], 2, "init_from=nowhere: no such file or folder", "timm:NAME")
    refused(["init_from=timm:resnet_18"], 2, "has no such model; nearest: timm:resnet18")
    (tmp_path / "empty").mkdir()
    refused(["init_from=empty"], 2, "init_from=empty: the folder holds no known file of weights", "model.safetensors")


def test_weights_that_cannot_be_fetched(refused):
    refused(
        ["init_from=timm:test_vit.r160_in1k"],
        2,
        "init_from=timm:test_vit.r160_in1k: its weights could not be fetched",
        "use a file or folder of this machine",
        "to train without pretrained weights: data=folder",
    )


def test_no_permission(refused, tmp_path):
    """Also as root, to whom permissions do not apply: a file instead of a folder, and a read-only file system."""
    (tmp_path / "file").write_text("")
    refused(
        ["run_dir=file/run"], 2, "run_dir=file/run: cannot write there", "Not a directory", "choose another run_dir"
    )
    refused(["run_dir=/proc/run"], 2, "run_dir=/proc/run: cannot write there", "choose another run_dir")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "checkpoints").write_text("")
    refused(["run_dir=mine"], 2, "run_dir=mine: cannot write there")


@pytest.mark.parametrize(
    ("overrides", "code", "texts"),
    [
        (["recipe.epoch=3"], 2, ["unknown key recipe.epoch", "recipe.epochs"]),
        (["+recipe.foo=2"], 2, ["unknown key recipe.foo"]),
        (["+foo=2"], 2, ["unknown key foo"]),
        (["~recipe.mixup"], 2, ["recipe.mixup=null"]),
        (["++trainer.prescision=1"], 2, ["unknown key trainer.prescision"]),
        (["+data.rot=x"], 2, ["data.rot: vit.data.digits has no parameter 'rot'"]),
        (["data=folder", "data.root=.", "+data.progress=x"], 2, [
            "data.progress: vit.data.folder has no parameter 'progress'"]),
        (["model.dpth=3"], 2, ["the model has no option 'dpth'", "depth"]),
        (["data=folder", "data.root=.", "model.num_head=3"], 2, ["no option 'num_head'", "num_heads"]),
        (["experiment=spelled_numbers", "model.decoder_dept=3"], 2, ["no option 'decoder_dept'", "decoder_depth"]),
        (["model=seq2seq"], 2, ["model.name=encoder_decoder is a model of texts", "model=small"]),
        (["data=folder", "data.root=.", "model=bert"], 2, ["model.name=masked_text is a model of texts"]),
        (["model.name=vit_tinny"], 2, ["no model 'vit_tinny'", "vit_tiny"]),
        (["model=timm", "model.name=resnet_18"], 2, ["timm:resnet18"]),
        (["model.name=vit_small_patch4_8"], 2, [
            "model.name=vit_small_patch4_8 has model.dim=384 model.depth=12 model.num_heads=6",
            "sets dim=64, depth=4, num_heads=2; add model=small"]),
        (["model=micro", "model.name=vit_so400m", "model.dim=1152"], 2, [
            "model.name=vit_so400m has model.depth=27 model.num_heads=16", "add model=base"]),
        (["recipe.mixup={mixup: 0.5, sitch: 1}"], 2, ["recipe.mixup", "sitch"]),
        (["recipe.optimizer.name=adamv"], 2, ["recipe.optimizer: unknown optimizer 'adamv'; nearest: adam"]),
        (["recipe.optimizer.name=adamp", "strategy=fsdp"], 2,
         ["recipe.optimizer: strategy=fsdp cannot shard", "use strategy=ddp"]),
        (["recipe.optimizer.lr=fast"], 2, ["recipe.optimizer.lr=fast"]),
        (["recipe.optimizer.options={beta: 1}"], 2, ["recipe.optimizer", "beta"]),
        (["recipe.schedule.name=cosin"], 2, ["cosin", "cosine"]),
        (["recipe.loss.name=ce"], 2, ["recipe.loss.name=ce", "cross_entropy"]),
        (["recipe.augment.affine.degrees=-1"], 2, ["recipe.augment.affine", "degrees=-1"]),
        (["recipe.augment.affine._target_=vit.data.Afine"], 2, ["recipe.augment.affine", "Afine"]),
        (["precision=64-true"], 2, ["precision=64-true", "32-true, bf16-mixed, bf16-residual, 16-mixed"]),
        (["precision=bf16-mixd"], 2, ["precision=bf16-mixd", "bf16-mixed"]),
        (["precision=16-mixed", "trainer.accelerator=cpu"], 2, ["float16", "bf16-mixed"]),
        (["trainer.max_time=soon"], 2, ["trainer.max_time=soon", "00:01:30:00"]),
        (["experiment=mae", "data=digits", "model.name=5"], 2, ["model.name=5: must be a string"]),
        (["model.qkv_bias=off"], 2, ["model.qkv_bias=off: must be true or false"]),
        (["trainer.max_time=0"], 2, ["trainer.max_time=0", "00:01:30:00"]),
        (["trainer.accelerator=gpuu"], 2, ["trainer.accelerator=gpuu", "cpu"]),
        (["trainer.devices=0"], 2, ["trainer.devices=0"]),
        (["callbacks.monitor=val/acuracy"], 2, ["callbacks.monitor=val/acuracy", "val/accuracy"]),
        (["callbacks.mode=up"], 2, ["callbacks.mode=up", "val/accuracy is best where it is highest (max)"]),
        (["callbacks.monitor=val/loss", "callbacks.mode=max"], 2, ["callbacks.mode=max", "val/loss", "lowest (min)"]),
        (["task.mode=max"], 2, ["task.mode is no longer a key", "follows from callbacks.monitor"]),
        (["data.balance=samplr"], 2, ["data.balance=samplr", "sampler"]),
        (["data.workers=many"], 2, ["data.workers=many", "auto"]),
        (["data.on_bad_sample=ignore"], 2, ["data.on_bad_sample=ignore", "skip"]),
        (["recipe.batch_size=2000"], 2, ["recipe.batch_size=2000", "1,257", "recipe.batch_size="]),
        (["recipe.batch_size=0"], 2, ["recipe.batch_size=0"]),
        (["recipe.epochs=0"], 2, ["recipe.epochs=0"]),
        (["data=spelled_numbers", "augment=flip"], 2, ["recipe.augment (hflip) is for images"]),
        (["recipe.batch_size=63", "trainer.devices=2", "strategy=ddp"], 2, ["recipe.batch_size=63", "2 devices", "62"]),
        (["recipe.batch_size=64", "recipe.accumulate=5"], 2, ["recipe.batch_size=64", "recipe.accumulate=5", "65"]),
        (
            ["trainer.devices=2", "trainer.accelerator=cpu"],
            2,
            ["strategy=single uses 1 device", "trainer.devices=2", "strategy=ddp"],
        ),
        (["resume=nowhere"], 2, ["resume=nowhere: no such run folder or checkpoint"]),
        (["logger=wandb", "++logger.wandb._target_=pytorch_lightning.loggers.NoLogger"], 2, ["logger", "NoLogger"]),
        (["seed=1,2"], 2, ["-m"]),
        (["--fast"], 2, ["unknown option --fast"]),
        (["-m", "seed=1,2", "recipe.epoch=3"], 2, ["recipe.epochs"]),
        (["-m", "recipe.optimizer.name=adamw,adamww"], 2, ["recipe.optimizer: unknown optimizer 'adamww'; nearest"]),
        (["-m", "model.pool=mean,men"], 2, ["model.pool=men: must be one of", "did you mean mean?"]),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) and "=" in value[0] else "",
)
def test_invalid_overrides(refused, overrides, code, texts):
    refused(overrides, code, *texts)


def test_a_config_is_checked_before_processes_start(refused, monkeypatch):
    monkeypatch.setattr("vit.run.training_run.run_ranks", lambda *arguments: pytest.fail("processes were started"))
    devices = ["trainer.devices=2", "trainer.accelerator=cpu", "strategy=ddp"]
    refused(["recipe.batch_size=63", *devices], 2, "recipe.batch_size=63", "2 devices", "62")
    refused(["data=spelled_numbers", "distill=soft", *devices], 2, "distill=soft", "has no teacher")


@pytest.mark.parametrize("name", ["mlflow", "wandb"])
def test_a_tracker_that_is_not_installed_is_named_before_the_data_is_read(refused, monkeypatch, name):
    monkeypatch.setitem(sys.modules, name, None)
    error = f"logger.{name} needs the package {name}, which is not installed: pip install 'vitwright[{name}]'"
    for data in (["data=folder", "data.root=."], ["data=parallel", "data.root=."], ["data=corpus"]):
        refused([f"logger={name}", *data], 2, error)


def test_more_devices_than_there_are(refused):
    there = torch.cuda.device_count()
    if there:
        refused(
            [f"trainer.devices={there + 1}"],
            2,
            f"trainer.devices={there + 1}",
            f"{there} GPUs",
            "trainer.accelerator=cpu",
        )
    else:
        refused(["trainer.accelerator=gpu"], 2, "trainer.accelerator=gpu: this machine has no CUDA device; use cpu")


def test_no_images_for_validation(refused, photos):
    refused(
        folder_overrides(photos, "data.fractions=[0.8,0.0,0.2]"),
        1,
        "photos: 0 of its 30 images are for validation",
        "data.fractions",
    )
    refused(folder_overrides(photos, "data.fractions=[0.5,0.1,0.1]"), 2,
            "data.fractions=[0.5, 0.1, 0.1] must be three numbers")


class Raises(Callback):
    """A callback of the user."""

    def __init__(self, text: str) -> None:
        self.text = text

    def on_train_start(self, *arguments: object) -> None:
        raise RuntimeError(self.text)


@pytest.mark.parametrize(("text", "kind", "message"), [
    ("a tensor has another shape", RuntimeError, "a tensor has another shape"),
    ("CUDA out of memory", MemoryError, "out of memory with recipe.batch_size=64"),
])
def test_an_error_of_a_run_with_a_target_of_the_user_is_its_own(tmp_path, text, kind, message):
    """Not one about the recorded config, which is read for the batch size, and names a target that is not of the
    project.
    """
    target = f"{Raises.__module__}.{Raises.__name__}"
    with pytest.raises(kind, match=message):
        vit.train([f"+callbacks.own={{_target_: {target}, text: {text}}}", "logger=csv", f"run_dir={tmp_path}"])


def test_a_model_too_large_for_the_memory(refused):
    """A real allocation beyond the memory of any machine: a width of eight million in the MLPs."""
    refused(
        ["model.mlp_ratio=500000000"],
        1,
        "out of memory with recipe.batch_size=64",
        "vit_micro",
        "8x8",
        "lower recipe.batch_size",
    )


def test_a_folder_that_is_in_use_or_done(refused, tmp_path):
    first = start(["recipe.epochs=1000", "precision=32-true", "logger=csv", "report=false", "run_dir=mine"], tmp_path)
    try:
        while not (tmp_path / "mine" / "checkpoints" / "last.ckpt").exists():
            assert first.poll() is None, first.communicate()
        refused(
            ["run_dir=mine"],
            2,
            "error: run_dir=mine: another run is writing there; wait until it has ended to resume it, or choose "
            "another run_dir\n",
            stopped=False,
        )
        refused(["resume=mine"], 2, "another run is writing there", stopped=False)
    finally:
        os.killpg(first.pid, 9)
        first.communicate()
    overrides = ["resume=mine", "recipe.epochs=0"]
    assert main(["run_dir=mine"]) == 2 and main(overrides) == 2  # it is unfinished, after one epoch


def test_commands_end_with_these_codes_and_one_line(tmp_path):
    code, out, err = run(["recipe.epoch=3"], tmp_path)
    assert (
        (code, out) == (2, "")
        and err.startswith("error: unknown key recipe.epoch; did you mean")
        and err.count("\n") == 1
    )


def test_the_other_entry_point_reports_the_same(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert vit_main(["train", "recipe.epoch=3"]) == 2
    assert capsys.readouterr().err.startswith("error: unknown key recipe.epoch; did you mean recipe.epochs?")
    assert vit_main(["audit", "data=folder", "data.root=nowhere"]) == 1


@pytest.mark.parametrize("earlier", [None, "", "0"])
def test_debug_applies_to_one_command(monkeypatch, earlier):
    monkeypatch.setenv("VIT_DEBUG", "x")
    os.environ.pop("VIT_DEBUG")
    os.environ.update({} if earlier is None else {"VIT_DEBUG": earlier})
    during = []
    monkeypatch.setattr("vit.run.training_run.train_composed", lambda *_: during.append(os.environ["VIT_DEBUG"]))
    assert main(["--debug", "recipe.epochs=2"]) == 0 and during == ["1"]
    assert os.environ.get("VIT_DEBUG") == earlier


def test_line_images_have_a_limit_of_pixels(capsys, tmp_path):
    write_photos(tmp_path, {"x": 3})
    (tmp_path / "labels.csv").write_text("file,text\n" + "".join(f"x/{path.name},a\n" for path in tmp_path.glob("x/*")))
    overrides = ["audit", "data=image_text", f"data.path={tmp_path / 'labels.csv'}"]
    assert vit_main(overrides) == 0
    assert vit_main([*overrides, "data.preprocessing.max_pixels=10"]) == 1
    assert "pixels are more than max_pixels=10" in "".join(capsys.readouterr())


def test_an_error_with_debug_has_a_traceback(monkeypatch):
    monkeypatch.setenv("VIT_DEBUG", "")  # which the command sets; afterwards it is as before
    with pytest.raises(ValueError, match="recipe.epochs"):
        main(["recipe.epoch=3", "--debug"])


@pytest.mark.parametrize("overrides", [
    ["recipe.optimizer.lr=1e30", "recipe.clip=null", "recipe.schedule.warmup=0", "recipe.ema=null"],
    ["recipe.optimizer.lr=1e10"],
])
def test_a_rate_that_destroys_the_model_stops_the_run(overrides, capsys, tmp_path):
    assert main([*overrides, *QUICK, f"run_dir={tmp_path / 'run'}"]) == 1
    printed = capsys.readouterr().err
    assert printed.startswith("error: ") and "Lower the learning rate" in printed and printed.count("\n") == 1
    assert "Traceback" in (tmp_path / "run" / "log.txt").read_text() and not (tmp_path / "run" / "model").exists()
