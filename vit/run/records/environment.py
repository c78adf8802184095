"""`environment.json` of a run folder."""

import pathlib
import platform
import shlex
import subprocess
import sys
from importlib import metadata

from vit.files.processes import available_cores, processor_name

RECORDED = ("torch", "torchvision", "pytorch-lightning", "hydra-core", "timm", "numpy", "pillow", "safetensors")


def environment() -> dict:
    """The command, versions, processor, accelerators and git commit of a run."""
    import torch

    return {
        "command": shlex.join([pathlib.Path(sys.executable).name, *sys.argv]),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "versions": {name: metadata.version(name) for name in RECORDED}
        | {"torch": torch.__version__},  # with its build
        "processor": processor_name(),
        "cores": available_cores(),
        "threads": torch.get_num_threads(),
        "accelerators": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())],
        "commit": _commit(),
    }


def _commit() -> str | None:
    command = ["git", "-C", str(pathlib.Path(__file__).parent), "describe", "--always", "--dirty"]
    try:
        return subprocess.run(command, capture_output=True, text=True).stdout.strip() or None
    except FileNotFoundError:  # no git on this machine
        return None
