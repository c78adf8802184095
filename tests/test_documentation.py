"""The documentation is true: its commands parse and compose, its Python blocks run, its links lead somewhere."""

import ast
import gzip
import io
import os
import re
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
import typer
import yaml
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override

import vit
from vit.cli import app, main
from vit.run import compose
from vit.run.multirun.cross_validation import fold_runs, split_arguments

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md", *sorted((ROOT / "docs").rglob("*.md"))]
FLAGS = {"-m", "--multirun", "--cfg", "--debug", "--help"}  # of `python train.py`
BLOCK = re.compile(r"(<!-- not-run: [^>]*-->\n)?^```(\w+)\n(.*?)^```", re.M | re.S)
INLINE = re.compile(r"`((?:\w+=\S+ )*(?:python (?:train\.py|-m vit|benchmarks/)|vit )[^`]*)`")
HEADER = re.compile(r"^#\s+((?:\w+=\S+ )*python train\.py\b(?:(?!  |, ).)*)(?:  .*)?$", re.M)  # in a config file
SEPARATORS = {"&&", "|", ";", "||", "then"}


@dataclass(frozen=True)
class Block:
    """A fenced block: its location, language and text, and whether the page states why it is not run."""

    location: str
    language: str
    text: str
    skipped: bool


def blocks() -> list[Block]:
    found = []
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for match in BLOCK.finditer(text):
            location = f"{page.relative_to(ROOT)}:{text.count(chr(10), 0, match.start(2)) + 1}"
            found.append(Block(location, match[2], match[3], bool(match[1])))
    return found


def split_commands(line: str) -> list[list[str]]:
    """The arguments of each command of a shell line, without comments and leading variables."""
    commands, command = [], []
    lexer = shlex.shlex(line, posix=True, punctuation_chars="|&;")
    lexer.whitespace_split = True
    for token in lexer:
        if token in SEPARATORS:
            commands, command = [*commands, command], []
        elif command or not re.fullmatch(r"[A-Z_]+=\S*|srun", token):
            command.append(token)
    return [*commands, command]


def commands() -> dict[tuple[str, ...], str]:
    """Every documented command -> the page that has it."""
    lines = []
    for page in PAGES:
        prose = BLOCK.sub("", page.read_text(encoding="utf-8"))
        lines += [(found, str(page.relative_to(ROOT))) for found in INLINE.findall(prose)]
    for block in blocks():
        if block.language == "bash" and not block.skipped:
            lines += [(line, block.location) for line in block.text.replace("\\\n", " ").splitlines()]
    for path in sorted((ROOT / "conf").rglob("*.yaml")):
        headers = HEADER.findall(path.read_text(encoding="utf-8"))
        lines += [(line, str(path.relative_to(ROOT))) for line in headers]
    found = {}
    for line, location in lines:
        for command in split_commands(line):
            if command[:1] in (["python"], ["vit"]) and "..." not in line:
                found.setdefault(tuple(command), location)
    return found


def ends_of_sweep(overrides: list[str]) -> list[list[str]]:
    """A sweep's overrides with the first value of each key, and with the last, as Hydra reads them."""
    parsed = [OverridesParser.create().parse_override(override) for override in overrides]
    values = [[f"{one.get_key_element()}={value}" for value in values_of(one)]
              if one.is_sweep_override() else [one.input_line] for one in parsed]
    return [[each[0] for each in values], [each[-1] for each in values]]


def values_of(override: Override) -> list[str]:
    """The values of a key in a sweep; of an interval its ends."""
    if override.is_interval_sweep():
        return [str(override.value().start), str(override.value().end)]
    return list(override.sweep_string_iterator())


def check_train(arguments: list[str]) -> None:
    flags = [argument for argument in arguments if argument.startswith("-")]
    overrides = [argument for argument in arguments if not argument.startswith("-")]
    assert set(flags) <= FLAGS, flags
    for chosen in ends_of_sweep(overrides) if {"-m", "--multirun"} & set(flags) else [overrides]:
        compose(chosen)


