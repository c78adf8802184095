"""From overrides to the config: the groups fit together, and an invalid override names the nearest valid one."""

from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import takewhile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from timm.data import IMAGENET_DEFAULT_MEAN
from timm.data.auto_augment import rand_augment_transform
from torchvision.transforms import v2 as T

from vit.data import Preprocessing
from vit.run.config.composing import ConfigError, chosen_option, compose, resolve
from vit.run.config.groups import options
from vit.run.config.overrides import sweep

ROOT = Path(__file__).parents[2]


def test_default_is_digits_with_matching_model_and_recipe():
    config = resolve(compose([]))
    assert (config["data"]["name"], config["model"]["name"], config["recipe"]["epochs"]) == ("digits", "vit_micro", 100)
    assert config["name"] == "digits"


def test_data_selects_model_and_recipe_unless_overrides_do():
    assert compose(["data=cifar10"]).recipe.augment.shift.padding == 4
    assert compose(["data=cifar10", "recipe=scratch"]).recipe.crop.scale == [0.2, 1.0]
    assert compose(["data=digits", "model=small"]).model.name == "vit_small"


def test_the_imagenet_recipe_has_the_strength_of_its_paper():
    """big_vision's `randaug(2,10)` on a scale of 10, which rotates by 30 degrees at most, as `RandAugment(2, 30)`."""
    policy = compose(["recipe=imagenet"]).recipe.augment.policy
    assert (policy.num_ops, policy.magnitude / 30) == (2, 10 / 10)


@pytest.mark.parametrize(("recipe", "lr", "last", "steps"), [
    ("deit", 5e-4 * 1024 / 512, 1e-5, 5 / 300), ("deit3", 3e-3, 1e-5, 5 / 800),
    ("mae_finetune", 5e-4 * 1024 / 256, 1e-6, 5 / 100), ("mae_linear", 0.1 * 16384 / 256, 0, 10 / 90),
    ("mae", 1.5e-4, 0, 40 / 800), ("imagenet", 1e-3, 0, 10_000),
])
def test_the_recipes_of_papers_have_their_rates(recipe, lr, last, steps):
    """The highest rate at the paper's batch size (MAE: 256 of 4,096 images), the last one, and the warm-up."""
    found = compose([f"recipe={recipe}"]).recipe
    base = found.optimizer.lr_base_batch
    assert found.optimizer.lr * (found.batch_size / base if base else 1) == pytest.approx(lr)
    assert found.schedule.final * lr == pytest.approx(last, rel=1e-3)
    assert found.schedule.warmup == pytest.approx(steps, rel=1e-3)


@pytest.mark.parametrize(("recipe", "policy"), [("deit", (2, 27, 1.5, 0.5)), ("mae_finetune", (2, 27, 1.5, 0.5))])
def test_rand_augment_of_deit_is_timms_by_name(recipe, policy):
    """Its `rand-m9-mstd0.5-inc1`: 9 and 0.5 on a scale of 10, and an operation is applied with probability 0.5."""
    found = compose([f"recipe={recipe}"]).recipe.augment.policy
    assert (found.num_ops, found.magnitude, found.std, found.p) == policy
    assert found.operations == "timm"
    assert list(found.fill) == [round(255 * mean) for mean in IMAGENET_DEFAULT_MEAN]
    theirs = rand_augment_transform("rand-m9-mstd0.5-inc1", {})
    op = theirs.ops[0]
    assert (theirs.num_layers, op.magnitude * 3, op.magnitude_std * 3, op.prob) == policy


@pytest.mark.parametrize("recipe", ["deit", "deit3", "mae_finetune", "mae_linear", "imagenet"])
def test_the_commands_of_papers_evaluate_as_their_code(recipe):
    """As torchvision's `Resize(int(size / 0.875), BICUBIC)` and `CenterCrop(size)`, in DeiT's and MAE's code, and in
    that of big_vision `resize_small(256)|central_crop(224)`.
    """
    lines = (ROOT / "conf" / "recipe" / f"{recipe}.yaml").read_text(encoding="utf-8").splitlines()
    first = next(i for i, line in enumerate(lines) if line.startswith("#   python train.py "))
    more = takewhile(lambda line: line.startswith("#     "), lines[first + 1:])
    overrides = [word for line in [lines[first], *more] for word in line.split() if "=" in word]
    config = compose(overrides)
    assert chosen_option(overrides, "recipe") == recipe
    size = config.data.image_size
    preprocessing = Preprocessing((size, size), crop_pct=config.data.preprocessing.crop_pct)
    image = Image.fromarray(np.random.default_rng(0).integers(0, 256, (300, 340, 3), dtype=np.uint8))
    theirs = T.CenterCrop(size)(T.Resize(int(size / 0.875), T.InterpolationMode.BICUBIC)(image))
    assert np.array_equal(preprocessing.fit(image), theirs)


