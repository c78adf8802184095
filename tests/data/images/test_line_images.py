"""Line images: scaling, padding, patch masks; digit strips; tables of images and their text."""

import io
import json

import numpy as np
import pytest
import torch
from PIL import Image

from tests.data.shares import near
from vit.data import (
    Augment,
    BadImage,
    ByteTokenizer,
    DataError,
    LinePreprocessing,
    PairDataset,
    PairEvalBatches,
    PairSplit,
    PairTrainBatches,
    Preprocessing,
    RandomAffine,
    digit_strips,
    digits,
    estimate,
    image_text,
)
from vit.data.identity import fingerprint
from vit.data.pairs.line_widths import fitting_width
from vit.data.sample_names import RowNames

BYTES = ByteTokenizer()
P = LinePreprocessing(16, 64, (8, 4))


def picture(width, height, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


def lines(widths=(30, 8, 64, 17, 40, 40, 3), height=16):
    images = [picture(width, height, i) for i, width in enumerate(widths)]
    return PairSplit(
        [str(i) for i in range(len(images))], RowNames("toy", np.arange(len(images))), read=images.__getitem__
    )


@pytest.mark.parametrize(
    ("size", "patches"),
    [
        ((30, 16), 8),
        ((32, 16), 8),
        ((33, 16), 9),
        ((60, 32), 8),
        ((2, 16), 1),
        ((1, 200), 1),
        ((500, 16), 16),
        ((9, 3), 12),
    ],
)
def test_width_depends_on_the_aspect_ratio(size, patches):
    """(width, height) → columns at height 16 with the aspect ratio, in patches of 4, at most 64 pixels wide."""
    image = P.image(picture(*size))
    assert image.shape == (3, 16, 4 * patches) and image.dtype == torch.uint8 and P.columns(*size) == patches


def test_pixels_equal_those_of_preprocessing():
    raw = picture(90, 48)
    reference = Preprocessing(size=(16, 30), resize="squash")
    image = P.image(raw)
    assert torch.equal(image[:, :, :30], reference.image(raw)) and (image[:, :, 30:] == 255).all()
    assert torch.equal(P.normalize(image[None, :, :, :30]), reference.normalize(reference.image(raw)[None]))
    upright = Image.fromarray(raw).rotate(90, expand=True)
    exif = upright.getexif()
    exif[0x0112] = 6
    stored = io.BytesIO()
    upright.save(stored, "PNG", exif=exif)
    assert torch.equal(P.image(stored.getvalue()), image), "rotated by its EXIF orientation"


def test_arrays_that_need_no_resizing_are_unchanged():
    for raw, mode in ((picture(30, 16), "RGB"), (picture(30, 16)[:, :, 0], "RGB"), (picture(30, 16)[:, :, 0], "L")):
        own = P if mode == "RGB" else P.replace(mode="L", mean=(0.5,), std=(0.5,))
        assert torch.equal(own.image(raw), own.image(Image.fromarray(raw)))
    assert torch.equal(P.image(picture(30, 16)[:, :, :1]), P.image(picture(30, 16)[:, :, 0]))


def test_without_enlarging_small_text_keeps_its_scale():
    keep = LinePreprocessing(16, 64, 4, enlarge=False, background=(10, 20, 30))
    raw = picture(20, 10)
    image = keep.image(raw)
    assert image.shape == (3, 16, 20) and torch.equal(image[:, :10], torch.from_numpy(raw).permute(2, 0, 1))
    assert (image[:, 10:] == torch.tensor([10, 20, 30])[:, None, None]).all()
    assert keep.image(picture(60, 32)).shape == (3, 16, 32), "larger ones are scaled down"
    gray = LinePreprocessing(16, 64, 4, enlarge=False, mode="L", mean=(0.5,), std=(0.5,), background=(7, 7, 7))
    assert (gray.image(raw)[0, 10:] == 7).all()


def test_a_batch_is_padded_on_the_right_with_a_mask_of_patches():
    images = [P.image(picture(width, 16, width)) for width in (8, 20, 12)]
    pixels, mask = P.batch(images)
    assert pixels.shape == (3, 3, 16, 20) and mask.shape == (3, 10) and mask.dtype == torch.bool
    grid = mask.view(3, 2, 5)  # rows, columns of patches, as PatchEmbed takes them
    assert grid.sum(2).tolist() == [[2, 2], [5, 5], [3, 3]] and not grid[0, :, 2:].any() and grid[0, :, :2].all()
    for row, image in enumerate(images):
        width = image.shape[2]
        assert torch.equal(pixels[row, :, :, :width], image) and (pixels[row, :, :, width:] == 255).all()
    from vit.nn import LinearPatches, PatchEmbed, Prefix

    embed, alone = (PatchEmbed(LinearPatches(3, 12, (8, 4)), size, prefix=Prefix(class_token=False))
                    for size in ((16, 20), (16, 8)))
    whole = embed(pixels.float())
    alone.load_state_dict({k: v for k, v in embed.state_dict().items() if k != "pos_embed"}, strict=False)
    assert torch.allclose(whole[0][mask[0]], alone(images[0][None].float())[0], atol=1e-4)


def test_a_fitting_width_holds_all_lines_but_outliers():
    assert fitting_width(lines((30, 40)), P) == 16 * 16
    assert fitting_width(lines((30, 40)), LinePreprocessing(16, 70, (8, 10))) == 260  # a multiple of the patch width
    assert fitting_width(lines([301] * 10), P) == 304
    images = [np.zeros((16, width, 3), np.uint8) for width in [*[301] * 199, 5000]]
    split = PairSplit([""] * 200, [""] * 200, read=images.__getitem__)
    assert fitting_width(split, P) == 604  # twice 301, which 99 % of the lines have
    assert fitting_width(PairSplit([""] * 2, ["a", "b"], read=[b"damaged", images[-1]].__getitem__), P) == 5000
    assert fitting_width(PairSplit([""], ["a"], read=[b"damaged"].__getitem__), P) == 256


def test_a_preview_has_the_resolution_of_the_image_up_to_a_width():
    assert P.preview(picture(300, 40)).shape == (40, 300, 3)
    assert P.preview(picture(300, 40), width=150).shape == (20, 150, 3)
    assert P.preview(picture(30, 8)).shape == P.image(picture(30, 8)).permute(1, 2, 0).shape == (16, 60, 3)


def test_only_lines_wider_than_the_limit_are_squeezed():
    assert P.squeezed(64, 16) == P.squeezed(128, 32) == ""
    assert P.squeezed(65, 16) == "65 pixels at a height of 16" and P.squeezed(300, 32) == "150 pixels at a height of 16"


def test_a_damaged_line_fails_its_check():
    P.check(picture(30, 16), "a")
    with pytest.raises(BadImage, match="line 3"):
        P.check(b"damaged", "line 3")


def test_the_fingerprint_of_a_pair_is_that_of_its_source():
    split = lines((30, 8, 30))
    assert len(set(split.fingerprints())) == 3 and split.take(np.array([2, 0])).fingerprints() == [
        split.fingerprints()[2], split.fingerprints()[0]]
    assert PairSplit(["x", "y"], ["1", "2"], ["a", "b"]).fingerprints() == [fingerprint("a"), fingerprint("b")]


def test_to_dict_and_from_dict():
    again = LinePreprocessing.from_dict(json.loads(json.dumps(P.to_dict())))
    assert again == P and P.rows == 2 and P.max_patches == 32 and P.channels == 3
    with pytest.raises(ValueError, match="unknown preprocessing key 'size'; known: height, max_width"):
        LinePreprocessing.from_dict(P.to_dict() | {"size": 3})


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ((18, 64, 8), "height 18 is not divisible by patch_size 8; nearest valid: 16, 24"),
        ((16, 62, 4), "max_width 62 is not divisible by patch_size 4; nearest valid: 60, 64"),
        ((4, 64, 8), "height 4 is not divisible by patch_size 8; nearest valid: 8"),
        ((16, 64, 4, True, "best"), "interpolation='best' is not one of"),
        ((16, 64, 4, True, "bicubic", (0.5,)), "mode RGB has 3 channels, but mean has 1"),
    ],
)
def test_wrong_values(values, text):
    with pytest.raises(ValueError, match=text):
        LinePreprocessing(*values)


