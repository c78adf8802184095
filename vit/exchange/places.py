"""What a run noted down, without the places of the machine it ran on: those are nobody else's business."""

import re
from pathlib import Path
from typing import Any

# the keys of a config whose values are paths: taken literally on the command line, and told to nobody else
PLACES = ("data.root", "data.path", "init_from", "model.vectors", "distill.teacher", "resume", "run_dir", "runs")
# the folders of a place in any word; a sign such as '/' alone is none
FOLDERS = re.compile(r"(?<![\w.:/-])(?:~|\.{1,2}|[A-Za-z]:)?[/\\](?:[^/\\,\]}'\"]+[/\\])*(?=[^/\\,\]}'\"\s])")


def without_places(words: list[str]) -> list[str]:
    """Command-line words whose places are named by their last part alone."""
    found = []
    for word in words:
        key, equals, value = word.partition("=")
        quotes = re.fullmatch(r"(['\"])(.*)\1", value, re.DOTALL)
        bare = quotes[2].replace("\\'", "'") if quotes else value
        if key.lstrip("+~") in PLACES and not bare.startswith(("hub:", "timm:")):
            found.append(f"{key}={quoted(Path(bare).name)}")
        else:
            found.append(f"{key}{equals}{FOLDERS.sub('', value)}")
    return found


def quoted(value: str) -> str:
    return value if re.fullmatch(r"[\w.@-]*", value) else "'" + value.replace("'", "\\'") + "'"


def placeless(value: Any) -> Any:
    """The same values, of places in texts only their last part."""
    if isinstance(value, dict):
        return {key: placeless(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [placeless(inner) for inner in value]
    return FOLDERS.sub("", value) if isinstance(value, str) else value
