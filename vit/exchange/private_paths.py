"""What a run recorded, with every path reduced to its last part and without credentials, before it is published."""

import re
from pathlib import Path
from typing import Any

from vit.exchange.source_names import HUB, TIMM, TIMM_SLASH
from vit.files.credentials import HIDDEN, INNER, USER, hide_inner, is_secret
from vit.messages import in_hydra_quotes

# config keys whose values are paths: read literally on the command line, and reduced in published records
PATH_KEYS = ("data.root", "data.path", "data.corrections", "data.leave_out", "data.cache_dir", "init_from",
             "model.vectors", "distill.teacher", "resume", "run_dir", "runs")
# the folders in front of a file name anywhere in a text; a single '/' is not a path, and of URLs only local ones are
FOLDERS = re.compile(r"(?<![\w./-])(?:file://|sqlite:/{2,3}|~|\.{1,2}|[A-Za-z]:)?"
                     r"[/\\](?:[^/\\,\]}'\"]+[/\\])*(?=[^/\\,\]}'\"\s])")


def without_folders(value: Any) -> Any:
    """The values with every path in a text reduced to its last part, and without credentials."""
    if isinstance(value, dict):
        return {key: HIDDEN if is_secret(key, inner) else without_folders(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [without_folders(inner) for inner in value]
    return FOLDERS.sub("", USER.sub("", value)) if isinstance(value, str) else value


def overrides_without_folders(overrides: list[str]) -> list[str]:
    """Command-line overrides whose paths are reduced to their last part."""
    return [override_without_folders(override) for override in overrides]


def override_without_folders(override: str) -> str:
    key, equals, value = override.partition("=")
    if is_secret(key.lstrip("+~"), value) and value != "null":
        return f"{key}='{HIDDEN}'"
    quotes = re.fullmatch(r"(['\"])(.*)\1", value, re.DOTALL)
    bare = quotes[2].replace("\\'", "'") if quotes else value
    if key.lstrip("+~") in PATH_KEYS and not bare.startswith((HUB, TIMM, TIMM_SLASH)):
        name = Path(bare).name or bare  # the folder "." has no name
        return f"{key}={name}" if re.fullmatch(r"[\w.@-]*", name) else f"{key}={in_hydra_quotes(name)}"
    return f"{key}{equals}{FOLDERS.sub('', INNER.sub(hide_inner, USER.sub('', value)))}"
