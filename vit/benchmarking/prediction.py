"""Classification of image files by a saved model, from the files to the labels.

All libraries load the same folder of weights, which this project saves and timm and transformers open, and label the
same files: timm by the loop of its inference.py, transformers by its pipeline "image-classification".
"""

import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch

from vit.benchmarking.hardware import matrix_rates
from vit.benchmarking.peers import MissingPeer, check_installed
from vit.benchmarking.photos import make_photos
from vit.benchmarking.results import OURS, Case, Settings
from vit.benchmarking.timing import in_turns
from vit.bundle import save_bundle
from vit.data import Preprocessing
from vit.data.images.preprocessing_values import IMAGENET_MEAN, IMAGENET_STD
from vit.inference import autocast, load, named_images
from vit.models import VisionTransformer, flops

TIMM_WORKERS = 2  # the default of timm's inference.py
Labels = Iterator[tuple[str, str]]  # name of the file, predicted label
Labeller = Callable[[], Labels]  # a library's program that labels all files


def bench_prediction(
    model: VisionTransformer, photos: Path | None, settings: Settings, cases: list[Case],
    progress: Callable[[str], None] = print,
) -> None:
    """Label all images of a folder (synthetic photos by default) in each precision with each batch size.

    Raises:
        FileNotFoundError: the folder has no image.
        ValueError: the model cannot be saved for timm and transformers, and peers are named.
    """
    rates = matrix_rates(settings.precisions, settings.device, settings.read_clock)
    with tempfile.TemporaryDirectory() as folder:
        root = make_photos(Path(folder, "photos")) if photos is None else photos
        count = sum(1 for _ in named_images(root))
        weights = save(model, Path(folder, "model"))
        for precision in settings.precisions:
            for batch in settings.batches:
                setting = {"model": describe(model), "precision": precision, "files": count, "batch": batch}
                case = Case("predict", setting, "images", count, float(flops(model) * count), rates[precision])
                progress(case.key)
                cases.append(case)
                measure(case, weights, root, settings)


def describe(model: VisionTransformer) -> str:
    height, width = model.config.image_size
    return f"{model.config.depth} blocks of {model.config.dim}, images of {height}x{width}"


def save(model: VisionTransformer, path: Path) -> Path:
    """The model as a folder that the other libraries open; its classes are numbered."""
    config = model.config
    classes = [f"class_{i:04d}" for i in range(config.num_classes)]
    return save_bundle(path, model, classes, Preprocessing(config.image_size, mean=IMAGENET_MEAN, std=IMAGENET_STD))


def measure(case: Case, weights: Path, root: Path, settings: Settings) -> None:
    """Add to the case the seconds to the first label, the share of equal labels, and the times of the rounds."""
    labellers, labels = {}, {}
    for name in (OURS, *settings.against):
        try:
            build_labeller(name, weights, root, case, settings.device)  # so that imports of libraries do not count
        except MissingPeer as error:
            case.missing[name] = str(error)
            continue
        start = time.perf_counter()
        labeller = build_labeller(name, weights, root, case, settings.device)
        load_seconds = time.perf_counter() - start
        predictions = labeller()
        first = next(predictions)
        first_batch_seconds = time.perf_counter() - start
        labels[name] = dict([first, *predictions])
        case.facts[name] = {"load_seconds": load_seconds, "first_batch_seconds": first_batch_seconds}
        case.facts[name]["same_results"] = same_label_share(labels[OURS], labels[name])
        labellers[name] = labeller
    programs = {name: lambda labeller=labeller: [None for _ in labeller()] for name, labeller in labellers.items()}
    in_turns(programs, settings.rounds, settings.read_clock, warmup=0, times=case.times)


def same_label_share(ours: dict[str, str], theirs: dict[str, str]) -> float:
    """Share of the files with the same label.

    Raises:
        ValueError: the files differ.
    """
    if set(ours) != set(theirs):
        raise ValueError(f"the libraries read different files ({len(ours)} and {len(theirs)}); use a folder that has "
                         "only images of the usual formats")
    return sum(theirs[name] == label for name, label in ours.items()) / len(ours)


def build_labeller(name: str, weights: Path, root: Path, case: Case, device: str) -> Labeller:
    """The program of a library, with the model loaded.

    Raises:
        MissingPeer: the library is not installed, or has no program that labels files.
    """
    if name not in PREDICT_PEERS:
        raise MissingPeer(f"{name} does not predict from files")
    if name != OURS:
        check_installed(name)
    precision, batch = str(case.setting["precision"]), int(case.setting["batch"])
    return PREDICT_PEERS[name](weights, root, batch, device, precision)


def by_vit(weights: Path, root: Path, batch: int, device: str, precision: str) -> Labeller:
    predictor = load(weights, device, precision)

    def label() -> Labels:
        for prediction in predictor.stream(root, 1, batch):
            yield relative(prediction.source, root), prediction.label

    return label


def by_timm(weights: Path, root: Path, batch: int, device: str, precision: str) -> Labeller:
    """The loop of timm's inference.py."""
    import timm
    from timm.data import create_dataset, create_loader, resolve_data_config

    network = timm.create_model(f"local-dir:{weights}", pretrained=True).to(device).eval()
    dataset = create_dataset("", str(root))
    config = resolve_data_config({}, model=network)
    loader = create_loader(dataset, batch_size=batch, use_prefetcher=True, num_workers=TIMM_WORKERS,
                           device=torch.device(device), persistent_workers=False, **config)
    classes = network.pretrained_cfg["label_names"]

    def label() -> Labels:
        names = iter(dataset.filenames(basename=False, absolute=True))
        with torch.no_grad():
            for images, _ in loader:
                with autocast(torch.device(device), precision):
                    output = network(images.to(device))
                _, indices = output.softmax(-1).topk(1, dim=1)
                yield from ((relative(next(names), root), classes[i]) for i in indices[:, 0].tolist())

    return label


def by_transformers(weights: Path, root: Path, batch: int, device: str, precision: str) -> Labeller:
    """The pipeline of transformers."""
    from transformers import pipeline
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()
    classify = pipeline("image-classification", model=str(weights), device=device)
    files = [str(path) for _, path in named_images(root)]

    def label() -> Labels:
        results = iter(classify((file for file in files), batch_size=batch, top_k=1))
        for file in files:
            with autocast(torch.device(device), precision):
                best = next(results)
            yield relative(file, root), best[0]["label"]

    return label


def relative(file: str, root: Path) -> str:
    return Path(file).resolve().relative_to(root.resolve()).as_posix()


PREDICT_PEERS: dict[str, Callable[..., Labeller]] = {OURS: by_vit, "timm": by_timm, "transformers": by_transformers}