def check_vit(arguments: list[str]) -> None:
    if arguments[:1] == ["train"]:
        check_train(arguments[1:])
        return
    group = typer.main.get_command(app)
    command, *rest = arguments or ["--help"]
    options = {name for each in group.params for name in each.opts}
    assert command in {"--help"} | options | set(group.commands), f"there is no vit {command}"
    if rest and rest != ["--help"]:  # else a page only mentions the command
        parameters = group.commands[command].make_context(command, rest).params
        lists = [value for value in parameters.values() if isinstance(value, list | tuple)]
        overrides = [argument for value in lists for argument in value if "=" in str(argument)]
        if command == "cross-validate":
            own, overrides = split_arguments(overrides)
            fold_runs(own)
        if command != "runs" and any(argument.startswith("data=") for argument in overrides):
            compose(overrides)


COMMANDS = commands()


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: " ".join(command)[:90])
def test_a_documented_command_composes(command, monkeypatch):
    for module in ("vit.files.missing", "vit.exchange.source_names", "vit.run.config.paths"):  # files of the reader
        monkeypatch.setattr(f"{module}.is_missing", lambda path: False)
    location = COMMANDS[command]
    program, rest = (command[1], command[2:]) if command[0] == "python" else ("vit", command[1:])
    if command[:3] == ("python", "-m", "vit") or program == "vit":
        check_vit(list(command[3:] if program == "-m" else rest))
    elif program == "train.py":
        check_train(list(rest))
    elif program == "-m":
        assert rest[0] in ("venv", "tests.faults"), f"{location}: unknown module {rest[0]}"
    else:
        assert (ROOT / program).is_file(), f"{location}: there is no {program}"


def test_commands_are_found_everywhere():
    """The patterns above find blocks, tables and config headers."""
    locations = {location.partition(":")[0] for location in COMMANDS.values()}
    assert {"README.md", "docs/results.md", "docs/guides/your-photos.md", "conf/experiment/mae.yaml"} <= locations
    assert ("python", "train.py", "experiment=finetune", "data.root=photos") in COMMANDS
    assert len(COMMANDS) > 80


@pytest.fixture(scope="module")
def workplace(tmp_path_factory):
    """A folder with what the pages require: trained models, photos in class folders and a checkpoint."""
    import timm
    import torch
    from PIL import Image
    from sklearn.datasets import load_digits

    folder = tmp_path_factory.mktemp("documentation")
    runs = folder / "runs"
    vit.train(["recipe.epochs=8", "report=false",  # enough epochs to abstain with few errors
               f"run_dir={runs / 'digits/TIME'}"])
    vit.train(["experiment=spelled_numbers", "debug=true", "model.dim=32", "model.num_heads=2", "model.depth=1",
               "model.decoder_depth=1", "data.test=64", "data.train=256", "data.val=64", "report=false",
               f"run_dir={runs / 'spelled_numbers/TIME'}"])
    digits = load_digits()
    for row in range(200):
        path = folder / "photos" / str(digits.target[row]) / f"{row}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray((digits.images[row] * 15).astype("uint8")).resize((32, 32)).save(path)
    (folder / "photo.png").write_bytes(path.read_bytes())
    network = timm.create_model("vit_small_patch14_reg4_dinov2", img_size=28)
    torch.save(network.state_dict(), folder / "dinov2_vits14_reg4_pretrain.pth")
    return folder


def quick_commands() -> list[tuple[str, ...]]:
    """Commands on the models and photos of `workplace` that take seconds."""
    used = ("runs/digits/TIME", "runs/spelled_numbers/TIME", "data=folder")
    quick = {"predict", "evaluate", "attention", "explain", "audit", "card", "convert", "probe", "models", "report"}
    found = [command[3:] for command in COMMANDS if command[:3] == ("python", "-m", "vit") and len(command) > 4]
    return [command for command in found
            if command[0] in quick and command[1].removesuffix("/model") in used and "--model" not in command]


@pytest.mark.parametrize("command", quick_commands(), ids=lambda command: " ".join(command)[:90])
def test_a_quick_command_runs(command, workplace, monkeypatch, capsys):
    monkeypatch.chdir(workplace)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"1234\n")))
    assert main(list(command)) == 0, capsys.readouterr().err


PYTHON = [block for block in blocks() if block.language == "python"]


@pytest.mark.parametrize("block", PYTHON, ids=lambda block: block.location)
def test_a_python_block_runs(block, workplace, monkeypatch, tmp_path):
    monkeypatch.chdir(workplace)
    exec(compile(block.text, block.location, "exec"), {"__name__": "__main__"})


