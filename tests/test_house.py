"""The house itself: imports only go down, nothing heavy comes with a light import, files are never unpickled, the wheel
is whole.
"""

import ast
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FLOORS = {
    "nn": 0,
    "files": 0,
    "models": 1,
    "generation": 1,
    "weights": 1,
    "data": 1,
    "training": 2,
    "bundle": 2,
    "exchange": 2,
    "inference": 2,
    "evaluation": 2,
    "report": 2,
    "export": 2,
    "tasks": 3,
    "launch": 4,
    "cli": 4,
    "__main__": 4,
}
MAY = {  # on the ground and first floor a room knows only these rooms
    "nn": set(),
    "models": {"nn", "weights"},
    "generation": {"nn"},
    "weights": {"nn"},
    "files": set(),
    "data": {"files"},
}
LIGHT = {
    "pytorch_lightning",
    "lightning_fabric",
    "lightning",
    "hydra",
    "omegaconf",
    "torchmetrics",
}  # not below floor 2


def modules():
    return [
        path
        for path in sorted((ROOT / "vit").rglob("*.py"))
        if path.name != "__init__.py" or path.parent != ROOT / "vit"
    ]


def room(path):
    return path.relative_to(ROOT / "vit").parts[0].removesuffix(".py")


def imported(path):
    """Every module that a file imports, wherever in it, by its full name."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative imports hide the room"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(ROOT)))
def test_an_import_only_goes_down(path):
    here = room(path)
    assert here in FLOORS, f"{here} has no floor: put it into the table of this test and of the design"
    for name in imported(path):
        parts = name.split(".")
        if parts[0] == "vit" and len(parts) > 1 and parts[1] in FLOORS and parts[1] != here:
            assert FLOORS[parts[1]] <= FLOORS[here], f"{path} imports {name}, which is upstairs"
            assert parts[1] in MAY.get(here, FLOORS), f"{path} imports {name}, a neighbour it must not know"
        if FLOORS[here] < 2:
            assert parts[0] not in LIGHT, f"{path} imports {name}"
        if here == "nn":
            assert parts[0] in {"torch", "vit", "timm"} | set(sys.stdlib_module_names), f"{path} imports {name}"
            assert parts[0] != "timm" or name.startswith("timm.layers"), f"{path} imports {name}"


def loaded_by(statement):
    code = f"import sys; {statement}; print(*sorted(name.split('.')[0] for name in set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


def test_light_imports_stay_light():
    assert not loaded_by("import vit") & {"torch", "numpy", "timm", *LIGHT}
    assert not loaded_by("import vit.nn, vit.models, vit.weights, vit.data") & LIGHT


NEVER = ("pickle.load", "pickle.loads", "eval", "exec", "joblib.load", "yaml.load", "yaml.load_all",
         "yaml.unsafe_load", "yaml.full_load", "torch.serialization.add_safe_globals", "torch.jit.load",
         "torch.hub.load", "torch.export.load", "shutil.unpack_archive")
REFUSED = {"weights_only": "False", "allow_pickle": "True", "trust_remote_code": "True"}


def unsafe(text):
    """Every call in a source text that could run a program from a file or write outside a folder."""
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.Call):
            continue
        called = ast.unparse(node.func)
        keywords = {keyword.arg: ast.unparse(keyword.value) for keyword in node.keywords}
        extracts = called.endswith((".extractall", ".extract")) and "filter" not in keywords
        if (called in NEVER or extracts or any(keywords.get(key) == value for key, value in REFUSED.items())
                or called == "torch.load" and keywords.get("weights_only") != "True"):
            yield ast.unparse(node)


def test_no_file_can_run_a_program():
    for path in [*modules(), ROOT / "train.py"]:
        found = list(unsafe(path.read_text(encoding="utf-8")))
        assert not found, f"{path}: {found[0]}"


@pytest.mark.parametrize("text", [
    "torch.load(p)", "torch.load(p, weights_only=False)", "pickle.load(f)", "yaml.load(f, Loader=L)", "z.extractall()",
    "np.load(p, allow_pickle=True)", "load_dataset(p, trust_remote_code=True)", "trainer.fit(t, weights_only=False)",
])
def test_the_check_for_unsafe_calls_sees(text):
    assert list(unsafe(text))


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The wheel unpacked in a folder of its own."""
    place = tmp_path_factory.mktemp("wheel")
    command = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--quiet",
        "--no-deps",
        "--no-build-isolation",
        "-w",
        str(place),
        str(ROOT),
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (file,) = place.glob("*.whl")
    with zipfile.ZipFile(file) as archive:
        archive.extractall(place / "site")
        return place / "site", set(archive.namelist())


def test_the_wheel_holds_all_that_runs(wheel):
    _, names = wheel
    for path in [*modules(), ROOT / "vit" / "__init__.py"]:
        assert str(path.relative_to(ROOT)) in names
    for path in (ROOT / "conf").rglob("*.yaml"):
        assert f"vit/{path.relative_to(ROOT)}" in names
    assert any(name.endswith("licenses/LICENSE") for name in names)
    assert not [name for name in names if not name.startswith("vit/") and ".dist-info/" not in name]


def test_the_wheel_runs_without_the_checkout(wheel, tmp_path):
    site, _ = wheel
    code = (
        f"import pathlib, sys; sys.path[:0] = [{str(site)!r}]; import vit, vit.cli; "
        f"assert pathlib.Path(vit.__file__).is_relative_to({str(site)!r}), vit.__file__; "
        "sys.exit(vit.cli.main(['train', 'data=digits', '--cfg']))"
    )
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "_target_: vit.data.digits" in done.stdout