@pytest.mark.parametrize("cache", [True, False])
def test_batches_of_images(cache):
    split = lines()
    dataset = PairDataset(split, P, BYTES, cache=cache)
    assert dataset.cached == cache and dataset.lengths[:, 0].tolist() == [16, 4, 32, 10, 20, 20, 2]
    batch = dataset.__getitems__([(0, 1), (0, 3), (0, ~6)])
    assert torch.equal(batch["source"][0, :, :, :8], P.image(split.read(1)))
    assert batch["source_mask"].sum(1).tolist() == [4, 10, 2] and batch["index"].tolist() == [1, 3, 6]
    assert batch["target"].tolist() == [[1, 5 + ord("1"), 2], [1, 5 + ord("3"), 2], [1, 0, 0]]
    for batches in (PairTrainBatches(dataset, 64, workers=0), PairTrainBatches(dataset, batch_size=3, workers=0)):
        epoch = list(batches)
        assert sorted(torch.cat([b["index"] for b in epoch]).tolist()) == list(range(7))
        assert all(b["source_mask"].shape[1] == b["source"].shape[3] // 4 * 2 for b in epoch)
    seen = [i for b in PairEvalBatches(dataset, 64, workers=0) for i in b["index"].tolist()]
    assert sorted(seen) == list(range(7))


def test_cache_and_workers_give_the_same_batches():
    memory, stream = (PairDataset(lines(), P, BYTES, cache=cache) for cache in (True, False))
    for a, b in zip(PairTrainBatches(memory, 64), PairTrainBatches(stream, 64, workers=2), strict=True):
        assert a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a)


