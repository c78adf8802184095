"""Likely label errors as a page with the pictures, ranked."""

from collections.abc import Callable, Sequence
from html import escape

from PIL import Image

from vit.evaluation.labelling.label_errors import LabelError
from vit.report.pages.embedded import thumbnail_url
from vit.report.pages.page import html_page

SHOWN = 300  # pictures of one page, about 4 MB


def label_page(errors: Sequence[LabelError], picture: Callable[[str], Image.Image | None], heading: str, samples: int,
               csv_name: str) -> str:
    """The text of the page.

    Args:
        picture: the image of a sample; None where it cannot be read, as of texts.
        samples: how many were looked at.
        csv_name: the file that is edited.
    """
    cut = f" The first {SHOWN} are shown." if len(errors) > SHOWN else ""
    text = (f"<p>{len(errors)} of {samples} labels are likely wrong, the most likely first.{cut} Nothing is changed by "
            f"itself: fill in the column <code>new_label</code> of <code>{escape(csv_name)}</code>, and train with "
            f"<code>data.corrections={escape(csv_name)}</code>.</p>")
    cards = "".join(_card(number, error, picture(error.name)) for number, error in enumerate(errors[:SHOWN], 1))
    return html_page(heading, f"{text}<div class=cards>{cards}</div>")


def _card(number: int, error: LabelError, image: Image.Image | None) -> str:
    shown = "" if image is None else f'<img src="{thumbnail_url(image)}" alt="{escape(error.name)}">'
    return (f"<figure>{shown}<figcaption><strong>{number}. {escape(error.label)}</strong> "
            f"({error.label_probability:.3f})<br>suggested: <strong>{escape(error.suggested)}</strong> "
            f"({error.suggested_probability:.3f})<br><small>{escape(error.name)}</small></figcaption></figure>\n")
