"""The page of `vit report`: one HTML file that explains how good a model is, and the same as JSON."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from os import PathLike
from pathlib import Path

from vit.data.threads import StageProgress
from vit.files.outputs import write_output
from vit.files.strict_json import json_text
from vit.files.untrusted import read_json
from vit.inference import MultiLabelPredictor, Seq2SeqPredictor, TextPredictor
from vit.report.pages.html_parts import text
from vit.report.pages.page import html_page
from vit.report.sections.attention_maps import attention, text_attention_maps
from vit.report.sections.errors import confusion, gallery
from vit.report.sections.generated_texts import characters, lengths, pairs_data, source_attention, texts, worst_texts
from vit.report.sections.labels import label_reliability, label_scores, wrong_labels
from vit.report.sections.numbers import accuracy, calibration, header
from vit.report.sections.robustness import robustness
from vit.report.sections.subject import Section, Subject
from vit.report.sections.training_and_data import data_audit, texts_data, training

LIMIT = 10_000_000  # bytes of the page
Sections = tuple[Callable[[Subject], Section], ...]
IMAGES: Sections = (header, accuracy, confusion, calibration, gallery, attention, training, data_audit, robustness)
MULTI_LABEL: Sections = (header, label_scores, label_reliability, wrong_labels, attention, training, data_audit)
TEXTS: Sections = (header, accuracy, confusion, calibration, gallery, text_attention_maps, training, texts_data)
TRANSLATION: Sections = (header, texts, lengths, worst_texts, source_attention, training, pairs_data)
IMAGE_TO_TEXT: Sections = (header, texts, lengths, characters, worst_texts, source_attention, training, pairs_data)

STYLE = """
main { max-width: 1100px; margin: auto; } section { scroll-margin-top: 1rem; }
nav ul { display: flex; flex-wrap: wrap; gap: .3rem 1.2rem; padding: 0; list-style: none; }
a { color: inherit; } :focus-visible { outline: 2px solid #2f6fb7; outline-offset: 2px; }
dl { display: grid; grid-template-columns: minmax(7rem, max-content) 1fr; gap: .2rem 1rem; margin: .6rem 0; }
dt { color: var(--muted); } dd { margin: 0; overflow-wrap: anywhere; }
th { overflow-wrap: break-word; } td:not(.number) { overflow-wrap: anywhere; min-width: 5.5rem; }
table { width: auto; min-width: min(100%, 30rem); } caption { text-align: left; font-weight: 600; padding: .6rem 0; }
th.number { text-align: right; } td { min-width: 3.5rem; } h3 { font-size: 1rem; margin: 1.2rem 0 .5rem; }
pre { white-space: pre-wrap; overflow-wrap: anywhere; }
.drawing { background: #fff; border-radius: 6px; padding: .4rem; max-width: 100%; min-width: min(560px, 160vw);
  box-sizing: border-box; }
@media (max-width: 500px) { dl { grid-template-columns: 1fr; } dd { margin-bottom: .4rem; }
  .cards { grid-template-columns: repeat(auto-fill, minmax(140px, 1fr)); } }
@media print { nav { display: none; } .drawing { min-width: 0; break-inside: avoid; } }
"""


def write_report(path: str | PathLike[str], subject: Subject, progress: StageProgress | None = None) -> list[Path]:
    """Write the page to `path` and its values to the JSON file of the same name; both are returned.

    Args:
        progress: called with each section, the number of finished ones and the number of all, and by sections that take
            long.

    Raises:
        ValueError: the page is larger than `LIMIT`.
    """
    path, subject = Path(path), replace(subject, progress=progress)
    sections, chosen = [], sections_of(subject)
    for number, section in enumerate(chosen):
        if progress:
            progress(section.__name__.replace("_", " "), number, len(chosen))
        sections.append(section(subject))
    if progress:
        progress("page", len(chosen), len(chosen))
    page = report_page(f"Report: {subject.title}", sections).encode("utf-8")
    if len(page) > LIMIT:
        raise ValueError(f"{path} would have {len(page):,} bytes, more than {LIMIT:,}; use fewer --attention images")
    values = {section.key: dict(section.values) for section in sections}
    beside = path.with_suffix(".json")
    write_output(path, page)
    write_output(beside, f"{json_text(values)}\n".encode())
    return [path, beside]


def sections_of(subject: Subject) -> Sections:
    """The sections of a report, by the kind of model."""
    predictor = subject.predictor
    if isinstance(predictor, Seq2SeqPredictor):
        return IMAGE_TO_TEXT if predictor.is_image_to_text else TRANSLATION
    if isinstance(predictor, TextPredictor):
        return TEXTS
    return MULTI_LABEL if isinstance(predictor, MultiLabelPredictor) else IMAGES


def is_report(path: Path) -> bool:
    """Whether a JSON file is that of a report."""
    try:
        values = read_json(path)
    except (OSError, ValueError):
        return False
    return isinstance(values, dict) and {"header", "accuracy", "data"} <= values.keys()


def report_page(heading: str, sections: Sequence[Section]) -> str:
    """The text of the page: links to the sections, then one after the other."""
    links = "".join(f'<li><a href="#{each.key}">{text(each.heading)}</a></li>' for each in sections)
    body = "".join(f'<section id={each.key} aria-labelledby="{each.key}-heading">'
                   f'<h2 id="{each.key}-heading">{text(each.heading)}</h2>\n{each.html}</section>\n'
                   for each in sections)
    return html_page(heading, f'<nav aria-label="Sections"><ul>{links}</ul></nav>\n{body}', style=STYLE)