def test_augmentation_does_not_depend_on_the_batch():
    augment = Augment([RandomAffine(5, 0.1, 5, 0.05, fill=255)], seed=3)
    dataset = PairDataset(lines(), P, BYTES, augment=augment)
    keys = [(2, i) for i in range(7)]
    together = dataset.__getitems__(keys)
    plain = PairDataset(lines(), P, BYTES).__getitems__(keys)
    assert not torch.equal(together["source"], plain["source"])
    assert torch.equal(together["source_mask"], plain["source_mask"])
    for i, key in enumerate(keys):
        alone = dataset.__getitems__([key])["source"][0]
        assert torch.equal(together["source"][i, :, :, : alone.shape[2]], alone)
    assert not torch.equal(dataset.__getitems__([(3, 2)])["source"], dataset.__getitems__([(2, 2)])["source"])


@pytest.fixture
def captchas(class_folders):
    """A table of 12 files of different widths."""
    root = class_folders({"images": 0})
    rows = ["file,text,split"]
    for i in range(12):
        Image.fromarray(picture(20 + 5 * i, 20, i)).save(root / "images" / f"{i:02}.png")
        rows.append(f"images/{i:02}.png,T{i},{'train' if i < 8 else 'valid' if i < 10 else 'test'}")
    (root / "labels.csv").write_text("\n".join(rows) + "\n")
    return root


def test_tables_of_images(captchas):
    source = image_text(captchas / "labels.csv")
    assert {k: len(v) for k, v in source.splits.items()} == {"train": 8, "val": 2, "test": 2} and source.images
    assert source.splits["test"].names[1] == "images/11.png" and source.splits["test"].targets[1] == "T11"
    dataset = PairDataset(source.splits["train"], P, BYTES)
    assert torch.equal(dataset[3]["source"][0], P.image(captchas / "images" / "03.png"))
    rows = [{"img": f"{i:02}.png", "latex": f"x^{i}"} for i in range(12)]
    (captchas / "l.jsonl").write_text("\n".join(map(json.dumps, rows)))
    other = image_text(
        captchas / "l.jsonl", image="img", text="latex", root=captchas / "images", fractions=(0.5, 0.25, 0.25)
    )
    assert near(other.splits, {"train": 6, "val": 3, "test": 3})
    mean, std = estimate(source.splits["train"], P)
    assert len(mean) == len(std) == 3 and all(0.4 < m < 0.7 for m in mean)


def test_an_image_with_several_texts_stays_in_one_split(captchas, caplog):
    rows = [(f"images/{i:02}.png", f"text {k} of {i}") for k in range(3) for i in range(12)]
    (captchas / "t.csv").write_text("file,text\n" + "".join(f"{file},{text}\n" for file, text in rows))
    with caplog.at_level("INFO", "vit"):
        source = image_text(captchas / "t.csv", fractions=(0.5, 0.25, 0.25))
    assert "t: 36 texts of 12 images, up to 3 each" in caplog.text
    names = {key: set(split.names) for key, split in source.splits.items()}
    assert len(names) == 3 and sum(map(len, names.values())) == 12 == len(set.union(*names.values()))
    for split in source.splits.values():
        groups = split.by_source()
        assert sorted(row for rows in groups for row in rows) == list(range(len(split)))
        for rows in groups:
            assert len(rows) == 3 and len({split.names[row] for row in rows}) == 1
            number = int(split.names[rows[0]][7:9])
            assert [split.targets[row] for row in rows] == [f"text {k} of {number}" for k in range(3)]
    whole = PairSplit.concat(list(source.splits.values()))
    assert [len(rows) for rows in whole.by_source()] == [3] * 12
    caplog.clear()
    with caplog.at_level("INFO", "vit"):
        single = image_text(captchas / "labels.csv").splits["train"]
    assert "up to" not in caplog.text and single.by_source() == [[row] for row in range(8)]