def test_the_example_of_a_data_set_reads_images(tmp_path):
    guide = (ROOT / "docs/guides/extending.md").read_text(encoding="utf-8")
    names = {"__name__": "flowers"}
    exec(re.search(r"```python\n(# flowers.py.*?)```", guide, re.S)[1], names)
    for name in ("train/rose_1.jpg", "train/tulip_2.jpg", "val/rose_3.jpg", "test/tulip_4.jpg"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(name.encode())
    source = names["flowers"](root=str(tmp_path))
    assert source.classes == ["rose", "tulip"] and list(source.splits["test"].labels) == [1]
    assert source.splits["train"].read(1) == b"train/tulip_2.jpg"


def test_the_trace_of_a_run_does_not_change_it(tmp_path, monkeypatch, capfd):
    guide = (ROOT / "docs/guides/speed.md").read_text(encoding="utf-8")
    (tmp_path / "tracing.py").write_text(re.search(r"```python\n(# tracing.py.*?)```", guide, re.S)[1])
    command = shlex.split(re.search(r"^python -m vit (train .*callbacks.trace.*)$", guide, re.M)[1])
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    short = ["report=false", "calibrate=none", "logger=csv", "trainer.accelerator=cpu"]
    assert main([*command, *short, "run_dir=traced"]) == 0
    assert "aten::" in capfd.readouterr().out
    assert b"aten::" in gzip.decompress((tmp_path / "trace-0.json.gz").read_bytes())
    vit.train([*[each for each in command[1:] if "callbacks" not in each], *short, "run_dir=plain"])
    plain, traced = (tmp_path / name / "model" / "model.safetensors" for name in ("plain", "traced"))
    assert plain.read_bytes() == traced.read_bytes()


@pytest.mark.parametrize("block", [b for b in blocks() if b.language == "yaml"], ids=lambda block: block.location)
def test_a_yaml_block_is_yaml(block):
    assert isinstance(yaml.safe_load(block.text), dict)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_files(page):
    text = BLOCK.sub("", page.read_text(encoding="utf-8"))
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        path = target.partition("#")[0]
        if path and not re.match(r"\w+:", target) and path != "reference/errors.md":  # which the site generates
            assert (page.parent / path).exists(), f"{page.relative_to(ROOT)}: {target}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_named_files_of_the_project_exist(page):
    for path in re.findall(r"`((?:vit|conf|tests|benchmarks)/[\w/.-]*)`", page.read_text(encoding="utf-8")):
        assert (ROOT / path).exists(), f"{page.relative_to(ROOT)}: {path}"


def test_the_names_in_the_table_of_files_are_in_them():
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    found = [(name, path) for names, path in re.findall(r"((?:`\w+`(?:, )?)+) in `(vit/[\w/]+\.py)`", text)
             for name in re.findall(r"\w+", names)]
    assert len(found) > 12
    for name, path in found:
        assert re.search(rf"(def|class) {name}\b", (ROOT / path).read_text(encoding="utf-8")), f"{path} has no {name}"


def longest_part(message: str) -> str:
    """The longest part of a documented message between its values, which are in capitals, and between counts with their
    nouns and the verbs that agree with them.
    """
    counts = r"\b[NM] (?!of\b)[a-z]+|\b(?:are|do|have)\b"
    values = r"\b[A-Z]+(?:x[A-Z])?\b|\.\.\.|[(),]"
    return max((part.strip(" ;:") for part in re.split(f"{counts}|{values}", message)), key=len)


def test_the_messages_of_troubleshooting_are_those_of_the_code():
    trees = [ast.parse(path.read_text(encoding="utf-8")) for path in (ROOT / "vit").rglob("*.py")]
    texts = "\n".join(node.value for tree in trees for node in ast.walk(tree)
                      if isinstance(node, ast.Constant) and isinstance(node.value, str))
    page = (ROOT / "docs/troubleshooting.md").read_text(encoding="utf-8").partition("## Overrides")[2]
    cells = re.findall(r"^\| (.+?) \|", page, re.M)
    messages = [message for cell in cells for message in re.findall(r"`([^`]+)`", cell)]
    assert len(messages) > 35
    assert [message for message in messages if longest_part(message) not in texts] == []


def test_the_site_builds_without_warnings(tmp_path):
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    for page, text in {"config/recipe": "weight_decay", "reference/nn": "vit.nn.Encoder", "reference/vit": "vit.load",
                       "reference/errors": "DataError", "changelog": "Unreleased"}.items():
        assert text in (tmp_path / "site" / page / "index.html").read_text(encoding="utf-8"), page


def test_the_readme_is_short():
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 150
