"""Recipe values that are `auto`: batch size, epochs and average from the number of training samples.

The rules, for N training samples:

- `batch_size`: the largest power of two up to N/16, at least 8 and at most 64: an epoch has 16 steps or more.
- `epochs`: 30; more, up to 100, where that is less than 300 optimizer steps; fewer, down to 5, where it is more than
  20,000.
- `ema`: the average reaches back over a twentieth of all steps, 10 to 5,000 of them.
- `drop_last`: the incomplete batch of an epoch is dropped where it is less than 5 % of the set. Otherwise all batches
  are made a little smaller and each sample is used once per epoch.
"""

import logging
import math

from vit.run.config.composing import ConfigError

log = logging.getLogger("vit")

AUTO = "auto"
BATCH, STEPS_PER_EPOCH = (8, 64), 16
EPOCHS, FEWEST, MOST = 30, (300, 100), (20_000, 5)  # (steps, the epochs at most or at least)
SHARE, WINDOW = 0.05, (10, 5_000)  # of all steps, and in steps, that the average reaches back
DROPPED = 0.05  # of the set


def fit_recipe(config: dict, samples: int, world: int, unit: str = "images") -> dict:
    """Replaces each `auto` of the config's recipe, in place, by a number, which is logged with what it follows from.

    In place, so that whoever reports an error of the run later names the batch size that it really had.
    """
    recipe = config["recipe"]
    asked = [key for key in ("batch_size", "epochs", "ema") if recipe.get(key) == AUTO]
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
        recipe["ema"] = average(steps)
    if asked:
        values = ", ".join(f"{key} {recipe[key]}" for key in asked)
        log.info("recipe for %s training %s: %s; %s steps in all", f"{samples:,}", unit, values, f"{steps:,}")
    unused = samples % recipe["batch_size"] if recipe.get("drop_last", True) else 0
    if unused and steps:
        log.info("each epoch leaves %d of %s training %s out, other ones each time (an incomplete last batch; "
                 "recipe.drop_last=false uses them)", unused, f"{samples:,}", unit)
    return config


def batch_size(samples: int, multiple: int) -> int:
    """Global batch of the rule above, a multiple of what devices and micro-batches share."""
    wanted = min(max(samples // STEPS_PER_EPOCH, BATCH[0]), BATCH[1])
    size = min(2 ** int(math.log2(wanted)), max(samples, 1))
    return max(round(size / multiple), 1) * multiple


def steps_per_epoch(recipe: dict, samples: int) -> int:
    """Optimizer steps; an epoch that is not divided evenly leaves the incomplete last batch out."""
    return samples // recipe["batch_size"] if recipe.get("drop_last", True) else -(-samples // recipe["batch_size"])


def epochs(steps: int) -> int:
    """Epochs of so many steps by the rule above."""
    steps = max(steps, 1)
    if EPOCHS * steps < FEWEST[0]:
        return min(math.ceil(FEWEST[0] / steps), FEWEST[1])
    return max(min(EPOCHS, MOST[0] // steps), MOST[1])


def average(steps: int) -> float:
    """Decay of an average over `SHARE` of all steps."""
    return round(1 - 1 / min(max(SHARE * steps, WINDOW[0]), WINDOW[1]), 6)
