"""Calls of Hydra: the folders in which it looks for configs, a composed config, a job of a composed config.

`hydra.searchpath=[FOLDER]` (`--config-dir`) adds a folder of groups to conf/, `hydra.job.config_name=NAME`
(`--config-name`) composes another primary config.
"""

import argparse
import contextlib
import copy
import functools
import os
import pathlib
import re
import threading
from collections.abc import Callable, Iterable, Iterator, MutableMapping, Sequence
from typing import TYPE_CHECKING

from hydra import initialize_config_dir
from hydra._internal.config_loader_impl import ConfigLoaderImpl  # Hydra has no public loader
from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from vit.messages import did_you_mean, first_line, in_hydra_quotes, nearest_names, on_one_line, one_line
from vit.run.config.overrides import ConfigError, key_of, parse

if TYPE_CHECKING:
    from hydra._internal.hydra import Hydra

PRIMARY, SEARCH_PATH = "hydra.job.config_name", "hydra.searchpath"
INITIALIZING = threading.Lock()  # Hydra has its current configs in a global: one thread at a time
CONFIG_ERRORS = (HydraException, OmegaConfBaseException, YAMLError)  # what Hydra raises while it composes
PLUGINS = {  # options of Hydra's manual that are packages of their own -> what pip installs
    "hydra/launcher/joblib": "'vitwright[sweep]'",
    "hydra/launcher/submitit_local": "hydra-submitit-launcher",
    "hydra/launcher/submitit_slurm": "hydra-submitit-launcher",
    "hydra/launcher/ray": "hydra-ray-launcher",
    "hydra/launcher/rq": "hydra-rq-launcher",
    "hydra/sweeper/optuna": "'vitwright[sweep]'",
    "hydra/sweeper/nevergrad": "hydra-nevergrad-sweeper",
    "hydra/sweeper/ax": "hydra-ax-sweeper",
    "hydra/job_logging/colorlog": "hydra-colorlog",
    "hydra/hydra_logging/colorlog": "hydra-colorlog",
}

FIXES = {  # part of an error of Hydra -> the same with its fix
    r"Multiple values for (\S+)\. To override a value use 'override (\S+): (\S+)'":
        r"\1 is chosen already; write \2=\3 without + in a command, or override \2: \3 in a file",
    r"(Could not override '\w+/(\w+)@\w+')\. No match in the defaults list\.":
        r"\1; write override /\2 with a slash for a group of another folder",
    r"Could not override '(\w+)@(?:_global_\.)?\1'\. Did you mean to override \1\? To append to your default list .*":
        r"a package is for files; write \1=OPTION in a command",
    r"(Could not override '(\w+)@\w+\.\2')\. Did you mean to override \2\?":
        r"\1; begin the file with the line # @package _global_",
}


