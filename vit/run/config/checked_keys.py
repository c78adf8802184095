"""The keys of overrides: each must be in the config, or be added to a node that accepts further keys. Keys of the user,
such as variables, may be added, removed and set to any value, as in Hydra.
"""

from hydra.core.override_parser.types import Override

from vit.messages import override_for_shell
from vit.other_names import RUN
from vit.run.config.groups import OPTIONAL_GROUPS, is_group, options, options_with
from vit.run.config.hydra_interface import is_hydra_key
from vit.run.config.name_hints import nearest, without_key
from vit.run.config.overrides import REMOVED_KEYS, ConfigError, overrides_of_path
from vit.run.config.own_keys import is_own, is_referred
from vit.run.config.valid_values import valid_values
from vit.run.config.value_checks import wrong_type

# nodes to which a command may add keys; the code that reads them rejects unknown ones
EXTENSIBLE = ("data", "model", "recipe.augment", "recipe.mixup", "recipe.optimizer.options", "logger", "strategy",
              "callbacks")
NAMED_GROUPS = ("data", "model", "recipe", "strategy", "logger", "finetune", "distill", "augment", "experiment")
# nodes that may be null
NULL_NODES = ("recipe.augment", "recipe.crop", "recipe.mixup", "recipe.progressive", "finetune.lora")
OF_OBJECTS = ("callbacks", "logger", "recipe.augment")  # nodes of objects that `_target_` makes
FREE = (*EXTENSIBLE, *NULL_NODES, "compare", "trainer")  # not checked here in files of the user


def check_keys(parsed: list[Override], known: dict, choices: dict[str, str], search: tuple[str, ...]) -> None:
    """Checks that every key is in the composed config, or is added to a node that accepts further keys.

    Args:
        known: the value of every dotted key of that config.
        choices: the option that is chosen in each group.
        search: the overrides of Hydra's search path.

    Raises:
        ConfigError: names the nearest valid key, or the options of the group that have the key.
    """
    for override in parsed:
        key, of_group = override.key_or_group, is_group(override.key_or_group, search)
        if is_hydra_key(key):
            continue
        added = override.is_add() or override.is_force_add() or key.startswith("model.")
        of_augment = key == "recipe.augment" or key.rpartition(".")[0] == "recipe.augment"
        if of_augment and override.value() in options("augment", search):
            raise ConfigError(f"{key}={override.value()}: did you mean augment={override.value()}?")
        if override.is_delete() and key in known and not is_removable(key, known[key]):
            valid = valid_values(key)
            fix = f"write {key}=null" if valid is None or valid.accepts(None) else (
                f"leave it out for the default, or write {key}=VALUE")
            raise ConfigError(f"~{key}: keys cannot be removed; {fix}")
        if key == "finetune.name" and override.value() in {*options("finetune", search)} - {choices.get("finetune")}:
            raise ConfigError(f"{key}={override.value()} only names the method; write finetune={override.value()}")
        problem = wrong_type(override, known[key]) if key in known and not of_group else None
        if problem and not is_own(key, FREE):
            raise ConfigError(problem)
        if of_group or key in known or added and key.startswith(tuple(f"{node}." for node in EXTENSIBLE)):
            continue
        if added and is_variable(key, known, parsed):
            continue
        raise ConfigError(_why_unknown(override, known, choices, search, added))


def is_removable(key: str, value: object) -> bool:
    """Whether a command may remove a key: one of the user, or an object of a node of objects, such as a logger."""
    is_object = key.rpartition(".")[0] in OF_OBJECTS and isinstance(value, dict) and "_target_" in value
    return is_object or is_own(key, FREE)


