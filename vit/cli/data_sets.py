"""Data sets that commands read, named by the words that training understands."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vit.bundle import Bundle
    from vit.data import PairSource, Source


def recorded_overrides(extra: dict, overrides: list[str]) -> list[str]:
    """What a bundle records of its data set; nothing where the command names another one."""
    if "data" not in extra and not overrides:
        raise ValueError("the model does not say which data it was trained on; name some: data=folder data.root=photos")
    return [] if any(override.startswith("data=") for override in overrides) else extra.get("data", [])


def data_config(overrides: list[str], bundle: "Bundle | None" = None) -> dict:
    """The `data` node of the config that these overrides compose, as `composed`."""
    return composed(overrides, bundle)["data"]


def composed(overrides: list[str], bundle: "Bundle | None" = None, besides: str | None = None) -> dict:
    """The config of a data set: what a bundle records of it, then the overrides of the command.

    A bundle may come from anybody, so it may choose among the data sets that the project or the command names.

    Args:
        besides: one other node that the command reads.

    Raises:
        ConfigError: an override of anything else, or a recorded data set that would run somebody's program.
    """
    from vit.launch.composing import ConfigError, compose, plain
    from vit.launch.overrides import parse
    from vit.launch.targets import check_overrides, check_stored

    recorded = recorded_overrides(bundle.extra, overrides) if bundle is not None else []
    check_overrides(recorded, bundle.path if bundle is not None else "")
    words = [*recorded, *overrides]
    config = plain(compose(words))
    if recorded:
        check_stored({"data": config["data"]}, bundle.path, overrides)
    read = ("data.", f"{besides}.") if besides else ("data.",)
    for override in parse(words):
        if override.key_or_group not in ("data", "experiment") and not override.key_or_group.startswith(read):
            known = " or ".join(f"{node}*" for node in read)
            raise ConfigError(f"{override.input_line} changes nothing here; leave it out: this command reads data=, "
                              f"experiment= and {known}")
    return config


def source(data: dict) -> "Source | PairSource":
    from vit.launch.build import build_source

    return build_source(data)
