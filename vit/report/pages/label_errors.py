"""Likely label errors as a page with the pictures, ranked."""

from collections.abc import Callable, Sequence
from html import escape

from PIL import Image

from vit.evaluation.labelling.label_errors import LabelError, LabelSetError
from vit.report.pages.embedded import thumbnail_url
from vit.report.pages.page import html_page

SHOWN = 300  # pictures of one page, about 4 MB


def label_page(errors: Sequence[LabelError | LabelSetError], picture: Callable[[str], Image.Image | None], heading: str,
               samples: int, csv_name: str) -> str:
    """The text of the page.

    Args:
        picture: the image of a sample; None where it cannot be read, as of texts.
        samples: how many were looked at.
        csv_name: the file that is edited.
    """
    cut = f" The first {SHOWN} are shown." if len(errors) > SHOWN else ""
    text = (f"<p>{len(errors)} of {samples} samples have labels that are likely wrong, the most likely first.{cut} "
            f"Nothing is changed by itself: fill in the column <code>new_label</code> of "
            f"<code>{escape(csv_name)}</code>, and train with <code>data.corrections={escape(csv_name)}</code>.</p>")
    cards = "".join(_card(number, error, picture(error.name)) for number, error in enumerate(errors[:SHOWN], 1))
    return html_page(heading, f"{text}<div class=cards>{cards}</div>")


def _card(number: int, error: LabelError | LabelSetError, image: Image.Image | None) -> str:
    shown = "" if image is None else f'<img src="{thumbnail_url(image)}" alt="{escape(error.name)}">'
    return (f"<figure>{shown}<figcaption><strong>{number}. {escape(error.given)}</strong><br>{escape(error.proposal)}"
            f"<br><small>{escape(error.name)}</small></figcaption></figure>\n")
