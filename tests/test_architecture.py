"""The architecture: imports only go down the layers, a light import loads nothing heavy, and no file is unpickled.
"""

import ast
import importlib
import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
LAYERS = (  # the layers of README.md, from below: package -> the packages of its own layer that it may import
    {"files": ["messages"], "counters": [], "lazy_names": [], "low_precision": [], "messages": [], "moved_modules": [],
     "other_names": [], "packed_images": [], "torch_defaults": [], "nn": []},
    {"weights": [], "models": ["weights"], "generation": [], "data": []},
    {"training": [], "bundle": [], "exchange": ["bundle"], "inference": ["bundle", "exchange"],
     "evaluation": ["bundle", "exchange", "inference"],
     "report": ["bundle", "exchange", "inference", "evaluation"],
     "benchmarking": ["training", "bundle", "exchange", "inference"]},
    {"tasks": []},
    {"run": [], "cli": ["run"], "__main__": ["cli", "run"]},
)
LAYER = {package: level for level, packages in enumerate(LAYERS) for package in packages}
MAY_IMPORT = {  # every package -> all it may import: what lies below, and its neighbours
    package: {below for layer in LAYERS[:level] for below in layer} | set(neighbours)
    for level, packages in enumerate(LAYERS) for package, neighbours in packages.items()
} | {"data": {"files", "counters", "messages", "moved_modules", "packed_images"}, "weights": {"nn"},
     "generation": {"nn", "counters", "messages"}}
LIGHT = {
    "pytorch_lightning",
    "lightning_fabric",
    "lightning",
    "hydra",
    "omegaconf",
    "torchmetrics",
}  # not below layer 2


def modules():
    return [
        path
        for path in sorted((ROOT / "vit").rglob("*.py"))
        if path.name != "__init__.py" or path.parent != ROOT / "vit"
    ]


def name_of(path):
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def package_of(module):
    return module.split(".")[1]


def imported(path):
    """The full name of everything that a file imports, local imports included."""
    for node in nodes(ast.parse(path.read_text(encoding="utf-8")), path):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: use absolute imports"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def nodes(tree, path):
    """The nodes of a file; of a package without what only type checkers import, the names of `lazy_names`."""
    for node in ast.iter_child_nodes(tree):
        if not (path.name == "__init__.py" and is_for_type_checkers(node)):
            yield node
            yield from nodes(node, path)


def is_for_type_checkers(node):
    return isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"


def import_graph():
    """Module of vit -> the modules of vit that it imports."""
    paths = {name_of(path): path for path in modules()}
    graph = {}
    for module, path in paths.items():
        graph[module] = set()
        for name in imported(path):
            while name and name not in paths:
                name = name.rpartition(".")[0]
            graph[module] |= {name} - {"", module}
    return graph


def cycles(graph):
    """The sets of modules, two or more, that reach each other."""
    reached = {module: set(found) for module, found in graph.items()}
    for through in graph:  # Warshall's closure
        for found in reached.values():
            if through in found:
                found |= reached[through]
    return {frozenset(other for other in reached[module] if module in reached[other]) for module in graph
            if module in reached[module]}


def test_every_package_has_a_layer():
    packages = {package_of(name_of(path)) for path in modules()}
    assert packages == set(LAYER), "the tables of this test and of README.md list the packages"


def test_the_table_of_the_readme_has_each_package_in_its_layer():
    rows = re.findall(r"^\| (\d) \| ([^|]+) \|", (ROOT / "README.md").read_text(encoding="utf-8"), re.M)
    listed = {package: int(level) for level, names in rows for package in re.findall(r"`vit\.(\w+)`", names)}
    assert listed == {package: level for package, level in LAYER.items() if package != "__main__"}


def test_an_import_only_goes_down():
    found = {(module, target) for module, targets in import_graph().items() for target in targets
             if package_of(target) not in MAY_IMPORT[package_of(module)] | {package_of(module)}}
    assert found == set(), "imports against the order of the layers"


def test_no_module_imports_itself_in_a_circle():
    assert cycles(import_graph()) == set(), "modules that import each other"


def test_cycles_are_found():
    graph = {"a": {"b"}, "b": {"c"}, "c": {"b", "d"}, "d": set(), "e": {"f"}, "f": {"e", "a"}}
    assert cycles(graph) == {frozenset("bc"), frozenset("ef")}


