"""The names that select weights of timm or of the Hugging Face hub, without heavy imports."""

from vit.files.missing import hint_at_missing, is_missing

TIMM, HUB = "timm:", "hub:"
TIMM_SLASH = "timm/"  # accepted as well, where no such path exists


def hint_at_missing_source(name: str) -> str | None:
    """The hint of an error about a source of weights that does not exist; None for a path that exists, and for names of
    timm and the hub, which are not looked up here.
    """
    if name.startswith((TIMM, HUB, TIMM_SLASH)) or not is_missing(name):
        return None
    hub = f"; for a model of the hub, write {HUB}{name}" if name.count("/") == 1 and "." not in name[:2] else ""
    near = hint_at_missing(name)
    return f"{hub}{near}" if near.endswith("?") else f"{near}{hub}"