def test_init_from_selects_the_recipe_of_fine_tuning_unless_one_is_named():
    folder = ["data=folder", "data.root=x"]
    for overrides, option in (
        (folder, "scratch"),
        ([*folder, "init_from=x"], "finetune"),
        ([*folder, "init_from=x", "recipe=scratch"], "scratch"),
        ([*folder, "init_from=x", "recipe=three_augment"], "three_augment"),
        (["data=digits", "init_from=x"], "digits"),
        ([*folder, "init_from=x", "task=masked_image", "model=mae"], "scratch"),
    ):
        assert chosen_option(overrides, "recipe") == option, overrides


@pytest.mark.parametrize("group", ["data", "model", "strategy", "logger", "augment"])
def test_every_option_composes(group):
    """Those of recipe, experiment and task are composed and resolved in test_ranges."""
    for name in options(group):
        compose([f"{group}={name}"])


@cache
def all_steps(*overrides):
    return compose([*overrides]).recipe.get("augment") or {}


def steps(*overrides):
    return {key: step for key, step in all_steps(*overrides).items() if step is not None}


@pytest.fixture(scope="module")
def steps_of_recipes():
    """The names of all steps of augmentation that recipes have, those that are null included."""
    return {key for recipe in options("recipe") for key in all_steps(f"recipe={recipe}")}


@pytest.mark.parametrize("name", options("augment"))
def test_an_augmentation_replaces_that_of_any_recipe_or_experiment(name, steps_of_recipes):
    """It sets each step that any recipe has, and comes after recipes, data sets and experiments."""
    assert steps_of_recipes and steps_of_recipes <= all_steps("recipe=scratch", f"augment={name}").keys()
    alone = steps("recipe=scratch", f"augment={name}")
    for choice in ["recipe=cifar", "recipe=three_augment", "experiment=mae", "data=mnist", "experiment=captcha"]:
        assert steps(choice, f"augment={name}") == alone, choice


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("recipe.epoch=3", "recipe.epochs"),
        ("data=digit", "digits"),
        ("modle=tiny", "model"),
        ("epochs=4", "recipe.epochs"),
        ("recipe.optimizer.options.betas=[0.9,0.95]", "+recipe.optimizer.options.betas"),
        ("seed=1,2", "-m"),
        ("digits", "key=value"),
    ],
)
def test_an_invalid_override_names_the_nearest_valid_one(override, message):
    with pytest.raises(ConfigError, match=".*") as error:
        compose([override])
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_a_missing_value_names_its_key():
    with pytest.raises(ConfigError, match=r"data\.root.*data\.root=VALUE"):
        resolve(compose(["data=folder"]))


def test_sweep_is_every_combination():
    jobs = sweep(["seed=0,1", "model=tiny,small", "recipe.epochs=2", "data.fractions=[0.5,0.2,0.3]"])
    assert len(jobs) == 4
    assert ["seed=1", "model=small", "recipe.epochs=2", "data.fractions=[0.5,0.2,0.3]"] in jobs


def test_threads_compose_at_once():
    """Hydra's global state holds one composition at a time: threads wait for each other."""
    before = options("data")
    with ThreadPoolExecutor(4) as threads:
        configs = list(threads.map(lambda epochs: compose([f"recipe.epochs={epochs}"]), range(1, 13)))
    assert [config.recipe.epochs for config in configs] == list(range(1, 13))
    assert options("data") == before


@pytest.mark.parametrize(("override", "message"), [
    ("recipe.crop.scale=[0.2,1]", r"recipe.crop is null here, so it has no key scale; write 'recipe.crop=\{scale: "),
    ("recipe.augment.extra=null", r"key recipe.augment.extra.*; write \+recipe.augment.extra=null for a new key"),
    ("data.image_size=[[8,8]]", "data.image_size=.*: must be a whole number"),
])
def test_a_key_that_does_not_exist_here(override, message):
    with pytest.raises(ConfigError, match=message):
        resolve(compose([override]))


@pytest.mark.parametrize("recipe", ["scratch", "mae", "text"])
def test_every_recipe_whose_log_names_drop_last_has_it(recipe):
    assert compose([f"recipe={recipe}", "recipe.drop_last=false"]).recipe.drop_last is False
