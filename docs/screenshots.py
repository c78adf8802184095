"""Draw the pictures of commands in the guides into `docs/images/commands`: `python docs/screenshots.py --photos FOLDER
--weights FILE [NAME ...]`.

Each picture shows the page or the terminal output of a real command, which runs in a temporary folder, or in `--work`,
where the results of finished commands are used again. `--photos` is the Clothing Dataset (small), CC0,
https://github.com/alexeygrigorev/clothing-dataset-small, and `--weights` those of timm's tf_efficientnet_lite0. Needs
Chromium; the whole takes several minutes of processor time.
"""

import argparse
import os
import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass
from html import escape
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from PIL import Image, ImageEnhance

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "docs" / "images" / "commands"
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
WIDTH, COLUMNS = 1000, 112  # pixels of a picture, characters of a terminal
WEIGHTS, PHOTOS = "tf_efficientnet_lite0.safetensors", "photos"  # names in the working folder
MARGIN = 16  # pixels below the last line
TERMINAL = """<!doctype html><meta charset=utf-8><style>body { margin: 0; background: #fff; color: #1c2430; }
pre { font: 14px/1.4 "DejaVu Sans Mono", monospace; margin: 14px; white-space: pre; } b { color: #2f6fb7; }
</style><pre>"""

DIGITS, SHALLOW, SMALL = "runs/digits/base", "runs/digits/shallow", "runs/digits/small-patches"
LARGE, HEAD, FOLDS = "runs/digits/large-steps", "runs/photos/head", "runs/folds"
TRAININGS = {  # folder -> overrides
    DIGITS: ["recipe.epochs=20"],
    SHALLOW: ["recipe.epochs=20", "model.depth=1"],
    LARGE: ["recipe.epochs=20", "recipe.optimizer.lr=1"],
    SMALL: ["recipe.epochs=20", "data.patch_size=2"],
    HEAD: ["experiment=finetune", "finetune=head", f"data.root={PHOTOS}", "data.image_size=128", f"init_from={WEIGHTS}",
           "recipe.epochs=1"],
}


@dataclass(frozen=True)
class Picture:
    """A command and what is shown of it.

    Args:
        needs: folders of `TRAININGS`.
        page: the page that the command writes; None for the output in the terminal.
        style: CSS that selects a part of the page.
        width, height: pixels of the window; empty rows at its end are cut.
        lines: of the output that are shown, from the end.
    """

    command: str
    needs: tuple[str, ...] = ()
    page: str | None = None
    style: str = ""
    width: int = WIDTH
    height: int = 800
    lines: int = 40


def only(*sections: str) -> str:
    """CSS that hides the other sections of a report, and its head."""
    shown = "".join(f":not(#{each})" for each in sections)
    return f"section{shown}, h1, nav {{ display: none; }}"


REPORT = f"report {DIGITS} --corruptions --severity 3 --output digits.html"
PICTURES = {
    "report": Picture(REPORT, (DIGITS,), "digits.html", height=1000),
    "report-attention": Picture(f"report {SMALL} --output small.html", (SMALL,), "small.html", only("attention"),
                                height=760),
    "report-errors": Picture(f"report {HEAD} --output photos.html", (HEAD,), "photos.html", only("errors"), height=760),
    "report-robustness": Picture(REPORT, (DIGITS,), "digits.html", only("robustness"), height=1620),
    "compare": Picture(f"compare {DIGITS} {SHALLOW}", (DIGITS, SHALLOW)),
    "sets": Picture(f"predict {HEAD} few --set 0.9", (HEAD,)),
    "abstain": Picture(f"predict {HEAD} few --abstain 0.1", (HEAD,)),
    "cross-validate": Picture(f"cross-validate recipe.epochs=10 folds=5 run_dir={FOLDS}", lines=15),
    "label-errors": Picture(f"audit --labels {HEAD}", (HEAD,), f"{HEAD}/label_errors.html", height=760),
    "near-copies": Picture("audit data=folder data.root=garments --near-copies --html copies.html", (), "copies.html",
                           height=760),
    "next": Picture(f"next {HEAD} new --count 12 --output next", (HEAD,), "next/next.html", height=790),
    "runs": Picture("runs --html runs.html", (DIGITS, SHALLOW, LARGE, HEAD), "runs.html", width=1260),
}


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("names", nargs="*", metavar="NAME", help=", ".join(PICTURES))
    options.add_argument("--photos", type=Path, required=True)
    options.add_argument("--weights", type=Path, required=True)
    options.add_argument("--work", type=Path)
    found = options.parse_args()
    if CHROMIUM is None:
        sys.exit("the pages are drawn by Chromium, which is not installed")
    if unknown := set(found.names) - set(PICTURES):
        sys.exit(f"no picture {', '.join(sorted(unknown))}; there are {', '.join(PICTURES)}")
    FOLDER.mkdir(exist_ok=True)
    with TemporaryDirectory() as temporary:
        work = found.work or Path(temporary)
        prepare(work, found.photos.resolve(), found.weights.resolve())
        for name in found.names or PICTURES:
            draw(name, PICTURES[name], work)


