"""Near copies as a page with both pictures of each pair."""

from collections.abc import Sequence

from vit.data.quality.near_copies import PIXELS, NearCopy
from vit.messages import agree, left_to_right, number_of, path_left_to_right
from vit.report.pages.html_parts import cards, paragraph
from vit.report.pages.page import html_page
from vit.report.pages.samples import Samples

SHOWN = 150  # pairs of one page, about 4 MB
STYLE = ".cards { grid-template-columns: repeat(auto-fill, minmax(min(100%, 260px), 1fr)); }"


def copies_page(pairs: Sequence[NearCopy], samples: Samples, heading: str) -> str:
    """The text of the page; pairs across splits and across classes are first in `pairs`, and named on their cards."""
    splits, classes = (sum(getattr(pair, key) for pair in pairs) for key in ("across_splits", "across_classes"))
    text = (f"{number_of(len(pairs), 'pair')} of images {agree(len(pairs), 'shows', 'show')} the same: {splits} across "
            f"splits, {classes} across classes.")
    cut = f" The first {SHOWN} are shown." if len(pairs) > SHOWN else ""
    shown = (samples.pair(pair.one[:2], pair.other[:2], lines(pair)) for pair in pairs[:SHOWN])
    return html_page(heading, paragraph(text + cut) + cards(shown), style=STYLE)


def lines(pair: NearCopy) -> list[str]:
    """Similarity and what the two images differ in, then split, name and label of each."""
    across = [name for name, apart in (("splits", pair.across_splits), ("classes", pair.across_classes)) if apart]
    facts = [f"similarity {pair.similarity:.3f}", *([] if pair.found_by == PIXELS else [f"by {pair.found_by}"]),
             *([f"across {' and '.join(across)}"] if across else [])]
    return [", ".join(facts), *(
        left_to_right(f"{split}: ", path_left_to_right(name), *([" (", label, ")"] if label else []))
        for split, name, label in (pair.one, pair.other))]
