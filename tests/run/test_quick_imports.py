"""Imports of the command. A deferred module behaves as the module that it stands for, in processes of its own."""

import gc
import subprocess
import sys

import pytest

from vit.run.quick_imports import quick_imports

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
for name, use in {uses!r}.items():
    child = os.fork()
    if not child:
        exec(use + {check!r})
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0, name
"""


def test_scipy_signal_is_imported_when_it_is_used():
    inspected = "import inspect; inspect.getmodule(sys._getframe()); [inspect.getmodule(len) for _ in range(2)]\n"
    code = "import os\n" + START + NOT_LOADED + inspected + NOT_LOADED + FORK.format(uses=USES, check=CHECK)
    subprocess.run([sys.executable, "-c", code], check=True)


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
