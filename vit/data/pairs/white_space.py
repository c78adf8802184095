"""White space around the texts of pairs."""

import logging
from collections.abc import Sequence

log = logging.getLogger("vit")


def strip_texts(column: str, texts: list[str], names: Sequence[str]) -> list[str]:
    """The texts without the white space around them, which cannot be seen in a table and which a model would have to
    generate; logs how many have some.
    """
    stripped = [text.strip() for text in texts]
    # an empty text is reported by on_empty
    changed = [i for i, (old, new) in enumerate(zip(texts, stripped, strict=True)) if new and len(old) != len(new)]
    if changed:
        log.info("%s: white space around %d of %d texts is removed, such as %r in %s; data.strip=false leaves it",
                 column, len(changed), len(texts), texts[changed[0]], names[changed[0]])
    return stripped
