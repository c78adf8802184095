"""The files of a seq2seq evaluation: predictions.csv, and for images mistakes.png."""

from os import PathLike
from pathlib import Path

from vit.data import LinePreprocessing, PairSplit
from vit.evaluation.seq2seq import Seq2SeqEvaluation
from vit.evaluation.text_metrics import character_errors
from vit.report.misclassified import misclassified_picture
from vit.report.tables import open_table

MAX_IMAGES = 24  # in mistakes.png


def write_seq2seq_evaluation(
    folder: str | PathLike[str], evaluation: Seq2SeqEvaluation, split: PairSplit, line: LinePreprocessing | None
) -> None:
    """Write a row per pair in the order of the split: name, source, reference, generated text, its errors and score.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    source = ["source"] if split.sources is not None else []
    columns = ["name", *source, "reference", "answer", "right", "cer", "score"]
    with open_table(folder / "predictions.csv", columns) as table:
        for i, generated, reference in zip(evaluation.rows, evaluation.predictions, evaluation.references, strict=True):
            source = {"source": split.sources[i]} if split.sources is not None else {}
            cer = character_errors(generated.text, reference) / max(1, len(reference))
            exact = int(generated.text == reference)
            cells = {"reference": reference, "answer": generated.text, "right": exact, "cer": cer,
                     "score": generated.score}
            table.write({"name": generated.source, **source, **cells})
    if line is not None:
        write_wrong_predictions(folder / "mistakes.png", evaluation, split, line)


def write_wrong_predictions(
    path: Path, evaluation: Seq2SeqEvaluation, split: PairSplit, line: LinePreprocessing
) -> Path:
    """The images of the wrong texts with the highest scores."""
    predictions, references = evaluation.predictions, evaluation.references
    wrong = [i for i in range(len(predictions)) if predictions[i].text != references[i]]
    shown = sorted(wrong, key=lambda i: -predictions[i].score)[:MAX_IMAGES]
    rows = [evaluation.rows[i] for i in shown]
    images = [line.preview(split.read(row), split.names[row]) for row in rows]
    texts, certainties = [predictions[i].text for i in shown], [predictions[i].certainty for i in shown]
    names = [split.names[row] for row in rows]
    return misclassified_picture(path, images, [references[i] for i in shown], texts, certainties, names)
