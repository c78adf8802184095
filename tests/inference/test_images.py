"""Predictions for every kind of image input, in order, bit for bit those of the evaluation."""

import base64
import dataclasses
import io
import itertools
import json
import os
import pickle
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import vit
from tests.inference.tiny_models import save_classifier
from vit.bundle import save_bundle
from vit.data import BadImage, Preprocessing
from vit.inference import Prediction, autocast, decode_ahead, fast
from vit.inference.features import Featurizer

CLASSES = ["ant", "bee", "cow", "dog"]


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    torch.manual_seed(0)
    model = vit.create_model("vit_tiny", image_size=(24, 32), patch_size=8, num_classes=4, depth=1)
    torch.nn.init.normal_(model.head.weight, std=0.5)  # predictions that differ between images
    preprocessing = Preprocessing(size=(24, 32), resize="shorter", mean=(0.4, 0.5, 0.6), std=(0.2, 0.3, 0.25))
    return save_bundle(tmp_path_factory.mktemp("run") / "model", model, CLASSES, preprocessing)


@pytest.fixture(scope="module")
def predictor(saved):
    return vit.load(saved)


def picture(seed=0, height=40, width=60):
    return Image.fromarray(np.random.default_rng(seed).integers(0, 255, (height, width, 3), np.uint8))


@pytest.fixture
def photos(tmp_path):
    """Seven PNGs in nested folders, beside a text file; the names in the order of the predictions."""
    names = ["a.png", "b.PNG", "c.png", "deep/d.png", "deep/er/e.png", "f/1.png", "f/2.png"]
    for seed, name in enumerate(names):
        (tmp_path / "photos" / name).parent.mkdir(parents=True, exist_ok=True)
        picture(seed).save(tmp_path / "photos" / name)
    (tmp_path / "photos" / "notes.txt").write_text("no image")
    return tmp_path / "photos", [str(tmp_path / "photos" / name) for name in names]


def test_every_kind_of_input_gives_the_same_prediction(predictor, tmp_path):
    image = picture()
    path = tmp_path / "image.png"
    image.save(path)
    stream = io.BytesIO()
    image.save(stream, "PNG")
    array = np.asarray(image)
    tensor = torch.from_numpy(array.copy()).permute(2, 0, 1)
    kinds = [path, str(path), image, stream.getvalue(), array, array / 255, tensor, tensor / 255]
    predictions = [predictor.predict(kind, top_k=4)[0] for kind in kinds]
    assert {prediction.probabilities for prediction in predictions} == {predictions[0].probabilities}
    assert {prediction.names for prediction in predictions} == {predictions[0].names}
    assert predictions[0].source == str(path) and predictions[4].source == "image 0"


def test_predictions_do_not_depend_on_torch_defaults_of_the_calling_program(saved, predictor):
    expected = predictor.predict(picture())
    try:
        torch.set_default_dtype(torch.float64)
        with torch.device("meta"):
            assert vit.load(saved, "cpu").predict(picture()) == expected
    finally:
        torch.set_default_dtype(torch.float32)


def test_predictions_equal_those_of_the_evaluation_bit_for_bit(predictor):
    pictures = [picture(seed) for seed in range(5)]
    pixels = torch.stack([predictor.preprocessing.image(image) for image in pictures])
    with torch.no_grad():
        probabilities = predictor.model(predictor.preprocessing.normalize(pixels)).softmax(-1)
    best, index = probabilities.max(-1)
    predictions = predictor.predict(pictures)
    assert [prediction.probability for prediction in predictions] == best.tolist()
    assert [prediction.label for prediction in predictions] == [CLASSES[i] for i in index]


def test_probabilities_are_sorted_and_add_up(predictor):
    prediction = predictor.predict(picture(), top_k=4)[0]
    assert sorted(prediction.names) == CLASSES
    assert list(prediction.probabilities) == sorted(prediction.probabilities, reverse=True)
    assert sum(prediction.probabilities) == pytest.approx(1)
    assert (prediction.label, prediction.probability) == (prediction.names[0], prediction.probabilities[0])


def test_a_folder_is_read_with_all_folders_inside_in_the_order_of_names(predictor, photos):
    folder, names = photos
    predictions = predictor.predict(folder, batch_size=2)
    assert [prediction.source for prediction in predictions] == names
    one_by_one = [predictor.predict(name)[0].label for name in names]
    assert [prediction.label for prediction in predictions] == one_by_one
    assert [prediction.source for prediction in predictor.predict([folder / "f", names[0]])] == [*names[5:], names[0]]