class Loader(ConfigLoaderImpl):
    """Hydra's loader, except that overridden values are set in a copy of an earlier composition of the same options.

    Composing reads about thirty files, which takes 0.15 s, and a command composes twice: with the options of groups
    only, to check its overrides, and with all overrides. With overrides of Hydra's own settings, the search path
    included, the config is composed anew, and so it is after a change of any config file.

    Attributes:
        composed: (primary config, overrides that select options, `file_versions`) -> their config.
    """

    def __init__(self, config_search_path: ConfigSearchPath):
        super().__init__(config_search_path)
        self.composed: MutableMapping[tuple, DictConfig] = {}

    def load_configuration(self, config_name: str | None, overrides: list[str], run_mode: RunMode,
                           from_shell: bool = True, validate_sweep_overrides: bool = True) -> DictConfig:
        """The composed config.

        Raises:
            hydra.errors.HydraException: Hydra cannot compose it.
        """
        parsed = OverridesParser.create().parse_overrides(overrides)
        if run_mode != RunMode.RUN or any(override.is_hydra_override() for override in parsed):
            return super().load_configuration(config_name, overrides, run_mode=run_mode, from_shell=from_shell,
                                              validate_sweep_overrides=validate_sweep_overrides)
        if validate_sweep_overrides:
            self.validate_sweep_overrides_legal(parsed, run_mode, from_shell)
        values = [override for override in parsed
                  if isinstance(override.value(), dict) or not self.repository.group_exists(override.key_or_group)]
        selected = tuple(override.input_line for override in parsed if override not in values)
        key = config_name, selected, self.file_versions()
        if key not in self.composed:
            self.composed[key] = super().load_configuration(
                config_name, [*selected], run_mode=run_mode, from_shell=from_shell)
        config = copy.deepcopy(self.composed[key])
        self._apply_overrides_to_config(values, config)
        hydra = config.hydra
        hydra.overrides.task = [override.input_line for override in parsed]
        hydra.runtime.cwd = os.getcwd()
        if not OmegaConf.is_interpolation(hydra.job, "override_dirname"):  # from 1.4 on it is one of the overrides
            hydra.job.override_dirname = override_dirname(parsed, **hydra.job.config.override_dirname)
        return config

    def file_versions(self) -> tuple[tuple[str, int, int], ...]:
        """(path, time of the last change in ns, bytes) of each config file in the search path."""
        sources = [(source.path or "").removeprefix("file://") for source in self.config_search_path.get_path()]
        folders = [source for source in sources if source and "://" not in source]  # others are packages
        files = sorted(str(file) for folder in folders for file in pathlib.Path(folder).rglob("*.yaml"))
        versions = []
        for file in files:
            with contextlib.suppress(FileNotFoundError):  # an editor or git is replacing it
                status = os.stat(file)
                versions.append((file, status.st_mtime_ns, status.st_size))
        return tuple(versions)


def override_dirname(overrides: Sequence[Override], exclude_keys: Sequence[str], item_sep: str, kv_sep: str) -> str:
    """The value of `hydra.job.override_dirname`: the overrides as part of a folder name, for `hydra.run.dir`."""
    lines = sorted(each.input_line for each in overrides if each.key_or_group not in exclude_keys)
    return item_sep.join(lines).replace("=", kv_sep)


def config_folder() -> pathlib.Path:
    """The folder of Hydra groups: `vit/conf` in a wheel, `conf` beside the package in a checkout or editable install.

    Raises:
        ConfigError: neither exists.
    """
    package = pathlib.Path(__file__).resolve().parents[2]
    for folder in (package / "conf", package.parent / "conf"):
        if (folder / "train.yaml").is_file():
            return folder
    raise ConfigError(f"no conf/train.yaml beside {package}; reinstall the package")


def compose_with(overrides: list[str], name: str) -> DictConfig:
    """The primary config with checked overrides, and with Hydra's own node `hydra`.

    Raises:
        ConfigError: Hydra cannot compose the config.
    """
    folder, overrides = located(overrides, name)
    hydra = hydra_over(folder)
    try:
        return hydra.compose_config(name, overrides, RunMode.RUN, with_log_configuration=False, from_shell=False)
    except CONFIG_ERRORS as error:
        raise ConfigError(explained(error)) from None
    except UnicodeDecodeError as error:
        raise ConfigError(not_utf8([folder, *search_folders(parse(overrides))], error)) from None


def not_utf8(folders: Iterable[pathlib.Path], error: UnicodeDecodeError) -> str:
    """The first config file in these folders that is not UTF-8, with the position in it."""
    for path in (path for folder in folders for path in sorted(folder.rglob("*.yaml"))):
        try:
            path.read_text(encoding="utf-8")
        except UnicodeDecodeError as found:
            return f"{path}: is not UTF-8 text at byte {found.start}; save it as UTF-8"
    return one_line(error)


