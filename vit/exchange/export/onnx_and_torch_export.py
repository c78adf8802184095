"""Programs that run without this project: a classifier as an ONNX file, or as an exported program of torch.

A program maps pixels to calibrated probabilities. Normalization and calibration are part of it, because a constant that
is wrong there changes predictions without an error; decoding and resizing images stay outside.
"""

import copy
import io
import logging
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram
from torch.nn.attention import SDPBackend, sdpa_kernel

from vit.bundle import Calibration
from vit.bundle.calibration import calibrated_probabilities
from vit.bundle.files import SourceError
from vit.bundle.label_calibration import LabelCalibration, label_probabilities
from vit.data import PackedPreprocessing, Preprocessing
from vit.exchange.export.comparing import relative_difference
from vit.exchange.options import OptionError
from vit.files.strict_json import json_text
from vit.messages import on_one_line

ENDINGS = {"onnx": (".onnx",), "torch_export": (".pt2",)}  # by the values of --to
KINDS = ("vit", "timm", "ensemble")
LIBRARIES = ("onnx", "onnxscript", "onnxruntime")
INPUT, OUTPUTS = "pixels", ("probabilities", "logits")
CLOSE = 1e-4  # of the largest output: rounding of a float32 program against float64
LARGEST = 2**31  # bytes of an ONNX file, a limit of protobuf
BATCHES = (1, 3)  # with which a program is checked; it was traced with another size


