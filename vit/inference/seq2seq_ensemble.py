"""Models that generate texts together must read the same sources and have the same tokens."""

from vit.bundle import Bundle

LIMITS = ("max_width", "max_pixels")  # values of the preprocessing that may differ between the models of an ensemble


def check_ensemble(bundle: Bundle, other: Bundle) -> None:
    """Check that another model reads the same sources and generates the same tokens.

    Raises:
        ValueError: it does not.
    """
    if "target" not in other.tokenizers:
        raise ValueError(f"{other.path} does not generate text; ensemble= takes models that do")
    first, second = bundle.model.config.source, other.model.config.source
    if first != second:
        raise ValueError(f"{other.path} reads {second}s, but {bundle.path} reads {first}s; ensemble= needs models "
                         "with the same sources")
    for side in ("target", "source") if first == "text" else ("target",):
        if other.tokenizer(side).to_dict() != bundle.tokenizer(side).to_dict():
            raise ValueError(f"{other.path} and {bundle.path} have different {side} tokenizers; ensemble= needs "
                             "models with the same one")
    if first == "text" and len({each.extra["strip"] for each in (other, bundle) if "strip" in each.extra}) > 1:
        raise ValueError(f"one of {other.path} and {bundle.path} was trained with data.strip=true and the other was "
                         "not; ensemble= needs models with the same texts")
    if first == "image":
        found, expected = other.preprocessing.to_dict(), bundle.preprocessing.to_dict()
        differing = [key for key in expected if found[key] != expected[key] and key not in LIMITS]
        if differing:
            key = differing[0]
            raise ValueError(f"{other.path} and {bundle.path} have different preprocessing: {key} is {found[key]} and "
                             f"{expected[key]}; ensemble= needs models with the same one")