@contextlib.contextmanager
def deferred_option_help() -> Iterator[None]:
    """A context in which argparse accepts help texts that are not strings, as Hydra 1.3 has one. From Python 3.14 on it
    rejects them when the option is declared (https://github.com/facebookresearch/hydra/issues/3121).
    """
    declare, own = argparse.ArgumentParser.add_argument, vars(argparse.ArgumentParser).get("add_argument")

    def add_argument(parser: argparse.ArgumentParser, *names: str, **options: object) -> argparse.Action:
        text = options.get("help")
        if text is None or isinstance(text, str):
            return declare(parser, *names, **options)
        action = declare(parser, *names, **{**options, "help": None})
        action.help = text
        return action

    argparse.ArgumentParser.add_argument = add_argument
    try:
        yield
    finally:
        if own is None:  # it is inherited
            del argparse.ArgumentParser.add_argument
        else:
            argparse.ArgumentParser.add_argument = own


def run_job(task: Callable[[DictConfig], object], overrides: list[str], name: str) -> None:
    """Run the task as one job of Hydra, with its settings: callbacks, environment and working directory.

    `hydra.main` would do the same and compose the config twice, the first time only to look up `hydra.mode`.

    Args:
        overrides, name: as `prepare_overrides` returns them.

    Raises:
        ConfigError: Hydra cannot compose the config.
    """
    folder, overrides = located(overrides, name)
    try:
        hydra_over(folder).run(name, task, overrides)
    except CONFIG_ERRORS as error:
        raise ConfigError(explained(error)) from None


def detach_hydra(config: DictConfig) -> DictConfig:
    """Removes Hydra's own node from a composed config, and returns it."""
    hydra = config.hydra
    with open_dict(config):
        del config.hydra
    return hydra


@functools.cache
def hydra_over(folder: pathlib.Path) -> "Hydra":
    """Hydra over a folder of configs. The current Hydra (`GlobalHydra`) remains that of an enclosing `hydra.main`, so
    that a job and other threads can compose configs meanwhile.
    """
    with INITIALIZING:
        running, GlobalHydra.instance().hydra = GlobalHydra.instance().hydra, None
        try:
            with initialize_config_dir(version_base="1.3", config_dir=str(folder.resolve())):
                hydra = GlobalHydra.instance().hydra
                hydra.config_loader = Loader(hydra.config_loader.get_search_path())
                return hydra
        finally:
            GlobalHydra.instance().hydra = running


def located(overrides: list[str], name: str) -> tuple[pathlib.Path, list[str]]:
    """The folder in which Hydra looks for the primary config, and the overrides with all other folders in the search
    path. The folder is the first of the user's own folders that has the config, otherwise conf/.
    """
    search = [each for each in overrides if each.startswith(SEARCH_PATH)]
    if not search:
        return config_folder(), overrides
    parsed = parse(search)
    folder = folder_of_primary(parsed, name)
    if folder is None:
        return config_folder(), overrides
    others = [*(value_of(parsed, SEARCH_PATH) or []), config_folder()]
    return folder, [*(each for each in overrides if each not in search), search_path(others)]


def folder_of_primary(parsed: Sequence[Override], name: str) -> pathlib.Path | None:
    """The first of the user's own folders that has this primary config; None if none of them has it."""
    return next((folder for folder in search_folders(parsed) if (folder / f"{name}.yaml").is_file()), None)


def separate_primary(parsed: Sequence[Override]) -> tuple[str, list[Override]]:
    """The name of the primary config, and the other overrides. The search path is one override, to which the folders of
    `hydra.searchpath` in a primary config of the user are added.

    Raises:
        ConfigError: the search path is not a list or names no folder, or the primary config is not valid YAML.
    """
    name = str(value_of(parsed, PRIMARY) or "train").removesuffix(".yaml")
    others = [each for each in parsed if each.key_or_group != PRIMARY]
    stated = value_of(others, SEARCH_PATH)
    if stated is None:
        return name, others
    folder = folder_of_primary(parsed, name) if isinstance(stated, list) else None
    try:
        own = (OmegaConf.select(OmegaConf.load(folder / f"{name}.yaml"), SEARCH_PATH) if folder else None) or []
    except CONFIG_ERRORS as error:
        raise ConfigError(one_line(error)) from None
    except UnicodeDecodeError as error:
        raise ConfigError(not_utf8([folder], error)) from None
    for found in (stated, own):
        if not isinstance(found, Sequence) or isinstance(found, str):
            raise ConfigError(f"{SEARCH_PATH}={found}: must be a list, such as {search_path([found])}")
    search = parse([search_path([*stated, *(each for each in own if each not in stated)])])
    for added in search_folders(search):
        if not added.is_dir():
            raise ConfigError(f"{SEARCH_PATH} (--config-dir): there is no folder {added}")
    return name, [*search, *(each for each in others if each.key_or_group != SEARCH_PATH)]


