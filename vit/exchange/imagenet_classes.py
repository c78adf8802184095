"""The classes of ImageNet as WordNet ids, for weights that do not name them."""

import re
from collections.abc import Sequence

WORDNET_ID = re.compile(r"n\d{8}")


def are_wordnet_ids(classes: Sequence[str]) -> bool:
    """Whether all names are WordNet ids (n01440764, ...), as those of the folders of ImageNet."""
    return all(WORDNET_ID.fullmatch(name) for name in classes)


def imagenet_synsets(num_classes: int) -> list[str]:
    """WordNet ids (n01440764, ...) of the ImageNet variant with `num_classes` classes; [] for any other number."""
    from timm.data import ImageNetInfo, infer_imagenet_subset

    subset = infer_imagenet_subset({"num_classes": num_classes})
    return list(ImageNetInfo(subset).label_names()) if subset else []
