"""Why a run ended, and when it shall: `trainer.max_time`, `callbacks.patience`, all epochs."""

import datetime
import re

from pytorch_lightning import Trainer
from pytorch_lightning.callbacks import Timer

from vit.run.config.composing import ConfigError
from vit.training import Patience

UNITS = {"d": "days", "h": "hours", "m": "minutes", "s": "seconds"}
SHORT = re.compile(r"(?:(?P<d>\d+)d)?(?:(?P<h>\d+)h)?(?:(?P<m>\d+)m(?:in)?)?(?:(?P<s>\d+)s)?", re.IGNORECASE)
LONG = re.compile(r"(?P<d>\d+):(?P<h>\d\d):(?P<m>\d\d):(?P<s>\d\d)")


def max_time(value: object) -> datetime.timedelta | None:
    """`7m`, `1h30m`, `90s`, `2d` or DD:HH:MM:SS; None for null.

    Raises:
        ConfigError: anything else, or no time at all.
    """
    if value is None:
        return None
    found = LONG.fullmatch(str(value).strip()) or SHORT.fullmatch(str(value).strip())
    parts = {UNITS[key]: int(number) for key, number in (found.groupdict() if found else {}).items() if number}
    duration = datetime.timedelta(**parts)
    if not duration:
        raise ConfigError(f"trainer.max_time={value}: must be a time such as 7m, 1h30m, 90s, 2d or 00:01:30:00 "
                          "(days:hours:minutes:seconds)")
    return duration


def ending(trainer: Trainer, config: dict) -> tuple[str, str]:
    """(`epochs`, `max_time`, `patience` or `callback`, a line about it for the log and the last screen)."""
    done, planned = trainer.current_epoch, trainer.max_epochs
    so_far = f"epoch {done} of {planned}"
    timer = next((each for each in trainer.callbacks if isinstance(each, Timer)), None)
    early = next((each for each in trainer.callbacks if isinstance(each, Patience)), None)
    if early is not None and early.stopped_epoch and done < planned:
        patience = config["callbacks"]["patience"]
        return "patience", f"no better {early.monitor} in {patience} epochs, ended in {so_far}"
    left = None if timer is None else timer.time_remaining()
    if left is not None and left <= 0 and (done < planned or not trainer.is_last_batch):
        return "max_time", f"trainer.max_time={config['trainer']['max_time']} was over, ended in {so_far}"
    if done < planned and trainer.should_stop:
        return "callback", f"a callback stopped it, ended in {so_far}"
    return "epochs", f"all {planned} epochs"
