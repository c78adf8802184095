"""The hint of an error about an unknown key or option: the nearest name that exists."""

from vit.messages import did_you_mean, nearest_names
from vit.other_names import MODEL, NO_KEY, RUN


def nearest(key: str, among: list[str], cutoff: float = 0.7) -> str:
    """`; did you mean X?`, or nothing without a near name. X is, in this order: the same name in another node, the key
    for which another library has this name, a key of similar spelling, a key whose last part has a similar spelling.

    Args:
        cutoff: similarity in [0, 1] from which on a key is similar.
    """
    leaf = key.rpartition(".")[2]
    option = MODEL.get(leaf, leaf if leaf in MODEL.values() else None)
    elsewhere = [name for name in (RUN.get(leaf), f"data.{option}") if name in among] or (
        [f"model.{option}"] if option else [])
    last_parts = {name.rpartition(".")[2]: name for name in reversed(among)}
    same = [name for name in among if name.endswith(f".{key}")]
    near = (
        [name for name in elsewhere if name in same]  # image_size is that of the data, which the model follows
        or same
        or [name for name in among if name.rpartition(".")[2] == leaf]
        or elsewhere[:1]
        or [name for name in nearest_names(key, among, n=3, cutoff=cutoff) if is_near(key, name)][:1]
        or [last_parts[name] for name in nearest_names(leaf, last_parts, cutoff=max(cutoff, 0.75))]
    )
    near = [f"{name}.name" if f"{name}.name" in among and "." in name else name for name in near[:3]]
    return did_you_mean(near)


def is_near(key: str, other: str) -> bool:
    """Whether two keys are similar not only by their node: `recipe.foo` is not similar to `recipe.loss` or `recipe`."""
    if key.startswith(f"{other}."):
        return False
    (node, _, leaf), (node_of_other, _, other_leaf) = key.rpartition("."), other.rpartition(".")
    return node != node_of_other or not node or bool(nearest_names(leaf, [other_leaf], cutoff=0.5))


def without_key(key: str) -> str | None:
    """Why the project has no key for an option of Lightning's Trainer, in the node `trainer` or without a node; None
    for other keys.
    """
    return NO_KEY.get(key.removeprefix("trainer."))