def test_batches_of_arrays_and_tensors_are_split(predictor):
    pictures = np.stack([np.asarray(picture(seed)) for seed in range(3)])
    arrays = predictor.predict(pictures)
    tensors = predictor.predict(torch.from_numpy(pictures).permute(0, 3, 1, 2))
    assert [a.probability for a in arrays] == [t.probability for t in tensors]
    assert [a.source for a in arrays] == ["image 0", "image 1", "image 2"]


def test_images_of_a_memory_map_have_names_of_their_own(predictor, tmp_path):
    np.save(tmp_path / "images.npy", np.stack([np.asarray(picture(seed)) for seed in range(2)]))
    mapped = np.load(tmp_path / "images.npy", mmap_mode="r")  # its slices have the name of its file
    assert [prediction.source for prediction in predictor.predict(mapped)] == ["image 0", "image 1"]


def test_other_types_of_the_same_pixels(predictor):
    pixels, buffer = np.array(picture()), io.BytesIO()
    picture().save(buffer, "PNG")
    expected = predictor.predict(pixels)[0].probability
    levels = torch.from_numpy(pixels).permute(2, 0, 1) // 128  # 0 and 1 are exact in bfloat16
    for same in (bytearray(buffer.getvalue()), memoryview(buffer.getvalue()), pixels.astype(np.int64) * 257):
        assert predictor.predict(same, batch_size=np.int64(2), top_k=np.int64(1))[0].probability == expected
    exact, half = (predictor.predict(levels.to(dtype))[0].probability for dtype in (torch.float32, torch.bfloat16))
    assert exact == half


def test_a_predictor_is_printed_with_its_model(predictor, saved):
    assert repr(predictor) == f"Predictor({saved}, 4 classes, {predictor.device})"


def test_open_files_are_read_from_their_start(predictor, tmp_path):
    expected, buffer = predictor.predict([np.array(picture())] * 3), io.BytesIO()
    picture().save(buffer, "PNG")  # leaves the position at the end, as Pillow accepts it
    (tmp_path / "image.png").write_bytes(buffer.getvalue())
    with open(tmp_path / "image.png", "rb") as file:
        assert predictor.predict([buffer, file, buffer]) == expected
    with open(tmp_path / "image.png", errors="replace") as file, pytest.raises(TypeError, match="contains text; open"):
        predictor.predict(file)


def test_an_array_of_paths_is_a_list_of_paths(predictor, photos):
    folder, names = photos
    for paths in (np.array(names), np.array(names, dtype=object)):  # the latter is a column of pandas
        assert predictor.predict(paths) == predictor.predict(folder)


@pytest.mark.parametrize("url", ["https://example.com/photo.jpg", "s3://photos/photo.jpg"])
def test_a_url_is_not_a_file(predictor, url):
    with pytest.raises(FileNotFoundError, match=f"^{url} is a URL, and nothing is downloaded; pass the bytes"):
        predictor.predict([picture(), url])


@pytest.mark.parametrize("prefix", ["", "data:image/png;base64,"])
@pytest.mark.parametrize("length", [400, 100_000])
def test_base64_text_is_not_a_path(predictor, prefix, length):
    """Neither a bare error of the system, nor a message with the whole text."""
    text = prefix + base64.b64encode(bytes(length)).decode()
    with pytest.raises(FileNotFoundError, match=r"is not a path; .* base64\.b64decode") as caught:
        predictor.predict([picture(), text])
    assert str(caught.value).startswith(f"{text[:40]}... ({len(text):,} characters)") and len(str(caught.value)) < 250


def test_an_endless_iterator_is_predicted_item_by_item(predictor):
    consumed = []

    def camera():
        for count in itertools.count():
            consumed.append(count)
            yield picture(count)

    predictions = list(itertools.islice(predictor.stream(camera(), batch_size=2), 5))
    assert [prediction.source for prediction in predictions] == [f"image {i}" for i in range(5)]
    assert len(consumed) <= 12


def test_unreadable_images_raise_by_default_and_are_collected_on_request(predictor, photos):
    folder, names = photos
    (folder / "a.png").write_bytes(b"not an image")
    cut = Path(names[4])
    cut.write_bytes(cut.read_bytes()[:200])
    with pytest.raises(BadImage, match=r"a\.png: cannot be opened"):
        predictor.predict(folder)
    predictions = predictor.predict([folder, folder / "missing.jpg"], batch_size=3, on_error="skip")
    assert [prediction.source for prediction in predictions] == [names[i] for i in (1, 2, 3, 5, 6)]
    assert [error.name for error in predictions.unreadable] == [names[0], names[4], str(folder / "missing.jpg")]


