"""Recipe values that are `auto`: batch size, epochs and decay of the weight average, from the number of samples.

The rules, for N training samples:

- `batch_size`: the largest power of two up to N/16, so that an epoch has at least 16 steps, within 8 to 64.
- `epochs`: 30. Where these are fewer than 300 optimizer steps, more epochs, up to 100; where they are more than 20,000
  steps, fewer, down to 5.
- `ema`: the decay of an average with a time constant of a twentieth of all steps, within 10 to 5,000 steps.
- `drop_last`: the incomplete last batch of an epoch is dropped if it is less than 5 % of the data. Otherwise all
  batches become a little smaller, and each sample is used once per epoch.
"""

import logging
import math

from vit.run.config.composing import ConfigError

log = logging.getLogger("vit")

AUTO = "auto"
BATCH_SIZES, STEPS_PER_EPOCH = (8, 64), 16
EPOCHS = 30
MIN_STEPS, MAX_EPOCHS = 300, 100
MAX_STEPS, MIN_EPOCHS = 20_000, 5
EMA_FRACTION, EMA_STEPS = 0.05, (10, 5_000)  # time constant of the average: fraction of all steps, limits in steps
DROPPED = 0.05  # fraction of the data


def fit_recipe(config: dict, samples: int, world: int, unit: str = "images") -> dict:
    """Replaces each `auto` of the recipe by a number, in place, and logs them.

    In place, so that later error messages of the run name the batch size in use.

    Raises:
        ConfigError: an invalid `recipe.drop_last`.
    """
    recipe = config["recipe"]
    filled = [key for key in ("batch_size", "epochs", "ema") if recipe.get(key) == AUTO]
    if recipe.get("drop_last", True) not in (True, False, AUTO):
        raise ConfigError(f"recipe.drop_last={recipe['drop_last']}: must be true, false or auto")
    if recipe["batch_size"] == AUTO:
        recipe["batch_size"] = batch_size(samples, world * recipe["accumulate"])
    if recipe.get("drop_last", True) == AUTO:
        recipe["drop_last"] = samples % recipe["batch_size"] < DROPPED * samples
    if recipe["epochs"] == AUTO:
        recipe["epochs"] = epochs(steps_per_epoch(recipe, samples))
    steps = recipe["epochs"] * steps_per_epoch(recipe, samples)
    if recipe["ema"] == AUTO:
        recipe["ema"] = ema_decay(steps)
    if filled:
        values = ", ".join(f"{key} {recipe[key]}" for key in filled)
        log.info("recipe for %s training %s: %s; %s steps in all", f"{samples:,}", unit, values, f"{steps:,}")
    unused = samples % recipe["batch_size"] if recipe.get("drop_last", True) else 0
    if unused and steps:
        log.info("each epoch leaves %d of %s training %s out, different ones each time (an incomplete last batch; "
                 "recipe.drop_last=false uses them)", unused, f"{samples:,}", unit)
    return config


def batch_size(samples: int, multiple: int) -> int:
    """The global batch size of the rule above, a multiple of devices x micro-batches."""
    target = min(max(samples // STEPS_PER_EPOCH, BATCH_SIZES[0]), BATCH_SIZES[1])
    size = min(2 ** int(math.log2(target)), max(samples, 1))
    return max(round(size / multiple), 1) * multiple


def steps_per_epoch(recipe: dict, samples: int) -> int:
    """Optimizer steps per epoch."""
    return samples // recipe["batch_size"] if recipe.get("drop_last", True) else -(-samples // recipe["batch_size"])


def epochs(steps: int) -> int:
    """The number of epochs for this number of steps per epoch, by the rule above."""
    steps = max(steps, 1)
    if EPOCHS * steps < MIN_STEPS:
        return min(math.ceil(MIN_STEPS / steps), MAX_EPOCHS)
    return max(min(EPOCHS, MAX_STEPS // steps), MIN_EPOCHS)


def ema_decay(steps: int) -> float:
    """The decay of the weight average for this number of steps in all, by the rule above."""
    return round(1 - 1 / min(max(EMA_FRACTION * steps, EMA_STEPS[0]), EMA_STEPS[1]), 6)
