"""A run folder: the files of one run, and the lock against a second run in the same folder."""

import contextlib
import datetime
import hashlib
import logging
import os
import pathlib
import re
import shutil
from collections.abc import Iterator, Sequence

import yaml
from filelock import BaseFileLock, Timeout

from vit.files.atomic import (
    MANIFEST,
    RESULTS,
    CheckpointError,
    Manifest,
    remove_stale_files,
    write_atomically,
)
from vit.files.credentials import masked
from vit.files.locks import file_lock, holder_file
from vit.files.strict_json import json_text
from vit.files.untrusted import parse_json, read_text
from vit.messages import override_for_shell
from vit.run.config.overrides import ConfigError
from vit.run.console import LogFile

log = logging.getLogger("vit")

NAMED = 5  # left-out samples in the log

CONFIG, METRICS = "config.yaml", "metrics.json"
LOCK = ".lock"
TIME, NAME = "%Y-%m-%d_%H-%M-%S", re.compile(r"20\d\d-\d\d-\d\d_\d\d-\d\d-\d\d")  # of a run folder
COMPARISON = "comparison.json"  # in the folder of a comparison
FACTS = ("splits", "environment.json", "audit.json")
LOCK_SECONDS = 1.0  # `vit runs` holds a lock for an instant, to find out whether a run holds it
OUTPUTS = ("metrics.csv", "metrics.json", "model", "samples", "predictions.csv", "curves.png", "report.html",
           "report.json", "tensorboard")


