"""`environment.json` of a run: its command, and the software and hardware that it used."""

import pathlib
import platform
import shlex
import subprocess
import sys
from importlib import metadata

from vit.files.credentials import masked
from vit.files.machine import available_cores, processor_name

RECORDED = ("torch", "torchvision", "pytorch-lightning", "hydra-core", "timm", "numpy", "pillow", "safetensors")


def environment() -> dict:
    """The command, versions, processor, accelerators and git commit of a run."""
    import torch

    return {
        "command": started_as(sys.argv),
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


def started_as(argv: list[str]) -> str:
    """The command line of this process as one would type it, without credentials, from the arguments that Hydra was
    started with.
    """
    program, *arguments = argv[:1] + masked(argv[1:])
    train = ["train"] if any(each.startswith("--config-name=") for each in arguments) else []
    arguments = [each for each in arguments if each != "--config-name=train"]
    name = pathlib.Path(program).name
    if name == "__main__.py":
        return shlex.join(["python", "-m", pathlib.Path(program).parent.name, *train, *arguments])
    if name == "vit":  # the installed command
        return shlex.join([name, *train, *arguments])
    return shlex.join([pathlib.Path(sys.executable).name, program, *arguments])


def _commit() -> str | None:
    command = ["git", "-C", str(pathlib.Path(__file__).parent), "describe", "--always", "--dirty"]
    try:
        return subprocess.run(command, capture_output=True, text=True).stdout.strip() or None
    except FileNotFoundError:  # no git on this machine
        return None
