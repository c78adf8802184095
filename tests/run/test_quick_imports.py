"""Imports of the command. A deferred module behaves as the module that it replaces, in processes of its own."""

import gc
import importlib
import importlib.util
import inspect
import json
import subprocess
import sys

import numpy
import pytest
import torch._dynamo

from vit.run.deferred_modules import DeferredCompiler, Placeholder, default_ddp_mode, deferred_packages, quick_imports

START = ("import sys; from vit.run.deferred_modules import quick_imports\n"
         "with quick_imports(): import pytorch_lightning\n")
NOT_LOADED = "assert not {'scipy.signal.windows', 'torch._dynamo.eval_frame'} & sys.modules.keys()\n"
USES = {
    "an attribute": "import scipy.signal; convolve = scipy.signal.convolve",
    "a name": "from scipy.signal import convolve",
    "a submodule": "import scipy.signal.windows; from scipy.signal._signaltools import convolve",
    "a submodule as a name": "from scipy.signal import windows; from scipy.signal import convolve",
    "the added name": "import scipy.signal; assert len(scipy.signal.hamming(5)) == 5; convolve = scipy.signal.convolve",
    "the module itself": "signal = sys.modules['scipy.signal']; convolve = signal.convolve; assert signal.windows",
}
CHECK = """
import inspect, numpy, scipy.signal, scipy.signal.windows
assert list(convolve([1, 2], [3, 4])) == [3, 10, 8]
assert scipy.signal is sys.modules["scipy.signal"] and inspect.isfunction(scipy.signal.find_peaks)
assert numpy.array_equal(scipy.signal.hamming(7), scipy.signal.windows.hamming(7))
assert scipy.signal.windows is sys.modules["scipy.signal.windows"]
assert type(scipy.signal.windows.__spec__.loader).__name__ == "SourceFileLoader"
"""
FORK = """
for name, code in {codes!r}.items():
    child = os.fork()
    if not child:
        exec(code)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0, name
"""
INSPECTED = "import inspect; inspect.getmodule(sys._getframe()); [inspect.getmodule(len) for _ in range(2)]\n"
PACKAGES = """
assert not {"transformers", "torchvision"} & sys.modules.keys()
from torchmetrics.functional.text import bert
from torchmetrics.functional.image.arniqa import transforms
assert not isinstance(3, bert.AutoModel)
assert not {"transformers", "torchvision"} & sys.modules.keys()
import torchvision, transformers
assert isinstance(transformers.BertConfig(), transformers.PretrainedConfig)
assert not isinstance(3, bert.AutoModel)
assert bert.AutoTokenizer.from_pretrained == transformers.AutoTokenizer.from_pretrained
class Own(bert.AutoModel): pass
assert issubclass(Own, transformers.AutoModel)
assert isinstance(transforms.Resize(3), torchvision.transforms.Resize)
"""
FIRST_USE = """
from torchmetrics.functional.image.arniqa import resnet50
assert resnet50(num_classes=3).fc.out_features == 3 and hasattr(sys.modules["torchvision"], "models")
"""
PLOT = """
from torchmetrics.classification import MulticlassAccuracy
assert "matplotlib" not in sys.modules
accuracy = MulticlassAccuracy(3)
accuracy.update(torch.tensor([0, 1]), torch.tensor([0, 2]))
figure, axes = accuracy.plot()
import matplotlib.figure
assert type(figure) is matplotlib.figure.Figure and axes.lines
"""
EAGER = """
import torch
from lightning_fabric.wrappers import OptimizedModule
def step(module):
    optimizer = torch.optim.AdamW(module.parameters())
    module(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    optimizer.load_state_dict(optimizer.state_dict())
    return optimizer
module = torch.nn.Linear(2, 2)
step(module)
assert not isinstance(module, OptimizedModule)
excluded = torch.compiler.disable(torch.sin)
also_excluded = torch.compiler.disable(reason="here")(torch.cos)
assert torch.equal(excluded(torch.ones(2)), torch.ones(2).sin())
""" + NOT_LOADED
COMPILED = """
compiled = torch.compile(module, backend="eager")
assert isinstance(compiled, OptimizedModule) and type(compiled) is torch._dynamo.OptimizedModule
assert not isinstance(module, OptimizedModule)
assert torch.equal(compiled(torch.ones(1, 2)), module(torch.ones(1, 2)))
step(compiled)
for function in (excluded, also_excluded):
    assert torch._dynamo.explain(lambda x: function(x + 1) + 1)(torch.ones(2)).graph_break_count == 1
assert torch._dynamo.explain(lambda x: (x + 1).sin() + 1)(torch.ones(2)).graph_break_count == 0
"""
MODULE_OF_COMPILER = """
from torch._dynamo.eval_frame import OptimizedModule as original
assert original is torch._dynamo.OptimizedModule and sys.modules["torch._dynamo"] is torch._dynamo
assert type(torch._dynamo.eval_frame.__spec__.loader).__name__ == "SourceFileLoader"
"""
SUBMODULES = """
import torch._dynamo.utils as utils
rules = sys.modules["torch._dynamo.trace_rules"]
rules.clear_lru_cache()
assert utils.get_optimize_ddp_mode() == "ddp_optimizer"
""" + NOT_LOADED + """
torch._dynamo.config.optimize_ddp = "python_reducer"
assert utils.get_optimize_ddp_mode() == torch._dynamo.utils.get_optimize_ddp_mode() == "python_reducer"
assert utils.counters is sys.modules["torch._dynamo.utils"].counters and utils is not torch._dynamo.utils
assert rules.clear_lru_cache is torch._dynamo.trace_rules.clear_lru_cache
"""
FIRST_SUBMODULE = """
from torch._dynamo.utils import is_compile_supported, counters
import torch._dynamo.utils
assert torch._dynamo.utils.counters is counters and torch._dynamo.utils is sys.modules["torch._dynamo.utils"]
assert is_compile_supported("meta") is torch._dynamo.utils.is_compile_supported("meta") is False
"""
TIMM = """
import timm
from torchvision.ops.roi_align import is_compile_supported
model = timm.create_model("test_resnet", num_classes=3).eval()
assert model(torch.ones(1, 3, 32, 32)).shape == (1, 3)
""" + NOT_LOADED + """
assert is_compile_supported("meta") is False and is_compile_supported("cpu") in (False, True)
assert "torch._dynamo.eval_frame" in sys.modules
"""
DISTRIBUTED = """
from torch import distributed
distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
wrapped = torch.nn.parallel.DistributedDataParallel(module)
step(wrapped)
""" + NOT_LOADED + """
compiled = torch.compile(wrapped, backend="eager")
assert torch.equal(compiled(torch.ones(1, 2)), module(torch.ones(1, 2)))
assert torch._dynamo.utils.get_optimize_ddp_mode.__module__ == "torch._dynamo.utils"
"""
PROBE = """
import json, os, sys
from pytorch_lightning import Callback
class Probe(Callback):
    def on_train_batch_end(self, *_):
        print("loaded", json.dumps([name for name, module in sys.modules.items()
                                    if type(module).__name__ not in ("DeferredCompiler", "DeferredSignal")]))
        sys.stdout.flush()
        os._exit(0)
"""
FIRST_STEP = """
import vit.run
vit.run.{function}(["debug=true", "report=false", "run_dir=run", "+callbacks.probe._target_=probe.Probe"])
"""
WRONG = """
import sys, vit
try:
    vit.train(["modle=tiny"])
except ValueError as error:
    assert "model" in str(error) and not {"torch", "pytorch_lightning"} & sys.modules.keys()
    sys.exit(3)
"""
SLOW = {"torch._dynamo", "torch._inductor", "sympy", "triton", "matplotlib", "scipy.signal", "transformers",
        "torchvision", "pandas", "onnx", "sklearn"}