class RunFolder:
    """`config.yaml log.txt metrics.csv metrics.json environment.json splits/ samples/ checkpoints/ model/` under one
    path.

    A run is finished when `metrics.json` exists; until then it can be resumed, and afterwards if `trainer.max_time`
    ended it. Within `with RunFolder(path, main)` the first process holds the folder's lock, which the operating system
    releases however the process ends, and log records also go to `log.txt`. A run whose folder is moved or removed
    ends with an error: it would leave half a run at the old path, or write into that of another run there. A run that
    fails before `config.yaml` is written leaves no new folder.
    """

    def __init__(self, path: pathlib.Path, main: bool = True):
        self.path, self.main = pathlib.Path(path).expanduser(), main
        self._lock: BaseFileLock | None = None
        self._descriptor: int | None = None  # of the folder, wherever it is moved
        self._log: LogFile | None = None
        self._new = False

    def __enter__(self) -> "RunFolder":
        if self.main:
            self._new = is_empty(self.path)
            if not self._new:
                check_contents(self.path)
            self._lock_folder()
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: object) -> None:
        try:
            if self._log is not None:
                self._close_log(error)
        finally:
            if self._new and not self.used and self._is_in_place():
                shutil.rmtree(self.path, ignore_errors=True)
            if self._descriptor is not None:
                os.close(self._descriptor)
                self._descriptor = None
            if self._lock is not None:
                self._lock.release()

    def _close_log(self, error: BaseException | None) -> None:
        """Log the error that ended the run, and close `log.txt`.

        Raises:
            CheckpointError: a line of the log could not be written, and nothing else failed.
        """
        if error is not None and not isinstance(error, SystemExit):
            log.debug("failed", exc_info=error)
        log.removeHandler(self._log)
        self._log.close()
        if error is None and self._log.error is not None:
            raise CheckpointError(f"cannot write {self._log.baseFilename}: {self._log.error}; all else was written")

    @property
    def checkpoints(self) -> pathlib.Path:
        return self.path / "checkpoints"

    @property
    def model(self) -> pathlib.Path:
        return self.path / "model"

    @property
    def used(self) -> bool:
        """Whether the folder contains a run, even one without its config."""
        return (self.path / CONFIG).exists() or any(self.checkpoints.glob("*.ckpt"))

    def _overwritten(self) -> str | None:
        """A file that a new run would overwrite. A start that was killed early leaves `splits` and a manifest."""
        started = (self.path / MANIFEST).exists()
        names = OUTPUTS if started else (*OUTPUTS, *FACTS)
        return next((name for name in names if os.path.lexists(self.path / name)), None)

    @property
    def finished(self) -> bool:
        return (self.path / "metrics.json").exists()

    @property
    def in_use(self) -> bool:
        """Whether a process holds the lock. The test locks the file for an instant; a starting run waits longer."""
        file = self.path / LOCK
        if not file.exists():
            return False
        try:
            with file_lock(file).acquire(timeout=0):
                return False
        except Timeout:
            return True
        except OSError:  # a folder that cannot be written: no run of this user is writing there
            return False

    @property
    def out_of_time(self) -> bool:
        """Whether the run is finished because it reached `trainer.max_time`, so that it can continue."""
        try:
            return self.finished and parse_json(read_text(self.path / "metrics.json")).get("ended") == "max_time"
        except (OSError, ValueError, AttributeError):
            return False

    def _lock_folder(self) -> None:
        """Create the folder if there is none, and lock it."""
        try:
            self.checkpoints.mkdir(parents=True, exist_ok=True)
            self._lock = file_lock(self.path / LOCK)  # between threads too; forked workers do not inherit it
            self._lock.acquire(timeout=LOCK_SECONDS)
            if os.name != "nt":  # where a folder with open files cannot be moved
                self._descriptor = os.open(self.path, os.O_RDONLY)
        except Timeout:
            holder = holder_file(self.path / LOCK)
            fix = f"; if it was killed, perhaps on another machine, remove {holder}" if holder.exists() else ""
            raise ConfigError(f"run_dir={self.path}: another run is writing there; wait until it has ended to resume "
                              f"it, or choose another run_dir{fix}") from None
        except OSError as error:
            raise ConfigError(
                f"run_dir={self.path}: cannot write there ({error.strerror}); choose another run_dir"
            ) from None

    def _is_in_place(self) -> bool:
        """Whether the path still leads to the locked folder. Some network file systems change the numbers by which
        folders are compared, so that a folder with other numbers but the same path of its descriptor is the same.
        """
        try:
            same = self._descriptor is None or os.path.samestat(os.fstat(self._descriptor), os.stat(self.path))
            return same or self._present_path() == pathlib.Path(os.path.realpath(self.path))
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError:  # of a disk or network; a write reports it, if it lasts until then
            return True

    def _present_path(self) -> pathlib.Path | None:
        """Where the locked folder is now, by Linux, with ` (deleted)` at its end if it was removed; None elsewhere."""
        try:
            return pathlib.Path(os.readlink(f"/proc/self/fd/{self._descriptor}"))
        except OSError:
            return None

    def check_in_place(self) -> None:
        """Check that the path still leads to the locked folder, before something is written: a new run may be there.

        Raises:
            CheckpointError: the folder was moved, removed or replaced.
        """
        if self._is_in_place():
            return
        now = self._present_path()
        if now is not None and (now / LOCK).exists():
            raise CheckpointError(f"the run folder {self.path} was moved to {now} during the run; "
                                  f"{override_for_shell('resume', now)} continues it from its last checkpoint")
        raise CheckpointError(f"the run folder {self.path} was moved or removed during the run; if it was moved, "
                              "resume=ITS_NEW_PATH continues it from its last checkpoint")

    def begin(self, resuming: bool) -> None:
        """Start `log.txt`, if no other run uses the folder.

        Raises:
            ConfigError: the folder contains a run that this one does not resume, or a finished one.
        """
        if not resuming and self.used:
            raise ConfigError(
                f"run_dir={self.path} already contains a run; {override_for_shell('resume', self.path)} resumes it, "
                "or choose another run_dir"
            )
        if resuming and self.out_of_time:
            (self.path / "metrics.json").replace(self.path / "metrics_at_max_time.json")
        if resuming and self.finished:
            raise ConfigError(
                f"resume={self.path}: that run is finished; start from its model with "
                f"{override_for_shell('init_from', self.path)}"
            )
        if not resuming and (overwritten := self._overwritten()):
            raise ConfigError(
                f"run_dir={self.path} already contains {overwritten}, which a new run would overwrite; "
                "choose another run_dir"
            )
        for folder in (self.path, self.path / "splits"):
            remove_stale_files(folder)
        self._log = LogFile(self.path / "log.txt", encoding="utf-8")
        self._log.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
        log.addHandler(self._log)
        if resuming:
            self._forget_results()
            self.announce()

    def announce(self) -> None:
        """Log the path of the folder, once it is certain that the folder stays."""
        log.info("run folder: %s", self.path)

    def log_left_out(self, left_out: Sequence[tuple[str, str]]) -> None:
        """The first of the samples that are left out, with the reason, and where all are listed."""
        for name, reason in left_out[:NAMED]:
            log.warning("left out %s: %s", name, reason)
        if len(left_out) > NAMED:
            log.warning("left out %d more, listed in %s", len(left_out) - NAMED, self.path / "splits" / "left_out.tsv")

    def write(self, name: str, value: dict | list) -> None:
        """Write `name` as YAML or JSON, atomically; a config without credentials."""
        value = masked(value) if name == CONFIG else value
        text = yaml.safe_dump(value, sort_keys=False) if name.endswith(".yaml") else json_text(value) + "\n"
        self.write_text(name, text)

    def write_metrics(self, metrics: dict) -> None:
        """Write `metrics.json`, which finishes the run. The manifest records it and the other `RESULTS`: those of an
        unfinished run grow.
        """
        text = json_text(metrics) + "\n"
        manifest = Manifest.read(self.path)
        manifest.record(RESULTS)
        manifest.files[METRICS] = {"sha256": hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()}
        manifest.write()
        self.write_text(METRICS, text)

    def _forget_results(self) -> None:
        """Remove the results from the manifest of a run that continues."""
        manifest = Manifest.read(self.path)
        if manifest.files.keys() & set(RESULTS):
            manifest.files = {name: entry for name, entry in manifest.files.items() if name not in RESULTS}
            manifest.write()

    def write_text(self, name: str, text: str) -> None:
        """Write a text file atomically. The manifest records the SHA-256 of the files that a resumed run relies on."""
        self.check_in_place()
        content = text.encode("utf-8", "surrogateescape")
        if name == CONFIG or name.startswith("splits/"):
            Manifest.read(self.path).announce(name, hashlib.sha256(content).hexdigest())
        write_atomically(self.path / name, content)


