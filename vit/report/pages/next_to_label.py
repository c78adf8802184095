"""What to label next, as files: a table, an import file of Label Studio with its labelling interface, and a page."""

import csv
import io
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from urllib.parse import quote
from xml.sax.saxutils import quoteattr

from PIL import Image

from vit.evaluation.labelling.next_to_label import ChosenSample, NextToLabel
from vit.files.outputs import write_output
from vit.files.strict_json import json_text
from vit.messages import agree, left_to_right, number_of, path_left_to_right
from vit.report.pages.embedded import thumbnail_url
from vit.report.pages.html_parts import card, cards, paragraph, table
from vit.report.pages.page import html_page
from vit.report.tables import join_cell

CSV, TASKS, INTERFACE, PAGE = "next.csv", "label_studio.json", "label_studio.xml", "next.html"
COLUMNS = ("path", "label", "probability", "score", "rank")
CONTROL = "label"  # name of the choices in the labelling interface
SERVED = "/data/local-files/?d="  # Label Studio's address of files below its document root


def save_next(
    folder: Path, found: NextToLabel, classes: Sequence[str], model: str, several: bool, inputs: Path | None,
    picture: Callable[[str], Image.Image] | None,
) -> None:
    """Write all files to a folder.

    Args:
        model: named in the tasks as the version of the model.
        several: whether a sample may have several labels.
        inputs, picture: the folder of the images, and the image of a path; None for texts.
    """
    folder.mkdir(parents=True, exist_ok=True)
    kind = "text" if inputs is None else "image"
    table = io.StringIO(newline="")
    writer = csv.writer(table)
    writer.writerow((kind if inputs is None else "path", *COLUMNS[1:]))
    writer.writerows(row(each, classes) for each in found.chosen)
    write_output(folder / CSV, table.getvalue().encode(errors="surrogateescape"))
    tasks = [task(each, kind, model, address(each.source, inputs)) for each in found.chosen]
    write_output(folder / TASKS, f"{json_text(tasks)}\n".encode())
    write_output(folder / INTERFACE, interface(kind, classes, several).encode(errors="surrogateescape"))
    write_output(folder / PAGE, page(found, picture).encode())


def row(each: ChosenSample, classes: Sequence[str]) -> list:
    """The cells of a row of the CSV table."""
    return [each.source, join_cell(each.labels, classes),
            join_cell([f"{p:.6f}" for p in each.probabilities], classes), f"{each.score:.6f}", each.rank]


def address(source: str, inputs: Path | None) -> str:
    """What Label Studio shows: the text, or the address of the image if the document root is the parent folder of
    `inputs`.
    """
    if inputs is None:
        return source
    root = Path(os.path.abspath(inputs)).parent  # also of .. and a/../b
    return SERVED + quote(os.fsencode(Path(os.path.abspath(source)).relative_to(root).as_posix()))


def task(each: ChosenSample, kind: str, model: str, value: str) -> dict:
    """A task of Label Studio with its prediction, in the basic JSON format (https://labelstud.io/guide/predictions).

    Its score is the lowest probability of a predicted label.

    Args:
        kind, value: "image" with its address, or "text" with the text.
    """
    choice = {"id": "label", "type": "choices", "from_name": CONTROL, "to_name": kind,
              "value": {"choices": list(each.labels)}}
    prediction = {"model_version": model, "score": min(each.probabilities, default=0.0),
                  "result": [choice] if each.labels else []}
    return {"data": {kind: value, "path": each.source, "rank": each.rank, "uncertainty": round(each.score, 6)},
            "predictions": [prediction]}


def interface(kind: str, classes: Sequence[str], several: bool) -> str:
    """The labelling interface for these tasks, in Label Studio's XML."""
    choices = "".join(f"    <Choice value={quoteattr(name)}/>\n" for name in classes)
    return (f'<View>\n  <{kind.capitalize()} name="{kind}" value="${kind}"/>\n  <Choices name="{CONTROL}" '
            f'toName="{kind}" choice="{"multiple" if several else "single"}">\n{choices}  </Choices>\n</View>\n')


def page(found: NextToLabel, picture: Callable[[str], Image.Image] | None) -> str:
    """The HTML page of the chosen samples in the order of their choice."""
    text = (f"{len(found.chosen)} of {number_of(found.samples, 'sample')}, in the order of their choice: uncertain "
            f"ones that differ from each other. {number_of(found.near_copies, 'near copy', 'near copies')} "
            f"{agree(found.near_copies, 'was', 'were')} left out.")
    if picture is not None:
        body = cards(card(thumbnail_url(picture(each.source)), each.source, lines(each)) for each in found.chosen)
    else:
        body = table(("rank", "text", "label", "score"),
                     [(each.rank, each.source, caption(each), f"{each.score:.3f}") for each in found.chosen],
                     "Texts to label next")
    return html_page("What to label next", paragraph(text) + body)


def lines(each: ChosenSample) -> list[str]:
    """The lines below a picture: rank and predicted labels, uncertainty, path."""
    return [left_to_right(f"{each.rank}. ", caption(each)), f"uncertainty {each.score:.3f}",
            path_left_to_right(each.source)]


def caption(each: ChosenSample) -> str:
    """The predicted labels with their probabilities."""
    pairs = zip(each.labels, each.probabilities, strict=True)
    return ", ".join(left_to_right(name, f" ({p:.3f})") for name, p in pairs) or "no label"