@pytest.mark.slow
def test_what_is_deferred_is_imported_when_it_is_used():
    """In forks of one process that has imported Lightning."""
    codes = {name: use + CHECK for name, use in USES.items()} | {"the first use of a name": FIRST_USE}
    codes |= {"a plot": "import torch" + PLOT, "compilation": EAGER + COMPILED, "modules": EAGER + MODULE_OF_COMPILER}
    codes |= {"submodules": "import torch" + SUBMODULES, "a submodule first": FIRST_SUBMODULE,
              "timm": "import torch" + TIMM, "distributed training": EAGER + DISTRIBUTED}
    if importlib.util.find_spec("transformers"):
        codes["packages"] = PACKAGES
    code = "import os\n" + START + NOT_LOADED + INSPECTED + NOT_LOADED + FORK.format(codes=codes)
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("function", ["main", "train"])
def test_the_first_step_waits_for_no_slow_module(tmp_path, function):
    """Placeholders are found by name: this fails if a dependency uses another name of a replaced module."""
    (tmp_path / "probe.py").write_text(PROBE)
    code = FIRST_STEP.format(function=function)
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    line = next(line for line in done.stdout.splitlines() if line.startswith("loaded "))
    assert SLOW & set(json.loads(line.removeprefix("loaded "))) == set()


def test_a_wrong_override_in_python_is_an_error_before_torch_is_loaded():
    done = subprocess.run([sys.executable, "-c", WRONG], capture_output=True, text=True)
    assert done.returncode == 3, done.stderr


@pytest.mark.parametrize("name", ["disable", "graph_break"])
def test_the_placeholder_of_the_compiler_has_its_signatures(name):
    placeholder, original = getattr(DeferredCompiler(), name), getattr(torch._dynamo, name)
    assert list(inspect.signature(placeholder).parameters.values()) == [
        parameter.replace(annotation=mine.annotation) for parameter, mine in zip(
            inspect.signature(original).parameters.values(), inspect.signature(placeholder).parameters.values(),
            strict=True)]


def test_the_placeholder_of_ddp_returns_the_default():
    assert default_ddp_mode() == torch._dynamo.utils.get_optimize_ddp_mode()


def test_an_empty_attribute_of_a_deferred_package_is_used(tmp_path, monkeypatch):
    (tmp_path / "package_with_table.py").write_text("TABLE = {}\n")
    monkeypatch.syspath_prepend(tmp_path)
    with deferred_packages("package_with_table"):
        from package_with_table import TABLE
    assert list(TABLE.items()) == []


def test_packages_that_are_absent_or_imported_are_left_alone():
    before = list(sys.meta_path)
    with deferred_packages("numpy", "no_such_package"):
        import numpy.linalg as linalg
        with pytest.raises(ModuleNotFoundError):
            importlib.import_module("no_such_package")
    assert sys.meta_path == before and linalg is numpy.linalg and not isinstance(linalg, Placeholder)


@pytest.mark.parametrize("enabled", [True, False])
def test_garbage_collection_is_as_before_after_the_imports(enabled):
    before = gc.isenabled()
    try:
        (gc.enable if enabled else gc.disable)()
        with pytest.raises(ImportError), quick_imports():
            assert not gc.isenabled()
            raise ImportError
        assert gc.isenabled() is enabled
    finally:
        (gc.enable if before else gc.disable)()