def is_variable(key: str, known: dict, parsed: list[Override]) -> bool:
    """Whether a key that an override adds is a variable of the user: of a node of the user, or in an interpolation,
    as in `+width=64 model.dim=${width}`. Values are parsed: a sweeper of Hydra writes `$\\{width\\}`.
    """
    node = key.partition(".")[0]
    texts = [*(value for value in known.values() if isinstance(value, str)), *(str(each.value()) for each in parsed)]
    return node != key and node in known and is_own(node, FREE) or is_referred(key, texts)


def _why_unknown(
    override: Override, known: dict, choices: dict[str, str], search: tuple[str, ...], added: bool
) -> str:
    """The sentence about a key that is not in the config, with the nearest valid one.

    Args:
        known, choices, search: as for `check_keys`.
        added: whether the override adds a key.
    """
    key = override.key_or_group
    node, _, name = key.rpartition(".")
    if known.get(node) == {}:
        return f"{key} is a new key: write +{override.input_line}"
    if node in NULL_NODES and node in known and known[node] is None:
        return (f"{node} is null here, so it has no key {name}; write '{node}={{{name}: VALUE}}' with all keys that it "
                "needs")
    if key in REMOVED_KEYS:
        return f"{key} is no longer a key: {REMOVED_KEYS[key]}; leave it out"
    if why := without_key(key):
        return f"unknown key {key}, which has no counterpart here: {why}"
    if key in ("data.train", "data.val", "data.test") and "data.fractions" in known:
        return (f"data={choices.get('data')} has no key {name}; 'data.fractions=[0.8,0.1,0.1]' sets the fractions of "
                "train, val and test of data that is not split")
    if having := options_with(key, known, search)[1]:
        group, _, name = key.partition(".")
        value, chosen = override.value(), f"{group}={choices.get(group)}"
        if key == "data.root" and "data.path" in known:
            return f"{chosen} has no key root; did you mean {override_for_shell('data.path', value)}?"
        listed = ", ".join(f"{group}={option}" for option in having)
        fix = overrides_of_path(value) if chosen == "data=digits" and isinstance(value, str) else None  # the default
        return (f"{chosen} has no key {name}; add one that has it to the command: {listed}"
                f"{f'; for the data in {value} write {fix}' if fix else ''}")
    if "." not in key and (hint := _hint_of_data(override, known, search)):
        return f"unknown key {key}; {hint}"
    chosen = [f"{group}={key}" for group in NAMED_GROUPS if key not in RUN and key in options(group, search)]
    if chosen:  # `wandb=true`
        return f"unknown key {key}; did you mean {' or '.join(chosen)}?"
    if not added and name == "_target_" and node.rpartition(".")[0] in EXTENSIBLE:
        return f"{node} is a new key: write +{override.input_line}, with a + also before its other keys"
    near = nearest(key, [*OPTIONAL_GROUPS, *known])
    if not near and valid_values(option := f"{node}.options.{name}"):
        near = f"; did you mean +{option}?"
    if not added and key.startswith(tuple(f"{each}." for each in EXTENSIBLE)):
        near += f"; write +{override.input_line} for a new key of {node}" if node in known else ""
    elif not added and node in known and is_own(node, FREE):
        near += f"; write +{override.input_line} for a new key of {node}"
    return f"unknown key {key}{near} (see all of them with: --cfg job)"


def _hint_of_data(override: Override, known: dict, search: tuple[str, ...]) -> str | None:
    """The hint for a key without its node, such as `root=photos`, that only data sets other than the chosen one have;
    None for other keys.
    """
    key, value = override.key_or_group, override.value()
    leaves = {name.rpartition(".")[2] for name in known}
    name, having = options_with(f"data.{key}", known, search)
    if key in leaves or not having:
        return None
    if isinstance(value, str) and (fix := overrides_of_path(value)):
        return f"did you mean {fix}?"
    shown_value = override_for_shell(f"data.{name}", value) if isinstance(value, str) else f"data.{name}=VALUE"
    listed = ", ".join(f"data={option}" for option in having)
    return f"did you mean {shown_value}, with {'one of ' if len(having) > 1 else ''}{listed}?"