def check_contents(folder: pathlib.Path) -> None:
    """Checks that a folder, which may come from a third party, consists of files, folders and links within it.

    Raises:
        ConfigError: names a link that leads out of it, or a FIFO or device, for which a run would wait forever.
    """
    inside = os.path.realpath(folder)
    for parent, folders, files in os.walk(inside):
        for name in (*folders, *files):
            path = os.path.join(parent, name)
            if os.path.islink(path):
                target = os.path.realpath(path)
                if os.path.commonpath([inside, target]) != inside:
                    raise ConfigError(f"{path} is a link to {target}, outside the run folder, and a run writes only "
                                      "within its folder; replace the link by a file or folder")
            elif name in files and not os.path.isfile(path):
                raise ConfigError(f"{path} is neither a file nor a folder; remove it")


def is_empty(path: pathlib.Path) -> bool:
    """Whether the path does not exist, or is an empty folder."""
    try:
        return not any(path.iterdir())
    except FileNotFoundError:
        return True
    except OSError:  # a file, or a folder that cannot be read
        return False


def new_path(config: dict, make: bool = True, suffix: str = "") -> pathlib.Path:
    """`run_dir` if it is set, otherwise a new folder `runs/<name>/<time><suffix>`, which is created at once, so that no
    other run has the same one. Its name is the last one of the existing names of that form in order, also if the clock
    was set back, as at the end of summer time: the newest run is found by its name.

    Raises:
        ConfigError: the folder cannot be created.
    """
    if config["run_dir"]:
        return pathlib.Path(config["run_dir"])
    parent, now = pathlib.Path(config["runs"]) / config["name"], datetime.datetime.now().replace(microsecond=0)
    if not make:
        return parent / f"{now.strftime(TIME)}{suffix}"
    last = max(_times_of_names(parent), default=now)
    if last > now:
        log.warning("%s has a folder of %s, but the clock is at %s; the name of the new folder follows that one, "
                    "which you can rename if its time is wrong", parent, last, now)
        now = last + datetime.timedelta(seconds=1)
    stamp = now.strftime(TIME)
    base = parent / f"{stamp}{suffix}"
    try:
        base.parent.mkdir(parents=True, exist_ok=True)
        for number in range(1, 10_000):
            path = base if number == 1 else base.with_name(f"{stamp}_{number}{suffix}")
            with contextlib.suppress(FileExistsError):
                path.mkdir()
                return path
    except OSError as error:
        raise ConfigError(f"runs={config['runs']}: cannot write there ({error.strerror}); choose another one") from None
    raise ConfigError(f"{base}: 10,000 runs in one second; choose another name")


def _times_of_names(folder: pathlib.Path) -> Iterator[datetime.datetime]:
    """The times in the names of the runs, comparisons and sweeps of a folder; of none if it does not exist."""
    names = os.listdir(folder) if folder.is_dir() else []
    for match in filter(None, map(NAME.match, names)):
        with contextlib.suppress(ValueError):  # a month 13
            yield datetime.datetime.strptime(match[0], TIME)
