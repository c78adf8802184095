"""Imports of the command. A deferred module behaves as the module that it stands for, in processes of its own."""

import gc
import importlib
import importlib.util
import subprocess
import sys

import numpy
import pytest

from vit.run.quick_imports import DeferredPackages, Placeholder, quick_imports

START = "import sys; from vit.run.quick_imports import quick_imports\nwith quick_imports(): import torchmetrics\n"
NOT_LOADED = "assert 'scipy.signal.windows' not in sys.modules\n"
USES = {
    "an attribute": "import scipy.signal; convolve = scipy.signal.convolve",
    "a name": "from scipy.signal import convolve",
    "a submodule": "import scipy.signal.windows; from scipy.signal._signaltools import convolve",
    "a submodule as a name": "from scipy.signal import windows; from scipy.signal import convolve",
    "the added name": "import scipy.signal; assert len(scipy.signal.hamming(5)) == 5; convolve = scipy.signal.convolve",
}
CHECK = """
import inspect, numpy, scipy.signal, scipy.signal.windows
assert list(convolve([1, 2], [3, 4])) == [3, 10, 8]
assert scipy.signal is sys.modules["scipy.signal"] and inspect.isfunction(scipy.signal.find_peaks)
assert numpy.array_equal(scipy.signal.hamming(7), scipy.signal.windows.hamming(7))
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


def test_what_is_deferred_is_imported_when_it_is_used():
    """In forks of one process that has imported torchmetrics."""
    codes = {name: use + CHECK for name, use in USES.items()} | {"the first use of a name": FIRST_USE}
    if importlib.util.find_spec("transformers"):
        codes["packages"] = PACKAGES
    code = "import os\n" + START + NOT_LOADED + INSPECTED + NOT_LOADED + FORK.format(codes=codes)
    subprocess.run([sys.executable, "-c", code], check=True)


def test_packages_that_are_absent_or_imported_are_left_alone():
    before = list(sys.meta_path)
    with DeferredPackages(("numpy", "no_such_package")):
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
