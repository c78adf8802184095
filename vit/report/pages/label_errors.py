"""Likely label errors as a page with the samples, ranked."""

from collections.abc import Sequence
from html import escape

from vit.evaluation.labelling.label_errors import LabelError, LabelSetError
from vit.messages import agree, left_to_right, number_of, path_left_to_right
from vit.report.pages.html_parts import cards
from vit.report.pages.page import html_page
from vit.report.pages.samples import Samples

SHOWN = 300  # pictures of one page, about 4 MB


def label_page(errors: Sequence[LabelError | LabelSetError], samples: Samples, heading: str, count: int,
               csv_name: str) -> str:
    """The text of the page.

    Args:
        count: number of examined samples.
        csv_name: the file that is edited.
    """
    cut = f" The first {SHOWN} are shown." if len(errors) > SHOWN else ""
    name = f"<code>{escape(csv_name)}</code>"
    text = (f"<p>{len(errors)} of {number_of(count, 'sample')} "
            f"{agree(len(errors), 'has a label that is', 'have labels that are')} likely wrong, the most likely "
            f"first.{cut} In parentheses: the probability of a label by a model that was not trained on the sample. "
            f"Nothing is changed by itself: fill in the column <code>new_label</code> of {name}, and train with "
            f"<code>data.corrections=</code>{name}.</p>")
    shown = (samples.card(error.name, [left_to_right(f"{number}. ", error.given), error.proposal,
                                        path_left_to_right(error.name)])
             for number, error in enumerate(errors[:SHOWN], 1))
    return html_page(heading, text + cards(shown))
