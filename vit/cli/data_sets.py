"""Data sets that commands read, named by the words that training understands."""

import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vit.bundle import Bundle
    from vit.data import PairSource, Source

log = logging.getLogger("vit")


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
    from vit.run.config.composing import SEARCH_PATH, ConfigError, compose, plain
    from vit.run.config.overrides import parse
    from vit.run.config.targets import check_overrides, check_stored

    recorded = recorded_overrides(bundle.extra, overrides) if bundle is not None else []
    check_overrides(recorded, bundle.path if bundle is not None else "")
    words = [*recorded, *overrides]
    config = plain(compose(words))
    if recorded:
        check_stored({"data": config["data"]}, bundle.path, overrides)
    read = ("data.", f"{besides}.") if besides else ("data.",)
    for override in parse(words):
        key = override.key_or_group
        if key not in ("data", "experiment", SEARCH_PATH) and not key.startswith(read):
            known = " or ".join(f"{node}*" for node in read)
            raise ConfigError(f"{override.input_line} changes nothing here; leave it out: this command reads data=, "
                              f"experiment= and {known}")
    return config


def source(data: dict) -> "Source | PairSource":
    from vit.run.parts.data_source import build_source

    return build_source(data)


def measured_source(data: dict, bundle: "Bundle", split: str | None = None) -> "Source | PairSource":
    """A data set to measure a model on. Of the data that its run recorded, every sample stays in its recorded split.

    Args:
        split: the only one that is measured; None: all of them.

    Raises:
        DataError: recorded samples of what is measured are missing or have changed.
        ConfigError: the data node asks for other splits of the same data.
    """
    from vit.run.finish import SPLIT_RULE
    from vit.run.records import record_beside

    found, record = source(data), record_beside(bundle.path)
    if record is None or not record.splits:
        if "fractions" in data and may_be_recorded(data, bundle.extra) and bundle.extra.get("split_rule") != SPLIT_RULE:
            log.warning("%s was saved when splits by fractions depended on the order of the samples, and its run "
                        "is not there: samples that it was trained on may be measured here", bundle.path)
        return found
    if record.is_of(data, found):
        record.check_splits(data)
        return record.apply(found, list(record.splits) if split is None else [split])
    measured = split or record.default_split()
    if measured in found.splits and measured != "train" and (count := record.known(found, measured)):
        log.warning("%d of the %d samples of %s, %s, have the content of samples that the model was trained on", count,
                    len(found.splits[measured]), found.name, measured)
    return found


def may_be_recorded(data: dict, extra: dict) -> bool:
    """Whether a data set is of the kind that a bundle was trained on, as far as the bundle records it."""
    kinds = [override for override in extra.get("data", []) if override.startswith("data=")]
    return "data" in extra and f"data={data['name']}" in (kinds[-1:] or [f"data={data['name']}"])