def search_path(folders: Sequence[object]) -> str:
    return f"{SEARCH_PATH}=[{','.join(in_hydra_quotes(str(folder)) for folder in folders)}]"


def search_path_of(parsed: Sequence[Override]) -> tuple[str, ...]:
    """The overrides of the search path, as they were typed."""
    return tuple(override.input_line for override in parsed if override.key_or_group == SEARCH_PATH)


def search_folders(parsed: Sequence[Override]) -> list[pathlib.Path]:
    """The folders that the user adds to conf/, without packages (`pkg://`)."""
    entries = [str(entry) for entry in value_of(parsed, SEARCH_PATH) or []]
    return [pathlib.Path(entry.removeprefix("file://")) for entry in entries if not entry.startswith("pkg://")]


def with_config_dir(overrides: list[str], folder: str | pathlib.Path | None) -> list[str]:
    """The overrides, with a folder of the user's own groups (`--config-dir`), if there is one, in the search path."""
    if not folder:
        return overrides
    earlier = [each for each in overrides if each.startswith(SEARCH_PATH)]
    stated = value_of(parse(earlier), SEARCH_PATH) or []
    folders = [*(stated if isinstance(stated, list) else [stated]), os.path.abspath(os.path.expanduser(folder))]
    return [*(each for each in overrides if each not in earlier), search_path(folders)]


def value_of(parsed: Sequence[Override], key: str, default: object = None) -> object:
    """The value of the last override of a key; `default` if there is none."""
    return next((override.value() for override in reversed(parsed) if override.key_or_group == key), default)


def is_hydra_key(key: str) -> bool:
    """Whether this is one of Hydra's own settings, which Hydra itself checks."""
    return key.startswith(("hydra.", "hydra/"))


def hydra_overrides(overrides: Sequence[str]) -> list[str]:
    """The overrides of Hydra's own settings, which apply to one command and are never recorded."""
    return [override for override in overrides if is_hydra_key(key_of(override))]


def explained(error: Exception) -> str:
    """The message of an error of Hydra in one line, with a fix where Hydra names none or one that does not help."""
    text = one_line(error)
    if missing := next((name for name in PLUGINS if f"'{name}'" in text), None):
        return f"{missing} is not installed: pip install {PLUGINS[missing]}"
    if found := re.match(r"Cannot find primary config '(.*?)'", text):
        folders = ", ".join(re.findall(r"path=file://(.*)", str(error)))
        return (f"--config-name {found[1]}: there is no {found[1].removesuffix('.yaml')}.yaml in {folders}; "
                "--config-dir FOLDER adds a folder")
    if "INTERVAL_SWEEP" in text:
        return "interval(...) needs a sweeper that searches, such as hydra/sweeper=optuna; others take KEY=0.1,0.2"
    if found := re.search(r"Could not find '(.*)/(.*?)' Available options in '.*?':(.*?) Config search path:",
                          on_one_line(error)):
        group, option, known = found[1], found[2], found[3].split()
        hint = did_you_mean(nearest_names(option, known))
        return f"{text.partition(' Could not find')[0]} no {group}/{option}{hint} ({group} may be {', '.join(known)})"
    for pattern, fix in FIXES.items():
        text = re.sub(pattern, fix, text)
    if text.startswith("Error merging override") and error.__cause__ is not None:
        return f"{text.removeprefix('Error merging override ')}: {first_line(error.__cause__)}"
    return text
