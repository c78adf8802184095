"""The files of a seq2seq evaluation: predictions.csv, and for images mistakes.png."""

from os import PathLike
from pathlib import Path

from vit.data import LinePreprocessing, PairSplit
from vit.evaluation.seq2seq import Seq2SeqEvaluation
from vit.evaluation.text_metrics import character_errors
from vit.files.strict_json import json_text
from vit.report.figures.misclassified import misclassified_picture
from vit.report.tables import open_table

MAX_IMAGES = 24  # in mistakes.png


def write_seq2seq_evaluation(
    folder: str | PathLike[str], evaluation: Seq2SeqEvaluation, split: PairSplit,
    preprocessing: LinePreprocessing | None,
) -> None:
    """Write a row per source in the order of the split: name, source, reference, generated text, its errors and score,
    and where the texts differ (`marked_differences`). If sources have several references, `reference` is the nearest
    one, and a last column `references` has all of them as a JSON list.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    source = ["source"] if split.sources is not None else []
    columns = ["name", *source, "reference", "generated", "right", "cer", "score", "difference"]
    several = evaluation.has_several_references
    columns += ["references"] if several else []
    with open_table(folder / "predictions.csv", columns) as table:
        for i, generated, reference, every in zip(evaluation.rows, evaluation.predictions, evaluation.references,
                                                  evaluation.all_references, strict=True):
            source = {"source": split.sources[i]} if split.sources is not None else {}
            cer = character_errors(generated.text, reference) / max(1, len(reference))
            exact = int(generated.text == reference)
            cells = {"reference": reference, "generated": generated.text, "right": exact, "cer": cer,
                     "score": generated.score, "difference": marked_differences(reference, generated.text),
                     **({"references": json_text(every, indent=None, ascii_only=False)} if several else {})}
            table.write({"name": generated.source, **source, **cells})
    if preprocessing is not None:
        write_wrong_predictions(folder / "mistakes.png", evaluation, split, preprocessing)


def write_wrong_predictions(
    path: Path, evaluation: Seq2SeqEvaluation, split: PairSplit, preprocessing: LinePreprocessing
) -> Path:
    """The images of the wrong texts with the highest scores."""
    predictions, references = evaluation.predictions, evaluation.references
    wrong = [i for i in range(len(predictions)) if predictions[i].text != references[i]]
    shown = sorted(wrong, key=lambda i: -predictions[i].score)[:MAX_IMAGES]
    rows = [evaluation.rows[i] for i in shown]
    images = [preprocessing.preview(split.read(row), split.names[row]) for row in rows]
    certainties = [predictions[i].certainty for i in shown]
    names = [split.names[row] for row in rows]
    truths, texts = zip(*(different_parts(references[i], predictions[i].text) for i in shown), strict=True) if shown \
        else ((), ())
    return misclassified_picture(path, images, truths, texts, certainties, names)


def marked_differences(reference: str, text: str) -> str:
    """The reference with the edits that lead to the text: `[a>b]` for a replaced, `[a>]` for a missing and `[>b]` for
    an additional part; empty if they are equal.
    """
    from rapidfuzz.distance import Levenshtein

    if reference == text:
        return ""
    parts = []
    for edit in Levenshtein.opcodes(reference, text):
        one, other = reference[edit.src_start : edit.src_end], text[edit.dest_start : edit.dest_end]
        parts.append(one if edit.tag == "equal" else f"[{one}>{other}]")
    return "".join(parts)


def different_parts(reference: str, text: str, length: int = 14) -> tuple[str, str]:
    """Both texts from shortly before their first difference on, marked by an ellipsis where something is cut; whole if
    they are short.
    """
    first = next((i for i, (a, b) in enumerate(zip(reference, text, strict=False)) if a != b),
                 min(len(reference), len(text)))
    start = max(0, first - length // 3) if max(len(reference), len(text)) > length else 0
    return tuple(("…" if start else "") + each[start:] for each in (reference, text))