class Program(nn.Module):
    """An image classifier from pixels to probabilities, with all constants inside.

    Args:
        model: images (B,C,H,W) -> logits (B,classes).
        probabilities: logits (B,classes) -> probabilities (B,classes).
    """

    def __init__(self, model: nn.Module, preprocessing: Preprocessing, probabilities: Callable[[Tensor], Tensor]
                 ) -> None:
        super().__init__()
        self.model, self.preprocessing, self.probabilities = model, preprocessing, probabilities

    def forward(self, pixels: Tensor) -> tuple[Tensor, Tensor]:
        """uint8 (B,C,H,W) -> calibrated probabilities (B,classes), logits (B,classes)"""
        return self.outputs(self.preprocessing.normalize(pixels))

    def outputs(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """normalized images (B,C,H,W) -> calibrated probabilities (B,classes), logits (B,classes)"""
        logits = self.model(images)
        return self.probabilities(logits), logits


def check_libraries(to: str) -> None:
    """Raises SourceError if a library that the export needs is not installed."""
    missing = [name for name in LIBRARIES if to == "onnx" and find_spec(name) is None]
    if missing:
        raise OptionError(f'--to onnx needs {", ".join(missing)}, which {"is" if len(missing) == 1 else "are"} not '
                          "installed: pip install 'vitwright[onnx]'")


def image_program(model: nn.Module, preprocessing: object, classes: Sequence[str], thresholds: Sequence[float],
                  calibration: Calibration | LabelCalibration | None) -> Program:
    """The program of a model with its classes, preprocessing and calibration.

    Raises:
        SourceError: the model is not an image classifier.
    """
    kind = model.config.kind
    if kind not in KINDS:
        raise SourceError(f"only image classifiers can be exported as programs, but this model is of kind {kind}; use "
                          "--to bundle for vit")
    if not classes or not isinstance(preprocessing, Preprocessing):
        raise SourceError("only classifiers can be exported as programs, but this model has no classes; add a head "
                          "with --num-classes N, or use --to bundle")
    if isinstance(preprocessing, PackedPreprocessing):
        raise SourceError("a program accepts images of one size, but this model keeps the aspect ratio of images "
                          "(data.pack=true); train a model with data.pack=false, or use vit predict")
    probabilities = label_probabilities if thresholds else calibrated_probabilities
    return Program(model, preprocessing, partial(probabilities, record=calibration)).eval()


def metadata(preprocessing: Preprocessing, classes: Sequence[str], thresholds: Sequence[float],
             calibrated: bool) -> dict[str, str]:
    """What a program states about itself, as JSON texts: how images become pixels, and what its outputs mean."""
    values = {"classes": list(classes), "preprocessing": preprocessing.to_dict(), "thresholds": list(thresholds),
              "calibrated": calibrated}
    return {name: json_text(value, indent=None) for name, value in values.items()}


def write_onnx(path: Path, program: Program, stated: Mapping[str, str]) -> None:
    """Write one ONNX file with any batch size; `stated` becomes its metadata.

    Raises:
        SourceError: a layer has no equivalent in ONNX, or the weights exceed the size of an ONNX file.
    """
    size = sum(tensor.nbytes for tensor in program.state_dict().values())
    if size >= LARGEST:
        raise SourceError(f"the weights take {size / 1e9:.1f} GB, but an ONNX file holds at most {LARGEST / 1e9:.1f} "
                          "GB; use --to torch_export")
    with quiet(), sdpa_kernel(SDPBackend.MATH):  # whose memory layout is the one that ONNX's attention has
        traced = trace(program)
        try:
            found = torch.onnx.export(traced, dynamo=True, dynamic_shapes=({0: "batch"},), input_names=[INPUT],
                                      output_names=list(OUTPUTS), verbose=False)
        except torch.onnx.OnnxExporterError as error:
            raise SourceError(f"ONNX has no equivalent of a part of this model ({summary(error)}); --to "
                              "torch_export keeps all operations of torch") from error
    found.model.metadata_props.update(stated)
    found.save(path)


def write_torch_export(path: Path, program: Program, stated: Mapping[str, str]) -> None:
    """Write a file for `torch.export.load`, with any batch size; `stated` becomes its extra files."""
    with quiet():
        buffer = io.BytesIO()  # torch's own writer ends the process if the disk is full
        torch.export.save(trace(program), buffer, extra_files=dict(stated))
        path.write_bytes(buffer.getbuffer())


def trace(program: Program) -> ExportedProgram:
    """The operations of a program on the CPU.

    Raises:
        SourceError: torch cannot trace the model.
    """
    image = torch.zeros(2, *input_shape(program), dtype=torch.uint8)
    batch = Dim("batch", min=1)
    try:
        with torch.no_grad():
            return torch.export.export(program, (image,), dynamic_shapes=({0: batch},))
    except Exception as error:  # of many classes, by the operation that cannot be traced
        raise SourceError(f"torch.export cannot trace this model ({summary(error)}); --to bundle saves it") from error


def input_shape(program: Program) -> tuple[int, int, int]:
    """(channels, height, width) of its input."""
    config = program.model.config
    return config.in_chans, *config.image_size


def check_program(path: Path, to: str, program: Program) -> None:
    """Run the written file and compare its outputs with those of the program in float64.

    Raises:
        SourceError: they differ.
    """
    exact = copy.deepcopy(program).double()
    for batch in BATCHES:
        generator = torch.Generator().manual_seed(batch)
        shape = (batch, *input_shape(program))
        pixels = torch.randint(256, shape, dtype=torch.uint8, generator=generator)
        with torch.no_grad():
            expected = exact.outputs(program.preprocessing.normalize(pixels).double())
            difference = max(map(relative_difference, RUNNERS[to](path, pixels), expected))
        if difference > CLOSE:
            raise SourceError(f"the program that --to {to} would save has other outputs for {batch} images: they "
                              f"differ by {difference:.2g} of the largest; nothing was saved")


def run_onnx(path: Path, pixels: Tensor) -> list[Tensor]:
    """uint8 (B,C,H,W) -> the outputs of an ONNX file"""
    import onnxruntime

    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    return [torch.from_numpy(np.asarray(found)) for found in session.run(list(OUTPUTS), {INPUT: pixels.numpy()})]


def run_torch_export(path: Path, pixels: Tensor) -> list[Tensor]:
    """uint8 (B,C,H,W) -> the outputs of an exported program of torch"""
    return list(torch.export.load(path).module()(pixels))


@contextmanager
def quiet() -> Iterator[None]:
    """Suppresses the warnings and log lines of the exporters."""
    disabled = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(disabled)


def summary(error: Exception) -> str:
    """The class of an error and the start of its message."""
    return f"{type(error).__name__}: {on_one_line(error, 200)}"


WRITERS = {"onnx": write_onnx, "torch_export": write_torch_export}
RUNNERS = {"onnx": run_onnx, "torch_export": run_torch_export}
