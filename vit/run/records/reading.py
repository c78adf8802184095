"""What a run folder records, read from its files, which may come from a third party."""

import logging
import pathlib
from collections.abc import Iterator, Sequence

from vit.files.atomic import MANIFEST, RESULTS, Manifest, check_result
from vit.files.checkpoints import LAST, newest_valid, without_weights
from vit.files.untrusted import parse_json, read_text, read_yaml
from vit.messages import first_line
from vit.run.config.overrides import ConfigError, with_current_keys
from vit.run.config.targets import check_stored
from vit.run.records.folder import CONFIG, METRICS, RunFolder, check_contents

log = logging.getLogger("vit")

FORMER_KEYS = {"words": "overrides"}  # former name -> name, in files of earlier versions
REPEAT = "restore it, or remove it and resume the run, which repeats its test"
NODES = ("data", "model", "recipe", "task", "trainer", "overrides")  # of every config


def read_config(path: pathlib.Path, overrides: Sequence[str] = ()) -> dict:
    """The config in a run folder, which may come from a third party.

    Args:
        overrides: the overrides of this command; targets that they name are also trusted in the config.

    Raises:
        ConfigError: the folder has no run, or has links that lead out of it, or its config names a target that neither
            the project nor the user names.
    """
    check_contents(path)
    check_unchanged(path)
    file = pathlib.Path(path) / CONFIG
    config = stored_config(file)
    check_stored(config, file, overrides)
    return config


def check_unchanged(path: pathlib.Path, part: str = "") -> None:
    """Checks the files of a run against the SHA-256 in its manifest. Results are checked where they are read.

    Args:
        part: only files whose names begin with it.

    Raises:
        ConfigError: a file has changed.
    """
    manifest = Manifest.read(path)
    for name in manifest.files:
        if name.startswith(part) and name not in RESULTS and manifest.changed(name):
            fix = f"; or remove it, to resume with the config in {LAST}" if name == CONFIG else ""
            raise ConfigError(
                f"{pathlib.Path(path) / name} is not the file that this run wrote (its SHA-256 is not the one in "
                f"{MANIFEST}); restore it{fix}"
            )


def stored_config(file: pathlib.Path) -> dict:
    """The `config.yaml` of a run, unchecked; if it is missing or incomplete, the copy in the newest checkpoint, which
    is logged.

    Raises:
        ConfigError: there is neither a config nor a copy.
    """
    config, remark = config_and_remark(file)
    if remark:
        log.warning(remark)
    return config


def config_and_remark(file: pathlib.Path) -> tuple[dict, str | None]:
    """As `stored_config`, with the line that it logs.

    Raises:
        ConfigError: as for `stored_config`.
    """
    try:
        if not file.exists():
            raise ConfigError(f"resume={file.parent}: there is no {CONFIG}, so there is no run to resume")
        config = read_stored(file)
        if absent := [node for node in NODES if node not in config]:
            raise ConfigError(f"{file} is incomplete: it has no {absent[0]}")
    except ConfigError as error:
        checkpoint, _ = newest_valid(file.parent / "checkpoints")
        config = embedded_config(checkpoint) if checkpoint else None
        if not config:
            raise
        return config, f"{error}; resuming with the config in {checkpoint}"
    return config, None


def embedded_config(checkpoint: pathlib.Path) -> dict | None:
    """The config in a checkpoint of a run; None if the file has none."""
    config = without_weights(checkpoint).get("config")
    config = in_current_names(config) if isinstance(config, dict) else {}
    return config if all(node in config for node in NODES) else None


def in_current_names(config: dict) -> dict:
    """A stored config with the keys of this version."""
    return with_current_keys({FORMER_KEYS.get(key, key): value for key, value in config.items()}, stored=True)


def read_stored(file: pathlib.Path) -> dict:
    """The values of a YAML file in a run folder, unchecked: nothing may be instantiated from them.

    Raises:
        ConfigError: it cannot be read, or is not a mapping.
    """
    try:
        values = read_yaml(file)
    except (OSError, ValueError) as error:
        raise ConfigError(f"{file} cannot be read: {getattr(error, 'strerror', None) or error}") from None
    if not isinstance(values, dict):
        raise ConfigError(f"{file} is not a config, but {type(values).__name__}")
    return in_current_names(values)


def read_metrics(path: pathlib.Path) -> dict:
    """The final metrics of a finished run.

    Raises:
        FileNotFoundError: it has none.
        ConfigError: they are damaged.
    """
    file = pathlib.Path(path).expanduser() / METRICS
    try:
        metrics = parse_json(read_text(file), float)
    except FileNotFoundError:
        raise
    except (OSError, ValueError) as error:
        raise ConfigError(f"{file} is damaged ({first_line(error)}); {REPEAT}") from None
    check_result(file, ConfigError, REPEAT)
    if not isinstance(metrics, dict):
        raise ConfigError(f"{file} has no metrics, but {type(metrics).__name__}; {REPEAT}")
    return metrics


def unfinished(config: dict) -> Iterator[tuple[pathlib.Path, list[str]]]:
    """(folder, overrides) of the unfinished runs of the same name that have a checkpoint, newest first."""
    for path in sorted((pathlib.Path(config["runs"]) / config["name"]).glob("*/checkpoints"), reverse=True):
        folder = RunFolder(path.parent, main=False)
        if folder.finished or not any(path.glob("*.ckpt")):
            continue
        try:
            stored = stored_config(folder.path / CONFIG)
        except ConfigError as error:
            log.warning("resume=auto skips %s: %s", folder.path, error)
            continue
        yield folder.path, stored.get("overrides") or []
