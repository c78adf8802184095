"""The compiled decoding step: builds `decoder.cpp` with the C++ compiler of the machine and loads it."""

import ctypes
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

SOURCE = Path(__file__).with_name("decoder.cpp")
COMPILERS = ("c++", "g++", "clang++")
FLAGS = ("-std=c++17", "-O2", "-march=native", "-fno-math-errno", "-shared", "-fPIC")


class BuildError(ValueError):
    """The compiled decoding step cannot be built on this machine, or its library cannot be loaded."""


@cache
def load_library() -> ctypes.CDLL:
    """The library of `decoder.cpp`, built once per processor and compiler and saved in the cache folder of the user.

    Raises:
        BuildError: there is no C++ compiler, it fails, or the library cannot be saved or loaded.
    """
    compiler = next(filter(None, map(shutil.which, COMPILERS)), None)
    if compiler is None:
        raise BuildError(f"the compiled decoding step needs a C++ compiler and found none of {', '.join(COMPILERS)}; "
                         "install one")
    version = subprocess.run([compiler, "--version"], capture_output=True, text=True, check=False).stdout
    key = "\0".join([SOURCE.read_text(), compiler, version, *FLAGS, platform.machine(), processor()])
    path = cache_folder() / f"decoder-{hashlib.sha256(key.encode()).hexdigest()[:24]}.so"
    if not path.exists():
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            build(compiler, path)
        except OSError as error:
            raise BuildError(f"the compiled decoding step cannot be saved in {path.parent}: {error.strerror}; set "
                             "XDG_CACHE_HOME to a folder that can be written to") from None
    try:
        library = ctypes.CDLL(str(path))
    except OSError as error:
        raise BuildError(f"{path} cannot be loaded: {error}; delete it, or set XDG_CACHE_HOME to a folder from which "
                         "programs may be executed") from None
    library.panel.restype = ctypes.c_int64
    library.advance.argtypes = [ctypes.c_void_p] * 3 + [ctypes.c_int64] * 2
    library.advance.restype = None
    return library


def build(compiler: str, path: Path) -> None:
    """Compile the source; the library appears at once, so that processes that start together do not disturb each other.

    Raises:
        BuildError: the compiler fails.
    """
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        built = Path(folder) / path.name
        done = subprocess.run([compiler, *FLAGS, "-o", str(built), str(SOURCE)], capture_output=True, text=True,
                              check=False)
        if done.returncode:
            error = next((line for line in done.stderr.splitlines() if "error" in line), done.stderr.strip())
            raise BuildError(f"{compiler} cannot compile {SOURCE.name}: {error}")
        os.replace(built, path)


def cache_folder() -> Path:
    """The folder of this user for libraries: `vit` in XDG_CACHE_HOME or ~/.cache."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "vit"


def processor() -> str:
    """Model and instructions of the processor, on which the code of `-march=native` depends."""
    try:
        lines = Path("/proc/cpuinfo").read_text().split("\n\n")[0].splitlines()
    except OSError:
        return platform.processor()
    return "\n".join(line for line in lines if line.startswith(("model name", "flags", "Features", "CPU")))