def test_a_batch_of_unreadable_images_only(predictor):
    predictions = predictor.predict([b"x", b"y", picture()], batch_size=2, on_error="skip")
    assert len(predictions) == 1 and len(predictions.unreadable) == 2
    assert predictor.predict([]) == []


def test_nasty_images(predictor):
    if "VIT_TEST_DATA" not in os.environ:
        pytest.skip("VIT_TEST_DATA is not set")
    folder = Path(os.environ["VIT_TEST_DATA"]) / "nasty_images" / "images"
    predictions = predictor.predict(folder, batch_size=8, on_error="skip")
    bad = {Path(error.name).name for error in predictions.unreadable}
    assert {"broken.png", "empty_file.jpg", "text_renamed.jpg", "photo_cut_in_half.jpg"} <= bad
    assert "huge_1bit_30000x30000.png" in bad
    good = {Path(prediction.source).name for prediction in predictions}
    assert {"pil_sample_cmyk.jpg", "16bit.cropped.tif", "one_pixel.png", "png_renamed.jpg", "avif_hopper.avif"} <= good
    assert all(np.isfinite(prediction.probability) for prediction in predictions)


@pytest.mark.parametrize(("call", "error", "message"), [
    (lambda p: p.predict(picture(), top_k=0), ValueError, "top_k=0 must be a whole number of at least 1"),
    (lambda p: p.predict(picture(), batch_size=0), ValueError, "batch_size=0 must be a whole number of at least 1"),
    (lambda p: p.predict(picture(), top_k=1.5), ValueError, "top_k=1.5 must be a whole number of at least 1"),
    (lambda p: p.predict(picture(), batch_size=None), ValueError, "batch_size=None must be a whole number of at least"),
    (lambda p: p.predict(np.ones((4, 4, 3), np.int64)), BadImage, "int64 values 1..1 may be of 8 or of 16 bits; pass"),
    (lambda p: p.predict(picture(), on_error="ignore"), ValueError, "on_error='ignore'"),
    (lambda p: p.predict(3.5), TypeError, "float is not an image"),
    (lambda p: p.predict({"a": 1}), TypeError, "dict is not an image"),
    (lambda p: p.predict(np.zeros((4, 4, 7), np.uint8)), BadImage, r"shape \(4, 4, 7\)"),
    (lambda p: p.predict(torch.zeros(24, 32, 3)), BadImage, r"tensor of shape \(24, 32, 3\) is not .*\(3,H,W\)"),
    (lambda p: p.predict(torch.randn(3, 24, 32) * 9), BadImage, r"outside 0\.\.1 for floats; pass values in 0\.\.1 or"),
])
def test_invalid_arguments_are_rejected(predictor, call, error, message):
    with pytest.raises(error, match=message):
        call(predictor)


@pytest.mark.parametrize("batch_size", [0, None])
def test_a_fast_predictor_rejects_the_same_batch_sizes(saved, batch_size):
    with pytest.raises(ValueError, match=f"batch_size={batch_size} must be a whole number of at least 1"):
        vit.load(saved, device="cpu", fast=True).predict(picture(), batch_size=batch_size)


@pytest.mark.parametrize(("device", "message"), [
    ("tpu", "device=tpu cannot be used: Expected one of cpu, cuda.*; use cpu, or leave it out"),
    ("cuda:99", "device=cuda:99 cannot be used: .*; use cpu, or leave it out"),
    ("xla", "device=xla cannot be used: [^.]*'aten::empty.memory_format'[^.]*; use cpu, or leave it out"),
])
def test_a_device_that_cannot_be_used_is_named(saved, device, message):
    with pytest.raises(ValueError, match=message):
        vit.load(saved, device=device)


def test_an_empty_folder_is_rejected(predictor, tmp_path):
    with pytest.raises(FileNotFoundError, match="has no image"):
        predictor.predict(tmp_path)


def test_an_empty_path_is_not_the_current_folder(predictor, tmp_path, monkeypatch):
    Image.new("L", (8, 8)).save(tmp_path / "picture.png")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(FileNotFoundError, match="is empty"):
        predictor.predict("")
    with pytest.raises(FileNotFoundError, match="is empty"):
        predictor.predict(["picture.png", ""])


def test_a_run_folder_and_a_config_file_load(saved):
    assert vit.load(saved.parent).classes == CLASSES
    assert vit.load(str(saved / "config.json")).classes == CLASSES