def test_tables_with_missing_files_and_texts(captchas):
    table = captchas / "labels.csv"
    table.write_text(table.read_text().replace(",T3,", ",,").replace("images/05", "images/55"))
    with pytest.raises(FileNotFoundError, match="labels.csv line 7: 'images/55.png' does not exist .*; 1 of 12 files"):
        image_text(table)
    table.write_text(table.read_text().replace("images/55", "images/05"))
    with pytest.raises(DataError, match="labels.csv line 5: text is empty, as in 1 of 12 lines"):
        image_text(table)
    source = image_text(table, on_empty="skip")
    assert len(source.splits["train"]) == 7 and source.left_out == [("labels.csv line 5", "text is empty")]
    assert source.splits["train"].names[3] == "images/04.png" and source.splits["val"].targets[0] == "T8"
    with pytest.raises(DataError, match="has no column 'latex' for data.text; its columns are file, text, split"):
        image_text(table, text="latex")
    with pytest.raises(FileNotFoundError, match="data.path: the table .*none.csv does not exist"):
        image_text(captchas / "none.csv")
    with pytest.raises(DataError, match="00.png is not one of .tsv, .csv, .jsonl"):
        image_text(captchas / "images" / "00.png")


@pytest.mark.parametrize("cache", [True, False])
def test_unreadable_images(captchas, cache):
    (captchas / "images" / "02.png").write_bytes(b"not an image")
    whole = (captchas / "images" / "05.png").read_bytes()
    (captchas / "images" / "05.png").write_bytes(whole[: len(whole) // 2])  # its header is intact
    split = image_text(captchas / "labels.csv").splits["train"]
    with pytest.raises(BadImage, match="images/02.png: cannot be opened"):
        PairDataset(split, P, BYTES, cache=cache)
    dataset = PairDataset(split, P, BYTES, cache=cache, on_bad_sample="skip")
    batches = PairTrainBatches(dataset, batch_size=4, workers=0)
    seen = torch.cat([b["index"] for b in batches]).tolist()
    assert sorted(seen) == [0, 1, 3, 4, 6, 7]
    counted = {name for name, _ in dataset.left_out} | set(batches.bad)
    assert counted == {"images/02.png", "images/05.png"} and len(dataset) == (6 if cache else 7)


def test_digit_strips():
    source = digit_strips(train=300, val=100, test=1000)
    assert {k: len(v) for k, v in source.splits.items()} == {"train": 300, "val": 100, "test": 1000}
    singles = digits().splits
    for key, split in source.splits.items():
        own = {singles[key].read(i).tobytes(): str(singles[key].labels[i]) for i in range(len(singles[key]))}
        for i in range(0, len(split), 9):
            strip = split.read(i)
            assert strip.shape == (8, 40) and strip.dtype == np.uint8
            parts = [np.ascontiguousarray(strip[:, c : c + 8]).tobytes() for c in range(0, 40, 8)]
            assert "".join(own[part] for part in parts) == split.targets[i]
    test = source.splits["test"]
    used = np.unique(test.read.rows)
    assert len(used) > 350, "nearly all of the 360 test digits occur"
    counts = np.bincount([int(c) for text in test.targets for c in text])
    assert len(counts) == 10 and counts.min() > 400
    again = digit_strips(train=10, val=0, test=20)
    assert "val" not in again.splits and list(again.splits["test"].targets) == list(test.targets)[:20]
    assert list(digit_strips(train=10, test=20, split_seed=1).splits["test"].targets) != list(test.targets)[:20]
    assert all(np.array_equal(again.splits["test"].read(i), test.read(i)) for i in range(20))


def test_digit_strips_of_different_lengths():
    split = digit_strips(5, min_digits=2, train=2000, val=10, test=10).splits["train"]
    lengths = np.bincount([len(text) for text in split.targets])
    assert lengths[:2].tolist() == [0, 0] and len(lengths) == 6 and lengths[2:].min() > 420
    assert all(split.read(i).shape == (8, 8 * len(split.targets[i])) for i in range(50))
    dataset = PairDataset(split, LinePreprocessing(8, 40, 4), BYTES)
    for batch in PairTrainBatches(dataset, 400):
        assert batch["source_mask"].sum(1).tolist() == [4 * (len(split.targets[i])) for i in batch["index"].tolist()]
    with pytest.raises(ValueError, match="min_digits=6 must be in 1..5"):
        digit_strips(5, min_digits=6)


def test_real_captchas_and_formulas(real):
    source = image_text(real / "captcha_text" / "labels.csv")
    assert {k: len(v) for k, v in source.splits.items()} == {"train": 4000, "val": 500, "test": 500}
    part = source.splits["val"].take(np.arange(60))
    dataset = PairDataset(part, LinePreprocessing(32, 320, 8), BYTES, max_target_len=9)
    for batch in PairEvalBatches(dataset, batch_size=20):
        widths = batch["source_mask"].view(len(batch["index"]), 4, -1)[:, 0].sum(1)
        for i, width in zip(batch["index"].tolist(), widths.tolist(), strict=True):
            full = Image.open(real / "captcha_text" / part.names[i])
            assert width == -(-round(full.width * 32 / full.height) // 8)
    formulas = image_text(real / "im2latex_sample" / "labels.jsonl", text="latex")
    assert {k: len(v) for k, v in formulas.splits.items()} == {"train": 995, "val": 100, "test": 100}
