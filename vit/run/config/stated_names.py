"""Names in overrides that state something else than the values of the config, such as `model.name=vit_tiny_patch16_384`
where the images have another size.

Each check yields sentences for warnings; `NAMES` has the key of the override that it is about.
"""

import re
from collections.abc import Collection, Iterator

from vit.run.config.composing import groups_of
from vit.run.config.groups import is_group, options
from vit.run.config.hydra_interface import search_path_of, separate_primary
from vit.run.config.needed_keys import ON_IMAGES, ON_TEXTS
from vit.run.config.overrides import dotted_items, override_items, parse, yaml_text
from vit.run.config.valid_values import DEFAULT_SIZE

MODELS_OF_TEXTS = {"text_classification": "text", "masked_text": "bert", "seq2seq": "seq2seq"}  # task -> an option
SIZE_IN_NAME = re.compile(r"_p(?:atch)?\d+(?:_[a-z]\w*?)*_(\d+)(?:\.|$)|^(?:vit|mae)_[a-z0-9]+_(\d+)$")  # also of timm
SHOWN = 6  # values of an experiment in a sentence


def size_of_images(config: dict, overrides: list[str]) -> Iterator[str]:
    """A sentence about an option of the group `model` whose size is only the name of a network of images, on texts."""
    own, model, task = dict(override_items(overrides)), config["model"], config["task"].get("name")
    name, sizes = str(model.get("name")), ("dim", "depth", "num_heads")
    if not isinstance(own.get("model"), str) or task not in ON_TEXTS or config.get("init_from") or "kind" in model:
        return
    missing = [f"model.{key}" for key in sizes if model.get(key) is None]
    fit = "image_to_text" if "preprocessing" in config["data"] else MODELS_OF_TEXTS[task]
    if name.startswith(("vit_", "mae_")) and missing:
        yield (f"model={own['model']}: the size {name} of a network of images has no effect with task={task}; choose a "
               f"model of texts, such as model={fit}, or set {', '.join(missing)}")


def size_in_name(config: dict, overrides: list[str]) -> Iterator[str]:
    """A sentence about a `model.name` with a size of images, such as vit_tiny_patch16_384, where no override states the
    size and that of the data is another.
    """
    own, model, data = dict(override_items(overrides)), config["model"], config["data"]
    found = SIZE_IN_NAME.search(str(own.get("model.name")))
    if not found or "kind" in model or config["task"].get("name") not in ON_IMAGES or "data.image_size" in own:
        return
    size = data.get("image_size") or data["preprocessing"].get("size")
    if size is None and config.get("init_from"):  # the size of its images
        return
    named, size = int(found[1] or found[2]), size or DEFAULT_SIZE
    if size not in (named, [named, named]):
        yield (f"model.name={own['model.name']}: the size {named} in the name has no effect with "
               f"data.image_size={yaml_text(size)}; add data.image_size={named} for images of this size")


def name_of_other_data(config: dict, overrides: list[str]) -> Iterator[str]:
    """A sentence about a `data.name` that is the name of another data set than the digits of the default run."""
    data, name = config["data"], dict(override_items(overrides)).get("data.name")
    if data.get("_target_") == "vit.data.digits" and name != "digits" and name in options("data"):
        yield f"data.name={name} only names the data, which are those of data=digits; write data={name}"


def values_of_experiment(config: dict, overrides: list[str]) -> Iterator[str]:
    """A sentence for each option of the groups `model` and `recipe` that an override chooses and of which `experiment`
    replaces values, unless the experiment chooses this option itself.
    """
    name, parsed = separate_primary(parse(overrides))
    own = {override.key_or_group: override.value() for override in parsed}
    chosen = [group for group in ("model", "recipe") if isinstance(own.get(group), str)]
    if not own.get("experiment") or not chosen or config.get("resume"):
        return
    search = search_path_of(parsed)
    groups = {each.input_line: each.key_or_group for each in parsed if is_group(each.key_or_group, search)}
    alone = groups_of([*search, *(line for line, group in groups.items() if group not in chosen)], name)
    plain = groups_of([*search, *(line for line, group in groups.items() if group != "experiment")], name).keys
    together, stated = groups_of([*search, *groups], name).keys, {key for key, _ in override_items(overrides)}
    values = dict(dotted_items(config))
    for group in chosen:
        replaced = [key for key, value in together.items()
                    if key.startswith(f"{group}.") and not (isinstance(value, dict) and value)
                    and plain.get(key, ...) != value and key in values and not is_stated(key, stated)]
        if replaced and alone.choices.get(group) != own[group]:
            shown = ", ".join(f"{key}={yaml_text(values[key])}" for key in replaced[:SHOWN])
            more = f" and {len(replaced) - SHOWN} more" if len(replaced) > SHOWN else ""
            yield (f"experiment={yaml_text(own['experiment'])} sets {shown}{more} also with {group}={own[group]}; "
                   f"override these keys too for other values")


def is_stated(key: str, stated: Collection[str]) -> bool:
    """Whether an override sets a key, or a node above it."""
    return any(key == each or key.startswith(f"{each}.") and "." in each for each in stated)


NAMES = {  # key of an override that names a size or an option -> its check
    "model": size_of_images,
    "model.name": size_in_name,
    "data.name": name_of_other_data,
    "experiment": values_of_experiment,
}