def test_half_precision_is_near(saved, predictor):
    half = vit.load(saved, precision="bf16-mixed").predict(picture(), top_k=4)[0]
    full = predictor.predict(picture(), top_k=4)[0]
    pairs = [dict(zip(prediction.names, prediction.probabilities, strict=True)) for prediction in (half, full)]
    assert pairs[0] == pytest.approx(pairs[1], abs=0.05)
    with pytest.raises(ValueError, match="precision='64-true' is not one of"):
        autocast(torch.device("cpu"), "64-true")


def test_decoding_ahead_keeps_order_and_passes_errors_on():
    assert list(decode_ahead(range(7), lambda i: i * i, 3)) == [[0, 1, 4], [9, 16, 25], [36]]
    with pytest.raises(ZeroDivisionError):
        list(decode_ahead([1, 0], lambda i: 1 // i, 1))


def test_a_prediction_is_a_value(predictor):
    first, again, other = (predictor.predict(picture(seed))[0] for seed in (0, 0, 1))
    assert first == again and hash(first) == hash(again) and first != other
    assert pickle.loads(pickle.dumps(first)) == first
    assert Prediction(**json.loads(json.dumps(dataclasses.asdict(first)), object_hook=tuples)) == first
    with pytest.raises(dataclasses.FrozenInstanceError):
        first.source = "other.png"


def tuples(values):
    return {key: tuple(value) if isinstance(value, list) else value for key, value in values.items()}


def test_an_archive_gives_the_predictions_of_its_folder(predictor, photos, tmp_path):
    folder, names = photos
    path = tmp_path / "photos.zip"
    with zipfile.ZipFile(path, "w") as archive:
        for file in sorted(folder.rglob("*")):
            archive.write(file, file.relative_to(tmp_path))
        archive.writestr("photos/broken.png", b"no image")
    plain = predictor.predict(folder)
    found = predictor.predict([path], on_error="skip")
    assert [each.source for each in found] == [f"{path}{name.removeprefix(str(tmp_path))}" for name in names]
    assert [prediction.probabilities for prediction in found] == [prediction.probabilities for prediction in plain]
    assert [error.name for error in found.unreadable] == [f"{path}/photos/broken.png"]
    assert found.left_out == [(f"{path}/photos/notes.txt", "not an image (.txt)")]


def test_an_archive_that_was_changed_is_read_again(predictor, tmp_path):
    path, predictions = tmp_path / "photos.zip", []
    for seed in range(2):
        picture(seed).save(tmp_path / "a.png")
        with zipfile.ZipFile(path, "w") as archive:
            archive.write(tmp_path / "a.png", "more/" * seed + "a.png")
        predictions.append(predictor.predict(path)[0].probabilities)
    assert predictions == [predictor.predict(picture(seed))[0].probabilities for seed in range(2)]


def test_arrays_are_named_as_such(predictor, tmp_path):
    np.savez(tmp_path / "x.npz", images=np.zeros((2, 8, 8), np.uint8))
    with pytest.raises(BadImage, match="x.npz: holds NumPy arrays, not one image; .* data=table data.path=FILE"):
        predictor.predict(tmp_path / "x.npz")
    (tmp_path / "train.csv").write_text("image,label\n")
    with pytest.raises(BadImage, match="train.csv: is a table or archive of images, not one image; give the images or"):
        predictor.predict(tmp_path / "train.csv")


def pictures(count):
    return [picture(seed) for seed in range(count)]


def save_convolutional(folder):
    torch.manual_seed(0)
    model = vit.create_model("timm/test_resnet", num_classes=4).eval()
    return save_bundle(folder / "model", model, CLASSES, Preprocessing(size=32))


def test_fast_predicts_what_float32_predicts(tmp_path, predictor, saved):
    images = pictures(70)
    for path in (saved, save_convolutional(tmp_path)):
        plain, quick = vit.load(path), vit.load(path, fast=True)
        expected = plain.predict(images, batch_size=16)
        found = quick.predict(images, batch_size=16)
        assert [p.source for p in found] == [p.source for p in expected] and len(found) == 70
        assert [p.label for p in found[:64]] == [p.label for p in expected[:64]]
        assert np.allclose([p.probability for p in found], [p.probability for p in expected], atol=0.05)
        chosen = quick.fast_mode
        assert chosen.images == 64 and chosen.mode in chosen.milliseconds and chosen.gain >= 1
        assert str(chosen).startswith("fast: ") and "the same predictions for 64 images" in str(chosen)
        layouts = {mode.channels_last for mode in chosen.milliseconds}
        assert layouts == ({False} if path is saved else {False, True})


def test_fast_with_few_images_is_float32(saved, predictor):
    quick = vit.load(saved, fast=True)
    assert quick.predict(pictures(5)) == predictor.predict(pictures(5)) and quick.fast_mode is None


def test_a_faster_mode_with_other_predictions_is_rejected(monkeypatch):
    """The clock runs ten times as fast for one mode, which errs on two images."""
    model, images = torch.nn.Linear(1, 1), torch.zeros(64, 3, 2, 2, dtype=torch.uint8)
    seconds = {"32-true": 1.0, "bf16-mixed": 0.1}
    monkeypatch.setattr(fast, "timed", lambda program, device: seconds[program()])
    monkeypatch.setattr(fast, "is_slow", lambda precision, device: False)

    def compute(batch, mode):
        return mode.precision if len(batch) < 64 else mode.precision == "bf16-mixed"

    def predicted(differs):
        return [("a",)] * 62 + [("b" if differs else "a",)] * 2

    chosen = fast.choose_mode(model, compute, predicted, images)
    assert chosen.mode == fast.Mode() and chosen.rejected == ((fast.Mode("bf16-mixed"), 2),)
    assert "bf16-mixed predicts something else for 2" in str(chosen)
    agreeing = fast.choose_mode(model, compute, lambda differs: [("a",)] * 64, images)
    assert agreeing.mode == fast.Mode("bf16-mixed") and round(agreeing.gain) == 10
    seconds["bf16-mixed"] = 0.99
    assert fast.choose_mode(model, compute, predicted, images).rejected == ()


def test_fast_with_a_precision_is_refused(saved):
    with pytest.raises(ValueError, match="leave out precision=bf16-mixed"):
        vit.load(saved, precision="bf16-mixed", fast=True)


def test_predicting_by_a_model_saved_without_preprocessing_is_an_error(tmp_path):
    model = vit.create_model("vit_tiny", image_size=16, patch_size=8, num_classes=3, depth=1)
    save_bundle(tmp_path, model, ["a", "b", "c"])
    predictor = vit.load(tmp_path)
    with pytest.raises(ValueError, match="was saved without the preprocessing of its images"):
        predictor.predict([Image.new("RGB", (16, 16))])
    with pytest.raises(ValueError, match="was saved without the preprocessing of its images"):
        Featurizer(predictor.model, predictor.bundle.preprocessing, torch.device("cpu"), "32-true")
    predictor.preprocessing = Preprocessing(size=16)
    assert predictor.predict([Image.new("RGB", (16, 16))])[0].label in "abc"


def probabilities(predictor, pictures, **options):
    found = {each.source: each for each in predictor.predict(pictures, top_k=4, **options)}
    return torch.tensor([[dict(zip(each.names, each.probabilities, strict=True))[name] for name in CLASSES]
                         for each in found.values()])


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
@pytest.mark.parametrize("tta", [1, 2])
def test_packed_weights_predict_the_same(saved, precision, tta, monkeypatch):
    """All at once, one by one, and one by one with the weights packed for all calls."""
    pictures = [picture(seed) for seed in range(20)]
    with monkeypatch.context() as patch:
        patch.setattr("vit.inference.fast.inference_copy", lambda model, dtype: model)
        expected = probabilities(vit.load(saved, precision=precision), pictures, batch_size=8, tta=tta)
    predictor = vit.load(saved, precision=precision, prepack=True)
    single = torch.cat([probabilities(predictor, [each], tta=tta) for each in pictures])
    many = probabilities(vit.load(saved, precision=precision), pictures, batch_size=8, tta=tta)
    tolerance = 1e-5 if precision == "32-true" else 2e-2
    torch.testing.assert_close(single, expected, rtol=0, atol=tolerance)
    torch.testing.assert_close(many, expected, rtol=0, atol=tolerance)
    assert len(predictor._networks.copies) == 1


def test_changed_weights_change_the_predictions_of_the_next_call(saved):
    """Also if they change in a way that torch does not count, after a call that packed them."""
    pictures, predictor = [picture(seed) for seed in range(20)], vit.load(saved, precision="bf16-mixed")
    before = probabilities(predictor, pictures)
    predictor.model.head.weight.data.mul_(-1)
    assert not torch.allclose(before, probabilities(predictor, pictures))


def test_a_model_of_another_kind_has_no_packed_weights(tmp_path):
    path = save_classifier(tmp_path / "texts")
    with pytest.raises(ValueError, match="prepack=True is for image classifiers, but .* is of kind text_classifier"):
        vit.load(path, prepack=True)
