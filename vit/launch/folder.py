"""A run folder: everything one run leaves behind, and the lock that keeps a second run out of it."""

import datetime
import fcntl
import json
import logging
import os
import pathlib
import platform
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from importlib import metadata
from typing import TextIO

import yaml

from vit.data.untrusted import read_yaml
from vit.launch.overrides import ConfigError, shown
from vit.launch.targets import check_stored

log = logging.getLogger("vit")

NAMED = 5  # of the samples that are left out, so many in the log

RECORDED = ("torch", "torchvision", "pytorch-lightning", "hydra-core", "timm", "numpy", "pillow", "safetensors")


class RunFolder:
    """`config.yaml log.txt metrics.csv metrics.json environment.json splits/ samples/ checkpoints/ model/` under one
    path.

    A run is finished when `metrics.json` stands; until then the folder can be resumed. Within
    `with RunFolder(path, main)` the first process holds the folder's lock, which the operating system frees however a
    process ends, and what is logged also goes to `log.txt`. A run that fails before `config.yaml` stands leaves no
    folder, unless there was one before.
    """

    def __init__(self, path: pathlib.Path, main: bool = True):
        self.path, self.main = pathlib.Path(path).expanduser(), main
        self._lock: TextIO | None = None
        self._log: logging.Handler | None = None
        self._new = False

    def __enter__(self) -> "RunFolder":
        if self.main:
            self._new = not self.path.exists()
            check_contents(self.path)
            self._create()
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: object) -> None:
        if self._log is not None:
            if error is not None and not isinstance(error, SystemExit):
                log.debug("failed", exc_info=error)
            log.removeHandler(self._log)
            self._log.close()
        if self._new and not self.used:
            shutil.rmtree(self.path, ignore_errors=True)
        if self._lock is not None:
            self._lock.close()

    @property
    def config_file(self) -> pathlib.Path:
        return self.path / "config.yaml"

    @property
    def checkpoints(self) -> pathlib.Path:
        return self.path / "checkpoints"

    @property
    def model(self) -> pathlib.Path:
        return self.path / "model"

    @property
    def used(self) -> bool:
        return self.config_file.exists()

    @property
    def finished(self) -> bool:
        return (self.path / "metrics.json").exists()

    def _create(self) -> None:
        try:
            self.checkpoints.mkdir(parents=True, exist_ok=True)
            self._lock = open(self.path / ".lock", "a", encoding="utf-8")  # noqa: SIM115 - held as long as the run
        except OSError as error:
            raise ConfigError(
                f"run_dir={self.path}: cannot write there ({error.strerror}); choose another run_dir"
            ) from None
        try:
            fcntl.lockf(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # this process's own: workers do not inherit it
        except OSError:
            raise ConfigError(f"run_dir={self.path}: another run is writing there; choose another run_dir") from None

    def begin(self, resuming: bool) -> None:
        """Start `log.txt`, where the folder is free for this run: two runs in one folder would mix their files.

        Raises:
            ConfigError: a run lies there and this one does not go on with it, or it is finished.
        """
        if self.used and not resuming:
            raise ConfigError(
                f"run_dir={self.path}: a run lies there already; {shown('resume', self.path)} goes on with it, "
                "or choose another run_dir"
            )
        if self.finished and resuming:
            raise ConfigError(
                f"resume={self.path}: that run is finished; start from its model with "
                f"{shown('init_from', self.path)}"
            )
        self._log = logging.FileHandler(self.path / "log.txt", encoding="utf-8")
        self._log.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
        log.addHandler(self._log)
        log.info("run folder: %s", self.path)

    def write_splits(
        self, lists: dict[str, list[tuple[str, str]]], left_out: Sequence[tuple[str, str]] = ()
    ) -> None:
        """Which sample is in which split, a text file each: name, tab, class. What is left out, with the reason, stands
        in left_out.tsv, and the first of it in the log."""
        for name, reason in left_out[:NAMED]:
            log.warning("left out %s: %s", name, reason)
        if len(left_out) > NAMED:
            log.warning("left out %d more, listed in %s", len(left_out) - NAMED, self.path / "splits" / "left_out.tsv")
        for split, rows in {**lists, **({"left_out": left_out} if left_out else {})}.items():
            target = self.path / "splits" / f"{split}.tsv"
            target.parent.mkdir(exist_ok=True)
            target.write_text(
                "".join(f"{name}\t{label}\n" for name, label in rows), encoding="utf-8", errors="surrogateescape"
            )

    def write(self, name: str, value: dict | list) -> None:
        """Write `name` as YAML or JSON, whole or not at all."""
        target = self.path / name
        target.parent.mkdir(parents=True, exist_ok=True)
        text = yaml.safe_dump(value, sort_keys=False) if name.endswith(".yaml") else json.dumps(value, indent=2) + "\n"
        part = target.with_suffix(target.suffix + ".part")
        part.write_text(text, encoding="utf-8")
        os.replace(part, target)


def check_contents(folder: pathlib.Path) -> None:
    """A folder that may come from anybody is written to only if all of it lies inside: files, folders, and links to
    them.

    Raises:
        ConfigError: names a link that leads out of it, or a FIFO or device, at which a run would wait forever.
    """
    inside = os.path.realpath(folder)
    for place, folders, files in os.walk(inside):
        for name in (*folders, *files):
            path = os.path.join(place, name)
            if os.path.islink(path):
                target = os.path.realpath(path)
                if os.path.commonpath([inside, target]) != inside:
                    raise ConfigError(f"{path} is a link to {target}, outside the run folder; a run writes only inside "
                                      "its folder, so put a real file or folder there")
            elif name in files and not os.path.isfile(path):
                raise ConfigError(f"{path} is neither a file nor a folder; remove it")


def new_path(config: dict) -> pathlib.Path:
    """`run_dir` where given, else `runs/<name>/<time>`; never one that exists."""
    if config["run_dir"]:
        return pathlib.Path(config["run_dir"])
    stamp = datetime.datetime.now().strftime("%Y-%m-%d_%H-%M-%S")
    base = pathlib.Path(config["runs"]) / config["name"] / stamp
    tries = (base if n == 1 else base.with_name(f"{base.name}_{n}") for n in range(1, 1000))
    return next(path for path in tries if not path.exists())


def read_config(path: pathlib.Path, overrides: Sequence[str] = ()) -> dict:
    """The config a run folder was made with, which may be anybody's.

    Args:
        overrides: those of this command; a class of the user's own that they name may stand in the config too.

    Raises:
        ConfigError: the folder holds no run, or links that lead out of it, or its config names a class that neither
            the project nor the user names.
    """
    check_contents(path)
    file = pathlib.Path(path) / "config.yaml"
    if not file.exists():
        raise ConfigError(f"resume={path}: no config.yaml there, so no run to go on with")
    config = read_stored(file)
    check_stored(config, file, overrides)
    return config


def read_stored(file: pathlib.Path) -> dict:
    """The plain values of a YAML file in a run folder, unchecked: nothing may be instantiated from them.

    Raises:
        ConfigError: it cannot be read, or holds something else.
    """
    try:
        values = read_yaml(file)
    except (OSError, ValueError) as error:
        raise ConfigError(f"{file} cannot be read: {getattr(error, 'strerror', None) or error}") from None
    if not isinstance(values, dict):
        raise ConfigError(f"{file} holds no config, but {type(values).__name__}")
    return values


def unfinished(config: dict) -> pathlib.Path | None:
    """The newest run of the same name and command-line words that has a checkpoint and did not finish."""
    folders = sorted((pathlib.Path(config["runs"]) / config["name"]).glob("*/config.yaml"), reverse=True)
    for file in folders:
        folder = RunFolder(file.parent, main=False)
        if folder.finished or not any(folder.checkpoints.glob("*.ckpt")):
            continue
        if read_stored(folder.config_file).get("words") == config["words"]:
            return folder.path
    return None


def environment() -> dict:
    """Where and with what a run was made: command, versions, processor, accelerator, git commit."""
    import torch

    return {
        "command": shlex.join([pathlib.Path(sys.executable).name, *sys.argv]),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "versions": {name: metadata.version(name) for name in RECORDED}
        | {"torch": torch.__version__},  # with its build
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "threads": torch.get_num_threads(),
        "accelerators": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())],
        "commit": _commit(),
    }


def _processor() -> str:
    try:
        lines = pathlib.Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next(
        (line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.processor()
    )


def _commit() -> str | None:
    command = ["git", "-C", str(pathlib.Path(__file__).parent), "describe", "--always", "--dirty"]
    try:
        return subprocess.run(command, capture_output=True, text=True).stdout.strip() or None
    except FileNotFoundError:  # no git on this machine
        return None