@pytest.mark.parametrize("path", [path for path in modules() if LAYER[package_of(name_of(path))] < 2], ids=name_of)
def test_the_lower_layers_import_no_framework(path):
    for name in imported(path):
        top = name.split(".")[0]
        assert top not in LIGHT, f"{path} imports {name}"
        if package_of(name_of(path)) == "nn":
            assert top in {"torch", "vit", "timm"} | set(sys.stdlib_module_names), f"{path} imports {name}"
            assert top != "timm" or name.startswith("timm.layers"), f"{path} imports {name}"


@pytest.mark.parametrize("path", sorted((ROOT / "benchmarks").glob("*.py")), ids=lambda path: path.name)
def test_imports_of_benchmarks_exist(path):
    for name in (name for name in imported(path) if name.startswith("vit.")):
        module, _, leaf = name.rpartition(".")
        assert hasattr(importlib.import_module(module), leaf) or importlib.util.find_spec(name), name


@pytest.mark.parametrize("package", ["vit", "vit.benchmarking", "vit.exchange", "vit.run", "vit.training"])
def test_type_checkers_see_the_names_that_are_imported_on_first_use(package):
    path = ROOT / package.replace(".", "/") / "__init__.py"
    tree = ast.parse(path.read_text(encoding="utf-8"))
    found = {alias.asname: f"{node.module}.{alias.name}" for block in tree.body if is_for_type_checkers(block)
             for node in block.body for alias in node.names}
    module = importlib.import_module(package)
    packages = {name: f"vit.{name}" for name in module._PACKAGES} if package == "vit" else {}
    assert found == {name: f"{source}.{name}" for name, source in module._MODULES.items()} | packages
    assert sorted(found) == [name for name in dir(module) if not name.startswith("__")]
    assert module.__all__ == sorted(module._MODULES)
    assert all(hasattr(module, name) for name in found)


def test_packages_are_imported_on_first_use():
    names = "vit.nn.Block, vit.models.Classifier, vit.data.Preprocessing, vit.training.Finetune, vit.tasks.Task"
    assert "torch" in loaded_by(f"import vit; {names}")
    assert not loaded_by("import vit; dir(vit)") & {"torch", "numpy"}


def loaded_by(statement):
    code = f"import sys; {statement}; print(*sorted(name.split('.')[0] for name in set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


def test_light_imports_stay_light():
    assert not loaded_by("import vit") & {"torch", "numpy", "timm", *LIGHT}
    assert not loaded_by("import vit.nn, vit.models, vit.weights, vit.data") & LIGHT


@pytest.mark.parametrize("override", ["recipe.epoch=3", "recipe.epochs=0", "recipe.loss.name=ce", "distill=soft"])
def test_a_wrong_override_is_reported_before_torch_is_loaded(override):
    assert "torch" not in loaded_by(f"from vit.run import main; assert main([{override!r}]) == 2")


def test_programs_that_start_trainings_load_no_lightning():
    """Each training is a process of its own, which loads it."""
    programs = ("cross_validation", "compare_finetuning", "label_audit", "sweeping")
    statement = "import " + ", ".join(f"vit.run.multirun.{name}" for name in programs)
    assert not loaded_by(statement) & {"pytorch_lightning", "lightning_fabric", "torchmetrics"}


NEVER = ("pickle.load", "pickle.loads", "eval", "exec", "joblib.load", "yaml.load", "yaml.load_all",
         "yaml.unsafe_load", "yaml.full_load", "torch.serialization.add_safe_globals", "torch.jit.load",
         "torch.hub.load", "torch.export.load", "shutil.unpack_archive")
OWN_FILES = {"onnx_and_torch_export.py": "torch.export.load(path)"}  # reads back what it has just written
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
        found = [call for call in unsafe(path.read_text(encoding="utf-8")) if call != OWN_FILES.get(path.name)]
        assert not found, f"{path}: {found[0]}"


@pytest.mark.parametrize("text", [
    "torch.load(p)", "torch.load(p, weights_only=False)", "pickle.load(f)", "yaml.load(f, Loader=L)", "z.extractall()",
    "np.load(p, allow_pickle=True)", "load_dataset(p, trust_remote_code=True)", "trainer.fit(t, weights_only=False)",
])
def test_the_check_for_unsafe_calls_finds_them(text):
    assert list(unsafe(text))


def test_files_that_configs_and_code_name_exist():
    named = re.compile(r"\b(?:vit|docs|conf|benchmarks|tests)/[\w/-]+\.(?:py|yaml|md|ipynb|png|svg)\b")
    texts = [*ROOT.glob("conf/**/*.yaml"), *ROOT.glob("vit/**/*.py")]
    missing = [(str(path.relative_to(ROOT)), name) for path in texts for name in named.findall(path.read_text())
               if not (ROOT / name).exists()]
    assert len(texts) > 100 and missing == []
