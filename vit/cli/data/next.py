"""`vit next`: which unlabelled images or texts to label next."""

import csv
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from vit.cli.file_checks import check_new_folder, check_order
from vit.cli.shared_options import MAX_COUNT, BatchSize, Device, ForwardPrecision, Model, Precision, check_inputs
from vit.cli.terminal import (
    check_classes,
    counted,
    print_left_out,
    print_table_as_lines,
    print_unreadable,
    print_written,
)
from vit.messages import number_of

if TYPE_CHECKING:
    from vit.data.image_sources.files import LeftOut
    from vit.inference import Predictor, TextPredictor


def choose_next(
    model: Model,
    inputs: Annotated[Path, typer.Argument(
        metavar="FOLDER", help="Folder of images; for a model of texts a file with one text per line.",
        show_default=False, callback=check_inputs)],
    count: Annotated[int, typer.Option(min=1, max=MAX_COUNT, help="Number of samples to choose.")] = 50,
    output: Annotated[Path, typer.Option("--output", "-o", help="New folder for the files.")] = Path("next"),
    exclude: Annotated[list[Path] | None, typer.Option(
        help="next.csv of an earlier choice; leaves out its samples. May be repeated.", show_default=False,
        callback=check_inputs)] = None,
    seed: Annotated[int, typer.Option(help="Seed of the random choice.")] = 0,
    batch_size: BatchSize = 64,
    precision: ForwardPrecision = Precision.full,
    device: Device = None,
) -> None:
    """Choose which unlabelled images or texts to label next: uncertain ones that differ from each other.

    Writes next.csv, a page with the pictures, and label_studio.json with label_studio.xml, the import file and the
    labelling interface of Label Studio. Near copies of a chosen image are left out.
    """
    check_new_folder(output)
    check_order(model, [inputs])
    known = {source for file in exclude or [] for source in earlier_choice(file)}
    from vit.evaluation.labelling.next_to_label import next_to_label, remaining
    from vit.inference import MaskedTextPredictor, MultiLabelPredictor, Seq2SeqPredictor, TextPredictor, load
    from vit.report.pages.next_to_label import save_next

    predictor = load(model, device, str(precision))
    if isinstance(predictor, Seq2SeqPredictor | MaskedTextPredictor):
        raise ValueError(f"{model} is not a classifier, and vit next is for classifiers of images or texts; the least "
                         "certain texts of a translator have the lowest score in the table of vit predict -f csv")
    check_classes(predictor)
    texts, left_out = isinstance(predictor, TextPredictor), []
    samples = listed(predictor, inputs, left_out)
    unlabelled = remaining(samples, known)
    with counted("predict", len(unlabelled)) as advance:
        found = next_to_label(predictor, unlabelled, count, seed=seed, batch_size=batch_size, progress=advance)
    save_next(output, found, predictor.bundle.classes, str(model), isinstance(predictor, MultiLabelPredictor),
              None if texts else inputs.expanduser(),
              None if texts else lambda path: predictor.preprocessing.decode(Path(path), path))
    print_unreadable(found.unreadable, found.samples + len(found.unreadable), "text" if texts else "file")
    print_left_out(left_out, len(samples))
    copies = number_of(found.near_copies, "near copy", "near copies")
    typer.echo(f"{len(found.chosen)} of {found.samples} to label next; {copies} left out")
    print_written(f"{output / 'next.csv'}, {output / 'next.html'}, {output / 'label_studio.json'} and "
                  f"{output / 'label_studio.xml'}")


def listed(predictor: "Predictor | TextPredictor", inputs: Path, left_out: "list[LeftOut]") -> list:
    """The images of a folder, or the texts of a file.

    Raises:
        FileNotFoundError: there is no such file, or the folder has no image.
        ValueError: the input is of another kind than the model reads.
    """
    from vit.data.formats.lines import iterate_lines
    from vit.inference import TextPredictor, named_images

    inputs = inputs.expanduser()
    if isinstance(predictor, TextPredictor):
        if inputs.is_dir():
            raise ValueError(f"{inputs} is a folder, but the model reads texts; pass a file with one text per line")
        print_table_as_lines(inputs)
        texts = [line.text for line in iterate_lines(inputs)]
        return [tuple(text.split("\t")) if predictor.columns == 2 else text for text in texts if text.strip()]
    if not inputs.is_dir():
        raise ValueError(f"{inputs} is not a folder; pass the folder of the images (unpack an archive first)")
    return [path for _, path in named_images(inputs, left_out)]


def earlier_choice(file: Path) -> list[str]:
    """The paths or texts in the table of an earlier choice.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: it is another table.
    """
    with open(file.expanduser(), newline="", encoding="utf-8-sig", errors="surrogateescape") as content:
        csv.field_size_limit(2**31 - 1)  # texts may exceed the default limit of 131,072 characters
        header, *rows = list(csv.reader(content)) or [[]]
    if not header or header[0] not in ("path", "text"):
        raise ValueError(f"--exclude {file}: the first column must be path or text, as in next.csv of vit next")
    return [row[0] for row in rows if row]