def prepare(work: Path, photos: Path, weights: Path) -> None:
    """The data of the commands: links to photos and weights, photos without labels, and photos with copies."""
    work.mkdir(parents=True, exist_ok=True)
    for name, target in ((PHOTOS, photos), (WEIGHTS, weights)):
        if not (work / name).exists():
            (work / name).symlink_to(target)
    if not (work / "new").exists():
        (work / "new").mkdir()
        (work / "few").mkdir()
        for number, path in enumerate(sorted((work / PHOTOS / "test").glob("*/*.jpg"), key=lambda path: path.name)):
            shutil.copy(path, work / "new" / f"{number:03}.jpg")
            if 80 <= number < 92:
                shutil.copy(path, work / "few" / f"{number:03}.jpg")
    if not (work / "garments").exists():
        copy_photos(work / PHOTOS, work / "garments")


def copy_photos(photos: Path, folder: Path) -> None:
    """The first 20 training and 5 test photos of each class, and changed copies of a few training photos among the
    test photos.
    """
    for split, count in (("train", 20), ("test", 5)):
        for place in sorted((photos / split).iterdir()):
            (folder / split / place.name).mkdir(parents=True)
            for path in sorted(place.glob("*.jpg"))[:count]:
                shutil.copy(path, folder / split / place.name)
    changes = {
        "mirrored": lambda image: image.transpose(Image.Transpose.FLIP_LEFT_RIGHT),
        "smaller": lambda image: image.resize((image.width // 2, image.height // 2)),
        "cropped": lambda image: image.crop((image.width // 20, image.height // 20, image.width * 19 // 20,
                                             image.height * 19 // 20)),
        "darker": lambda image: ImageEnhance.Brightness(image).enhance(0.6),
    }
    for number, (name, change) in enumerate(changes.items()):
        for label, other in (("dress", "dress"), ("shirt", "t-shirt")):
            path = sorted((folder / "train" / label).iterdir())[3 + number]
            change(Image.open(path).convert("RGB")).save(folder / "test" / other / f"{name}.jpg", quality=80)


def draw(name: str, picture: Picture, work: Path) -> None:
    """Run what a picture needs and the command, then save the picture."""
    for folder in picture.needs:
        if not (work / folder / "metrics.json").exists() and not (work / folder / "failed").exists():
            vit(["train", *TRAININGS[folder], f"run_dir={folder}"], work)
    if picture.page is None:
        text = terminal(vit(shlex.split(picture.command), work), picture)
    else:
        if not (work / picture.page).exists():
            vit(shlex.split(picture.command), work)
        text = (work / picture.page).read_text(encoding="utf-8")
        text = text.replace("</head>", f"<style>:root {{ color-scheme: light; }} {picture.style}</style></head>")
    if leaked := re.search(rf"{re.escape(str(work.resolve()))}|{re.escape(str(ROOT))}|{re.escape(str(Path.home()))}/",
                           re.sub(r"base64,[^\"]*", "", text)):
        sys.exit(f"{name}: the page shows the path {leaked[0]}")
    shoot(text, FOLDER / f"{name}.png", picture.width, picture.height)
    print(f"{name}.png: {(FOLDER / f'{name}.png').stat().st_size / 1000:.0f} kB")


def vit(arguments: list[str], work: Path) -> str:
    """The output of `python -m vit ARGUMENTS`, which may fail."""
    environment = {**os.environ, "COLUMNS": str(COLUMNS), "PYTHONPATH": str(ROOT),
                   "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])}
    done = subprocess.run([sys.executable, "-m", "vit", *arguments], cwd=work, env=environment, text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    if done.returncode:
        print(done.stdout[-500:])
    return done.stdout


def terminal(output: str, picture: Picture) -> str:
    """The page of a command and the last lines of its output."""
    lines = [line.rstrip() for line in output.rstrip().splitlines()][-picture.lines:]
    shown = "\n".join(line if len(line) <= COLUMNS else f"{line[: COLUMNS - 1]}…" for line in lines)
    return f"{TERMINAL}<b>$ python -m vit {escape(picture.command)}</b>\n{escape(shown)}</pre>"


def shoot(text: str, path: Path, width: int, height: int) -> None:
    """Save a page in a light theme as a PNG with a palette, without the empty rows at its end."""
    with TemporaryDirectory() as folder:
        page, shot = Path(folder) / "page.html", Path(folder) / "shot.png"
        page.write_text(text, encoding="utf-8")
        subprocess.run([CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
                        f"--user-data-dir={folder}/profile", f"--window-size={width},{height}", f"--screenshot={shot}",
                        "--virtual-time-budget=5000", f"file://{page}"], check=True, capture_output=True, timeout=120)
        image = Image.open(shot).convert("RGB")
    pixels = np.asarray(image)
    used = np.flatnonzero((pixels != pixels[-1, -1]).any(axis=(1, 2)))
    end = min(image.height, int(used[-1]) + MARGIN) if len(used) else image.height
    image.crop((0, 0, image.width, end)).quantize(256, dither=Image.Dither.NONE).save(path, optimize=True)


if __name__ == "__main__":
    main()
