"""Errors of Hydra and OmegaConf in one line, with what installs a missing launcher or sweeper."""

from hydra.errors import HydraException
from omegaconf.errors import OmegaConfBaseException

from vit.messages import one_line

CONFIG_ERRORS = (HydraException, OmegaConfBaseException)  # what Hydra raises while it composes
PLUGINS = {  # launchers and sweepers of Hydra's manual -> what pip installs
    "hydra/launcher/joblib": "'vitwright[sweep]'",
    "hydra/launcher/submitit_local": "hydra-submitit-launcher",
    "hydra/launcher/submitit_slurm": "hydra-submitit-launcher",
    "hydra/launcher/ray": "hydra-ray-launcher",
    "hydra/launcher/rq": "hydra-rq-launcher",
    "hydra/sweeper/optuna": "'vitwright[sweep]'",
    "hydra/sweeper/nevergrad": "hydra-nevergrad-sweeper",
    "hydra/sweeper/ax": "hydra-ax-sweeper",
}


def explained(error: Exception) -> str:
    """An error of Hydra in one line; for a launcher or sweeper that is missing, how to install it."""
    text = one_line(error)
    missing = next((name for name in PLUGINS if f"'{name}'" in text), None)
    return f"{missing} is not installed: pip install {PLUGINS[missing]}" if missing else text
