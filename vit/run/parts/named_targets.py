"""The classes and functions that `_target_` names in a config are checked before the data is read."""

import importlib
import inspect
import os
import sys
import traceback
from collections.abc import Collection, Mapping
from pkgutil import resolve_name  # `hydra.utils.get_object` would also log an error
from typing import Any

from vit.messages import did_you_mean, nearest_names, on_one_line, one_line
from vit.run.config.name_hints import nearest
from vit.run.config.overrides import ConfigError
from vit.training.fault_tolerance.interrupts import find_stop

CALLBACKS = ("monitor", "mode", "patience", "every_steps", "start_margin", "film")  # options of the callbacks node


def check_targets(config: Mapping[str, Any]) -> None:
    """Checks the steps of `recipe.augment`, and the callbacks and the strategy of the user.

    Raises:
        ConfigError: there is no such class or function, it has no such parameter, or it needs one that is not given; or
            a key of `callbacks` is neither an option nor such a node.
    """
    for name, node in (("recipe.augment", config["recipe"].get("augment")), ("callbacks", config["callbacks"])):
        for key, step in (node or {}).items():
            if isinstance(step, Mapping) and isinstance(step.get("_target_"), str):
                check_target(f"{name}.{key}", step)
            elif step is not None and name == "callbacks" and key not in CALLBACKS:
                raise ConfigError(f"callbacks.{key}={step}: no such option{nearest(key, list(CALLBACKS))}; a callback "
                                  f"of your own is added by callbacks.{key}._target_")
    if isinstance((strategy := config["strategy"]).get("_target_"), str):
        check_target("strategy", {key: value for key, value in strategy.items() if key != "name"})


def check_target(key: str, node: Mapping[str, Any], added: Collection[str] = ()) -> None:
    """Checks one node with a `_target_`.

    Args:
        key: the dotted key of the node.
        added: parameters that the run adds to those of the node.

    Raises:
        ConfigError: as `check_targets`.
    """
    target = node["_target_"]
    module, _, name = target.rpartition(".")
    check_module(module or target, f"{key}._target_={target}")
    try:
        made = resolve_name(target)
    except (ImportError, AttributeError, ValueError) as error:
        near = nearest_names(name, [each for each in dir(sys.modules.get(module)) if each[:1] != "_"], cutoff=0.7)
        hint = did_you_mean([f"{module}.{each}" for each in near[:1]]) if module in sys.modules else ""
        why = "" if module in sys.modules else f" ({one_line(error)}){where_modules_are(error, module)}"
        raise ConfigError(f"{key}._target_={target}: there is no such class or function{hint}{why}") from None
    if not callable(made):
        raise ConfigError(f"{key}._target_={target}: is neither a class nor a function")
    try:
        parameters = inspect.signature(made).parameters
    except (TypeError, ValueError):  # a class in C without a signature
        return
    if not {"_args_", "_partial_"} & set(node):
        required = [name for name, each in parameters.items() if each.default is each.empty and
                    each.kind in (each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY)]
        if missing := [name for name in required if name not in {*node, *added}]:
            raise ConfigError(f"{key}: {target} needs a value for {', '.join(missing)}; add +{key}.{missing[0]}=VALUE")
    if any(each.kind is each.VAR_KEYWORD for each in parameters.values()):
        return
    for name, value in node.items():  # a step has no parameter that is null; _partial_ and the like are of Hydra
        if value is not None and name not in parameters and name[:1] != "_":
            near = did_you_mean(nearest_names(name, list(parameters)))
            raise ConfigError(f"{key}.{name}: {target} has no parameter {name!r}{near}")


def check_module(module: str, key: str) -> None:
    """Checks that a module can be imported, unless there is none of this name, which its caller reports.

    Args:
        key: the `KEY=VALUE` that names the module.

    Raises:
        ConfigError: names the package that the module imports and that is not installed, with the command that installs
            it; or the file and line of another error of the module.
    """
    try:
        importlib.import_module(module)
    except (Exception, SystemExit) as error:  # a script without a main function may end the program
        if find_stop(error) is not None:  # a stop signal
            raise
        name = error.name or "" if isinstance(error, ModuleNotFoundError) else ""
        if name and f"{module}.".startswith(f"{name}."):
            return
        if name and (package := name.partition(".")[0]) != module.partition(".")[0]:
            raise ConfigError(f"{key}: its module imports {package}, which is not installed: pip install {package}"
                              ) from None
        raise ConfigError(f"{key}: its module cannot be imported: {type(error).__name__}: {on_one_line(error)}"
                          f"{where_raised(error)}") from error


def where_raised(error: BaseException) -> str:
    """` (FILE, line N)` of the last statement outside of functions that an import executed; for a syntax error, which
    names them itself, empty.
    """
    if isinstance(error, SyntaxError):
        return ""
    statements = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.name == "<module>"]
    return f" ({statements[-1].filename}, line {statements[-1].lineno})" if statements else ""


def where_modules_are(error: Exception, module: str) -> str:
    """The end of a message about a module that cannot be found: the folders in which Python searches for it; empty for
    another error, such as that of a module which the found one imports.

    Only `python -m vit` searches the current folder; the command `vit` and `python train.py` search that of their file.
    """
    name = module.partition(".")[0]
    if not isinstance(error, ModuleNotFoundError) or error.name != name:
        return ""
    found = next((each for each in (f"{name}.py", name) if os.path.exists(each)), None)
    if found is None:
        return ("; save it in the current folder and start python -m vit, or in a folder on PYTHONPATH; install a "
                f"package with: pip install {name}")
    return f"; {found} is in the current folder, which only python -m vit searches: start that, or set PYTHONPATH=."
