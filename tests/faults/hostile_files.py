"""Untrusted files: none runs code, opens a connection, exhausts the memory, hangs, or changes a file outside its
folder; each is an error of one sentence.

Each hostile file is opened in every suitable way, in a fork whose audit hook detects programs and sockets.
"""

import contextlib
import gzip
import io
import json
import os
import pickle
import resource
import shutil
import struct
import sys
import time
import warnings
import zipfile
import zlib
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import numpy as np
import torch
import yaml
from safetensors.torch import save_file

import vit
from tests.faults.bundles import network
from tests.faults.promise import Case, Promise
from tests.forking import forks
from vit.bundle import CONFIG, WEIGHTS, save_bundle
from vit.data import Preprocessing
from vit.training.checkpointing.checkpoint_io import AtomicCheckpointIO

MARKER = "marker"
MEMORY, SECONDS = 1 << 30, 10
HERE = "tests.faults.hostile_files"
FORBIDDEN = ("os.system", "os.exec", "os.posix_spawn", "os.spawn", "subprocess.Popen", "os.fork", "socket.connect",
             "socket.bind", "socket.getaddrinfo", "webbrowser.open")
TOUCH = f"touch {MARKER}"
CALL = {"_target_": "os.mkdir", "path": MARKER}


# --- hostile files: name → function that creates it


class Calls:
    """An object that is pickled as a call."""

    def __init__(self, function: Callable, *arguments: object):
        self.call = function, arguments

    def __reduce__(self) -> tuple:
        return self.call


def raw_pickle(path: Path, value: object, protocol: int = 2) -> None:
    path.write_bytes(pickle.dumps(value, protocol))


def torch_file(path: Path, value: object, old: bool = False) -> None:
    torch.save(value, path, _use_new_zipfile_serialization=not old)


def nested_load(path: Path) -> None:
    inner = io.BytesIO()
    torch.save(Calls(os.system, TOUCH), inner)
    torch_file(path, {"state_dict": Calls(torch.storage._load_from_bytes, inner.getvalue())})


def legacy_tar(path: Path) -> None:
    import tarfile

    with tarfile.open(path, "w") as archive:
        for name in ("sys_info", "pickle", "storages", "tensors", "../../" + MARKER):
            data = pickle.dumps(Calls(os.system, TOUCH), 2)
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))


def zip_of(path: Path, members: dict[str, bytes], packed: bool = False) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED if packed else zipfile.ZIP_STORED) as archive:
        for name, data in members.items():
            archive.writestr(name, data)


def npy(shape: tuple, data: bytes = b"", descr: str = "<f4") -> bytes:
    header = f"{{'descr': {descr!r}, 'fortran_order': False, 'shape': {shape}, }}".ljust(117).encode() + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + data


def npz_bomb(path: Path) -> None:
    """1.6 GB of zeros in 1.6 MB."""
    with (zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive,
          archive.open("a.npy", "w", force_zip64=True) as to):
        to.write(npy((24 << 24,)))
        for _ in range(24):
            to.write(bytes(64 << 20))


def torch_bomb(path: Path) -> None:
    """A PyTorch file with a compressed record of 2 GB."""
    whole = io.BytesIO()
    torch.save({"a": torch.zeros(4)}, whole)
    with zipfile.ZipFile(whole) as archive, zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as to:
        for member in archive.infolist():
            if member.filename.endswith("data/0"):
                with to.open(member.filename, "w", force_zip64=True) as stream:
                    for _ in range(32):
                        stream.write(bytes(64 << 20))
            else:
                to.writestr(member.filename, archive.read(member))


def undeclared(path: Path, members: dict[str, bytes], name: str, method: int = zipfile.ZIP_DEFLATED) -> None:
    """A zip file with a member of 1.5 GB whose declared size is 1000 bytes."""
    with zipfile.ZipFile(path, "w", method) as archive:
        for each, data in members.items():
            archive.writestr(each, data)
        with archive.open(name, "w", force_zip64=True) as stream:
            for _ in range(24):
                stream.write(bytes(64 << 20))
        archive.getinfo(name).file_size = 1000


def large_tile(path: Path) -> None:
    """A TIFF of 16x16 pixels in a tile of 1 GB."""
    packer = zlib.compressobj(9)
    data = b"".join(packer.compress(bytes(1 << 24)) for _ in range(64)) + packer.flush()
    tags = {256: 16, 257: 16, 258: 8, 259: 8, 262: 1, 277: 1, 322: 1 << 15, 323: 1 << 15, 324: 134, 325: len(data)}
    entries = b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in tags.items())
    path.write_bytes(b"II*\0" + struct.pack("<IH", 8, len(tags)) + entries + bytes(4) + data)


def parquet_bomb(path: Path) -> None:
    """A table of 2 GB whose only image is stored once."""
    import pyarrow
    from pyarrow import parquet

    once = pyarrow.DictionaryArray.from_arrays(np.zeros(2000, np.int32), pyarrow.array([bytes(1 << 20)]))
    parquet.write_table(pyarrow.table({"image": once, "label": [0, 1] * 1000}), path, store_schema=False,
                        dictionary_pagesize_limit=1 << 24)


def codec_bomb(path: Path) -> None:
    value: object = "x" * 1000
    for _ in range(24):
        value = Calls(__import__("_codecs").encode, value, "hex")
    torch_file(path, {"a": value})


def raw_codec_bomb(call: bytes) -> Callable[[Path], None]:
    """A pickle of opcodes that doubles bytes 24 times; `call` has the function and bytes below it on the stack."""

    def write(path: Path) -> None:
        function = b"c_codecs\nencode\nq\xff"
        text = b"X" + struct.pack("<I", 1000) + b"x" * 1000
        first = function + text + LATIN1 + b"\x86R"
        zip_of(path, {"x/data.pkl": b"\x80\x02" + function * 24 + first + call * 24 + b".", "x/version": b"3\n"})

    return write


HEX, LATIN1 = b"X\x03\x00\x00\x00hex", b"X\x06\x00\x00\x00latin1"


def safetensors_file(path: Path, header: object, data: bytes = b"", length: int | None = None) -> None:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text) if length is None else length) + text + data)


def entry(shape: list, offsets: list, dtype: str = "F32") -> dict:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


def expanded(path: Path) -> None:
    torch_file(path, {"a": torch.zeros(1).expand(1 << 20, 1 << 12)})


def recursive(path: Path) -> None:
    value: dict = {}
    value["state_dict"] = value
    torch_file(path, value)


def deep(path: Path, depth: int = 1_000_000) -> None:
    """A pickle of nested lists."""
    inner = b"\x80\x02" + b"]" * depth + b"a" * (depth - 1) + b"."
    zip_of(path, {"archive/data.pkl": inner, "archive/version": b"3\n", "archive/byteorder": b"little"})


def fifo(path: Path) -> None:
    os.mkfifo(path)


WEIGHT_FILES: dict[str, Callable[[Path], None]] = {
    "os.system.pth": lambda p: torch_file(p, {"state_dict": Calls(os.system, TOUCH)}),
    "eval.pth": lambda p: torch_file(p, {"a": Calls(eval, f"__import__('os').system('{TOUCH}')")}),
    "exec.ckpt": lambda p: torch_file(p, Calls(exec, f"open('{MARKER}', 'w')")),
    "old format.pth": lambda p: torch_file(p, {"a": Calls(os.system, TOUCH)}, old=True),
    "plain pickle.bin": lambda p: raw_pickle(p, {"a": Calls(os.system, TOUCH)}),
    "protocol 5.bin": lambda p: raw_pickle(p, {"a": Calls(os.system, TOUCH)}, 5),
    "protocol 0.bin": lambda p: raw_pickle(p, Calls(os.system, TOUCH), 0),
    "pickle.safetensors": lambda p: raw_pickle(p, Calls(os.system, TOUCH)),
    "torch file.safetensors": lambda p: torch_file(p, {"a": Calls(os.system, TOUCH)}),
    "nested load.pth": nested_load,
    "legacy tar.pth": legacy_tar,
    "getattr.pth": lambda p: torch_file(p, {"a": Calls(getattr, Calls(__import__, "os"), "system")}),
    "import_module.pth": lambda p: torch_file(p, {"a": Calls(__import__, "antigravity")}),
    "path.pth": lambda p: torch_file(p, {"a": Path("x")}),
    "lightning.ckpt": lambda p: torch_file(p, {"pytorch-lightning_version": "2.6.6", "state_dict": {},
                                               "hyper_parameters": {"_instantiator": "os.system", "_class_path": "x"},
                                               "config": {"model": CALL, "data": CALL}}),
    "torchscript.pt": lambda p: zip_of(p, {"x/constants.pkl": b"", "x/code/a.py": b"import os"}),
    "objects.npz": lambda p: np.savez(p, a=np.array([Calls(os.system, TOUCH)], dtype=object)),
    "npz bomb.npz": npz_bomb,
    "torch bomb.pth": torch_bomb,
    "undeclared pickle.pth": lambda p: undeclared(p, {"x/version": b"3\n"}, "x/data.pkl"),
    "undeclared.npz": lambda p: undeclared(p, {}, "a.npy", zipfile.ZIP_LZMA),
    "codec bomb.pth": codec_bomb,
    "codec with errors.pth": raw_codec_bomb(HEX + b"X\x06\x00\x00\x00strict\x87R"),
    "codec of the memo.pth": raw_codec_bomb(HEX + b"\x86q\x01h\xffh\x01R"),
    "codec in a list.pth": raw_codec_bomb(b"q\x01h\xff](h\x01" + HEX + b"eR"),
    "set of a tensor.pth": lambda p: torch_file(p, {"a": Calls(set, torch.zeros(1).expand(1 << 26))}),
    "old set of a tensor.pth": lambda p: torch_file(p, {"a": Calls(set, torch.zeros(1).expand(1 << 26))}, old=True),
    "copy of one number.pth": lambda p: torch_file(p, {"a": Calls(
        torch._utils._rebuild_device_tensor_from_cpu_tensor, torch.zeros(1).expand(1 << 32), torch.float64, "cpu",
        False)}),
    "bytearray.pth": lambda p: torch_file(p, {"a": Calls(bytearray, 10**10)}),
    "old bytearray.pth": lambda p: torch_file(p, {"a": Calls(bytearray, 10**10)}, old=True),
    "expanded.pth": expanded,
    "recursive.pth": recursive,
    "deep.pth": deep,
    "wrong shape.npz": lambda p: zip_of(p, {"a.npy": npy((1 << 40,), bytes(64))}),
    "path traversal.npz": lambda p: zip_of(p, {f"../../{MARKER}.npy": npy((16,), bytes(64))}),
    "header of 2^64.safetensors": lambda p: safetensors_file(p, {}, length=(1 << 64) - 1),
    "header of 2^30.safetensors": lambda p: safetensors_file(p, {}, length=1 << 30),
    "header beyond the end.safetensors": lambda p: safetensors_file(p, {"a": entry([1], [0, 4])}, length=999_999),
    "shape of 2^62.safetensors": lambda p: safetensors_file(p, {"a": entry([1 << 62], [0, 4])}, bytes(4)),
    "negative shape.safetensors": lambda p: safetensors_file(p, {"a": entry([-1], [0, 4])}, bytes(4)),
    "overlap.safetensors": lambda p: safetensors_file(
        p, {"a": entry([4], [0, 16]), "b": entry([4], [8, 24])}, bytes(24)),
    "offsets beyond.safetensors": lambda p: safetensors_file(p, {"a": entry([4], [0, 1 << 50])}, bytes(16)),
    "unknown type.safetensors": lambda p: safetensors_file(p, {"a": entry([1], [0, 4], "EVIL")}, bytes(4)),
    "entry of a number.safetensors": lambda p: safetensors_file(p, {"a": 7}, bytes(4)),
    "header is a list.safetensors": lambda p: safetensors_file(p, [1, 2]),
    "deep header.safetensors": lambda p: safetensors_file(p, b'{"a":' + b"[" * 1_000_000),
    "a million keys.safetensors": lambda p: safetensors_file(
        p, {f"k{i}": entry([0], [0, 0]) for i in range(1_000_000)}),
    "a million members.pth": lambda p: zip_of(p, {f"k{i}": b"" for i in range(300_000)}),
    "index of itself.safetensors.index.json": lambda p: p.write_text(json.dumps({"weight_map": {"a": p.name}})),
    "index of passwd.safetensors.index.json": lambda p: p.write_text(json.dumps({"weight_map": {"a": "/etc/passwd"}})),
    "index above.safetensors.index.json": lambda p: p.write_text(json.dumps({"weight_map": {"a": "../x.pth"}})),
    "deep index.safetensors.index.json": lambda p: p.write_text('{"weight_map":' + "[" * 1_000_000),
    "fifo.pth": fifo,
    "fifo.safetensors": fifo,
    "zero.pth": lambda p: p.symlink_to("/dev/zero"),
    "random.safetensors": lambda p: p.symlink_to("/dev/urandom"),
    "loop.pth": lambda p: p.symlink_to(p.name),
    "empty.npz": lambda p: p.write_bytes(b""),
    "web page.pth": lambda p: p.write_text("<!DOCTYPE html><script>"),
}


def bundle(folder: Path) -> Path:
    return save_bundle(folder, network(), ("cat", "dog"), Preprocessing(size=(8, 8)), extra={"data": ["data=digits"]})


def bundle_config(change: Callable[[dict], None]) -> Callable[[Path], None]:
    """A bundle with a modified, correctly signed config.json."""

    def write(folder: Path) -> None:
        from vit.bundle.record import text_with_checksum

        bundle(folder)
        config = json.loads((folder / CONFIG).read_text())
        change(config)
        is_bundle = isinstance(config.get("vit"), dict)
        (folder / CONFIG).write_text(text_with_checksum(config) if is_bundle else json.dumps(config))

    return write


def ensemble(member: dict, members: int = 1, **changes: int) -> dict:
    """The config of an ensemble of changed members."""
    return {"kind": "ensemble", "member": member | changes, "means": [[0.5]] * members, "stds": [[0.5]] * members}


def bundle_file(name: str, write: Callable[[Path], None]) -> Callable[[Path], None]:
    """A bundle with one file replaced."""

    def replaced(folder: Path) -> None:
        bundle(folder)
        (folder / name).unlink()
        write(folder / name)

    return replaced


def recorded(*overrides: str) -> Callable[[Path], None]:
    return bundle_config(lambda c: c["vit"]["extra"].update(data=list(overrides)))


def foreign(config: object, weights: bool = True) -> Callable[[Path], None]:
    """A folder of transformers or timm with a hostile config."""

    def write(folder: Path) -> None:
        folder.mkdir()
        text = config if isinstance(config, str) else json.dumps(config)
        (folder / CONFIG).write_text(text)
        if weights:
            save_file({"a": torch.zeros(4)}, folder / WEIGHTS)

    return write


MODELS: dict[str, Callable[[Path], None]] = {
    "recorded os.mkdir": recorded("data=digits", "data._target_=os.mkdir", f"+data.path={MARKER}"),
    "recorded os.system": recorded("data._target_=os.system", f"+data.command='{TOUCH}'"),
    "recorded socket": recorded("data._target_=urllib.request.urlopen", "+data.url=http://127.0.0.1:9/"),
    "recorded partial": recorded("data._target_=functools.partial", "+data.func={_target_: os.getcwd}"),
    "recorded search path": recorded("hydra.searchpath=[file:///tmp]", "data=evil"),
    "recorded recipe": recorded(f"+recipe.augment.x={{_target_: os.mkdir, path: {MARKER}}}"),
    "recorded module": recorded("data._target_=antigravity.fly"),
    "recorded traversal": recorded("experiment=[../../../../tmp/evil]"),
    "recorded environment": recorded("data=hub", "data.repo='ann/${oc.env:HOME}'"),
    "recorded text": bundle_config(lambda c: c["vit"]["extra"].update(data="data._target_=os.getcwd")),
    "recorded FIFO as a set": recorded("data=folder", "data.root=/dev/zero"),
    "kind of a program": bundle_config(lambda c: c["vit"]["model"].update(kind="os.system")),
    "target in the model": bundle_config(lambda c: c["vit"]["model"].update(CALL)),
    "target in the preprocessing": bundle_config(lambda c: c["vit"]["preprocessing"].update(CALL)),
    "depth of 10^9": bundle_config(lambda c: c["vit"]["model"].update(depth=10**9)),
    "depth of 10^5": bundle_config(lambda c: c["vit"]["model"].update(depth=10**5)),
    "depth of 10^9 in members": bundle_config(
        lambda c: c["vit"].update(model=ensemble(c["vit"]["model"], depth=10**9))),
    "10^5 members": bundle_config(lambda c: c["vit"].update(model=ensemble(c["vit"]["model"], 10**5))),
    "dim of 10^9": bundle_config(lambda c: c["vit"]["model"].update(dim=10**9)),
    "dim of 30,000": bundle_config(lambda c: c["vit"]["model"].update(dim=30_000)),
    "image of 10^6": bundle_config(lambda c: c["vit"]["model"].update(image_size=[10**6, 10**6])),
    "sincos of 10^5": bundle_config(lambda c: c["vit"]["model"].update(image_size=[10**5, 10**5], positions="sincos")),
    "a million classes": bundle_config(lambda c: (c["vit"]["model"].update(num_classes=10**8))),
    "registers of 10^9": bundle_config(lambda c: c["vit"]["model"].update(registers=10**9)),
    "tokenizer of lists": bundle_config(lambda c: c["vit"].update(tokenizers={"source": [[]] * 5})),
    "classes are numbers": bundle_config(lambda c: c["vit"].update(classes=[1, [2]])),
    "NaN": bundle_file(CONFIG, lambda p: p.write_text('{"vit": {"format": NaN}}')),
    "deep config": bundle_file(CONFIG, lambda p: p.write_text('{"vit":' + "[" * 1_000_000)),
    "config of 10^6 lists": bundle_file(CONFIG, lambda p: p.write_text('{"vit":[' + "[]," * 9_000_000 + "[]]}")),
    "config is a FIFO": bundle_file(CONFIG, fifo),
    "config is /dev/zero": bundle_file(CONFIG, lambda p: p.symlink_to("/dev/zero")),
    "weights are a FIFO": bundle_file(WEIGHTS, fifo),
    "weights are /dev/zero": bundle_file(WEIGHTS, lambda p: p.symlink_to("/dev/zero")),
    "weights are a pickle": bundle_file(WEIGHTS, lambda p: raw_pickle(p, Calls(os.system, TOUCH))),
    "timm with another file": foreign({"architecture": "vit_tiny_patch16_224", "num_classes": 2, "pretrained_cfg": {},
                                       "model_args": {"checkpoint_path": "/etc/passwd", "pretrained": True}}),
    "timm with depth": foreign({"architecture": "vit_tiny_patch16_224", "num_classes": 2,
                                "model_args": {"depth": 10**9}, "pretrained_cfg": {}}),
    "timm with depths": foreign({"architecture": "convnext_tiny", "num_classes": 2,
                                 "model_args": {"depths": [3, 3, 10**9, 3]}, "pretrained_cfg": {}}),
    "timm with a program": foreign({"architecture": "vit_tiny_patch16_224", "num_classes": 2, "pretrained_cfg": {},
                                    "model_args": {"norm_layer": "os.system", "act_layer": CALL}}),
    "remote code": foreign({"model_type": "evil", "auto_map": {"AutoModel": "evil.py--Evil"},
                            "trust_remote_code": True}),
    "transformers of numbers": foreign({"model_type": "vit", "hidden_size": "x", "num_hidden_layers": 10**9}),
    "deep foreign config": foreign("[" * 1_000_000),
    "config of nothing": foreign("null"),
}


@cache
def run_template() -> Path:
    """A started run folder without a checkpoint."""
    import tempfile

    folder = Path(tempfile.mkdtemp(prefix="vit-hostile-")) / "run"
    with contextlib.redirect_stdout(io.StringIO()):
        vit.train(["debug=true", "logger=csv", "report=false", "model.depth=1", "model.dim=16", "model.num_heads=2",
                  "recipe.epochs=2", f"run_dir={folder}"])
    (folder / "metrics.json").unlink()
    return folder


def run_config(change: Callable[[dict], None]) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        shutil.copytree(run_template(), folder)
        config = yaml.safe_load((folder / "config.yaml").read_text())
        change(config)
        (folder / "config.yaml").write_text(yaml.safe_dump(config))

    return write


def run_file(name: str, write: Callable[[Path], None]) -> Callable[[Path], None]:
    def replaced(folder: Path) -> None:
        shutil.copytree(run_template(), folder)
        path = folder / name
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
        write(path)

    return replaced


def link_out(path: Path) -> None:
    """A link to a folder outside the run folder with a file of every name that a run writes."""
    mine = Path("mine").absolute()
    path.symlink_to(mine / path.name if path.suffix else mine)


def signed_checkpoint(write: Callable[[Path], None]) -> Callable[[Path], None]:
    """A run folder with the last checkpoint replaced."""

    def written(folder: Path) -> None:
        shutil.copytree(run_template(), folder)
        shutil.rmtree(folder / "checkpoints")
        (folder / "checkpoints").mkdir()
        write(folder / "checkpoints" / "last.ckpt")

    return written


def billion_laughs() -> str:
    lines = ["a: &a [x, x]"] + [f"{b}: &{b} [{', '.join([f'*{a}'] * 9)}]" for a, b in zip("abcdefgh", "bcdefghi",
                                                                                         strict=True)]
    return "\n".join(lines)


RUNS: dict[str, Callable[[Path], None]] = {
    "data target": run_config(lambda c: c["data"].update(CALL)),
    "data target is a list": run_config(lambda c: c["data"].update(_target_=["os.system"])),
    "augmentation target": run_config(lambda c: c["recipe"]["augment"].update(x=CALL)),
    "nested augmentation target": run_config(lambda c: c["recipe"].update(
        augment={"x": {"_target_": "vit.data.PadCrop", "padding": {"a": [CALL]}}})),
    "partial": run_config(lambda c: c["recipe"].update(augment={"x": {**CALL, "_partial_": True}})),
    "interpolated target": run_config(lambda c: c["recipe"].update(
        augment={"x": f"${{oc.create:'{{_target_: os.mkdir, path: {MARKER}}}'}}"})),
    "logger target": run_config(lambda c: c.update(logger={"x": CALL})),
    "logger target in a list": run_config(lambda c: c.update(logger={"x": {
        "_target_": "pytorch_lightning.loggers.TensorBoardLogger", "prefix": [CALL]}})),
    "logger elsewhere": run_config(lambda c: c.update(logger={"x": {
        "_target_": "pytorch_lightning.loggers.CSVLogger", "save_dir": "../mine"}})),
    "logger in the current folder": run_config(lambda c: c.update(logger={"x": {
        "_target_": "pytorch_lightning.loggers.TensorBoardLogger", "save_dir": "mine"}})),
    "cache elsewhere": run_config(lambda c: c["data"].update(cache="disk", cache_dir="mine")),
    "control characters": run_config(lambda c: c["data"].update(name="\x1b[31m${")),
    "logger socket": run_config(lambda c: c.update(logger={"x": {
        "_target_": "pytorch_lightning.loggers.MLFlowLogger", "tracking_uri": "http://127.0.0.1:9"}})),
    "callback target": run_config(lambda c: c["callbacks"].update(x=CALL)),
    "strategy target": run_config(lambda c: c["strategy"].update(CALL)),
    "target at depth 5": run_config(lambda c: c["model"].update(a={"b": {"c": {"d": {"e": CALL}}}})),
    "job of a module": run_config(lambda c: c["task"].update(name="os")),
    "python tag": run_file("config.yaml", lambda p: p.write_text(f"a: !!python/object/apply:os.mkdir [{MARKER}]")),
    "billion laughs": run_file("config.yaml", lambda p: p.write_text(billion_laughs())),
    "deep yaml": run_file("config.yaml", lambda p: p.write_text("[" * 500_000)),
    "config is a FIFO": run_file("config.yaml", fifo),
    "config is a list": run_file("config.yaml", lambda p: p.write_text("- 1")),
    "config is binary": run_file("config.yaml", lambda p: p.write_bytes(bytes(range(256)))),
    "linked checkpoints": run_file("checkpoints", link_out),
    "linked log": run_file("log.txt", link_out),
    "linked lock": run_file(".lock", link_out),
    "linked metrics": run_file("metrics.csv", link_out),
    "linked model": run_file("model", link_out),
    "linked splits": run_file("splits", link_out),
    "log is a FIFO": run_file("log.txt", fifo),
    "checkpoint calls a program": signed_checkpoint(lambda p: torch_file(p, {"state_dict": Calls(os.system, TOUCH)})),
    "checkpoint calls bytearray": signed_checkpoint(lambda p: AtomicCheckpointIO().save_checkpoint(
        {"a": Calls(bytearray, 10**10), "global_step": 1}, p)),
    "checkpoint is a FIFO": signed_checkpoint(fifo),
    "checkpoint is a bomb": signed_checkpoint(torch_bomb),
}


def gzip_bomb(path: Path) -> None:
    """1.6 GB of zeros in 1.6 MB."""
    with gzip.open(path, "wb", compresslevel=9) as stream:
        stream.write(b"\0\0\x08\x03" + struct.pack(">3I", 2_000_000, 28, 28))
        for _ in range(24):
            stream.write(bytes(64 << 20))


def mnist(write: Callable[[Path], None]) -> Callable[[Path], None]:
    def files(folder: Path) -> None:
        folder.mkdir()
        for part in ("train", "t10k"):
            for kind in ("images-idx3", "labels-idx1"):
                write(folder / f"{part}-{kind}-ubyte.gz")

    return files


def cifar(write: Callable[[Path], None]) -> Callable[[Path], None]:
    def files(folder: Path) -> None:
        folder.mkdir()
        for name in (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"):
            write(folder / name)

    return files


def photos(write: Callable[[Path], None]) -> Callable[[Path], None]:
    def files(folder: Path) -> None:
        for name in ("cat", "dog"):
            (folder / name).mkdir(parents=True)
            for i in range(3):
                write(folder / name / f"{i}.png")

    return files


def one(name: str, write: Callable[[Path], None]) -> Callable[[Path], None]:
    def files(folder: Path) -> None:
        folder.mkdir()
        write(folder / name)

    return files


SETS: dict[str, tuple[Callable[[Path], None], list[str]]] = {  # → the files, and the overrides that read them
    "gzip bomb": (mnist(gzip_bomb), ["data=mnist", "data.root={}"]),
    "IDX of 2^128": (mnist(lambda p: p.write_bytes(gzip.compress(b"\0\0\x08\x04" + b"\xff" * 16))),
                     ["data=mnist", "data.root={}"]),
    "IDX is a FIFO": (mnist(fifo), ["data=mnist", "data.root={}"]),
    "pickle in CIFAR": (cifar(lambda p: raw_pickle(p, {b"data": Calls(os.system, TOUCH)})),
                        ["data=cifar10", "data.root={}"]),
    "CIFAR without data": (cifar(lambda p: raw_pickle(p, {b"labels": [1]})), ["data=cifar10", "data.root={}"]),
    "CIFAR is a FIFO": (cifar(fifo), ["data=cifar10", "data.root={}"]),
    "FIFOs as photos": (photos(fifo), ["data=folder", "data.root={}"]),
    "devices as photos": (photos(lambda p: p.symlink_to("/dev/zero")), ["data=folder", "data.root={}"]),
    "link loops as photos": (photos(lambda p: p.symlink_to(p.name)), ["data=folder", "data.root={}"]),
    "text gzip bomb": (one("train.tsv.gz", gzip_bomb), ["data=corpus", "data.root={}"]),
    "table is a FIFO": (one("t.csv", fifo), ["data=table", "data.path={}/t.csv"]),
    "table is /dev/zero": (one("t.csv", lambda p: p.symlink_to("/dev/zero")), ["data=table", "data.path={}/t.csv"]),
    "deep JSON table": (one("t.json", lambda p: p.write_text("[" * 1_000_000)), ["data=table", "data.path={}/t.json"]),
    "undeclared photo": (one("t.zip", lambda p: undeclared(p, {}, "cat/a.png")), ["data=folder", "data.root={}/t.zip"]),
    "undeclared photo, LZMA": (one("t.zip", lambda p: undeclared(p, {}, "cat/a.png", zipfile.ZIP_LZMA)),
                               ["data=folder", "data.root={}/t.zip"]),
    "undeclared sheet": (one("t.xlsx", lambda p: undeclared(p, {}, "xl/workbook.xml")),
                         ["data=table", "data.path={}/t.xlsx"]),
    "tile of 1 GB": (photos(large_tile), ["data=folder", "data.root={}"]),
    "Parquet of one value": (one("t.parquet", parquet_bomb), ["data=table", "data.path={}/t.parquet"]),
    "invalid Parquet": (one("t.parquet", lambda p: p.write_bytes(b"PAR1" + bytes(90) + b"PAR1")),
                             ["data=table", "data.path={}/t.parquet"]),
}


# --- ways to open them


def load(path: str) -> None:
    vit.load(path)


def import_weights(path: str) -> None:
    vit.import_weights(path)


def convert(path: str) -> None:
    from vit.exchange.convert import convert

    convert(path, "out")


def command(*arguments: str) -> None:
    from vit.cli import main

    code = main(list(arguments))
    if code == 0:
        raise AssertionError(f"vit {' '.join(arguments)} accepted it")


def evaluate(path: str) -> None:
    command("evaluate", path)


def probe(path: str) -> None:
    command("probe", path)


def predict(path: str) -> None:
    command("predict", path, "photo.png")


def audit(*overrides: str) -> None:
    command("audit", *overrides)


def train(*overrides: str) -> None:
    command("train", *overrides, "debug=true", "logger=csv", "model=micro", "run_dir=new")


def init_from(path: str) -> None:
    train("data=digits", f"init_from='{path}'")


def resume(path: str) -> None:
    command("train", f"resume={path}")


WAYS = {name: globals()[name] for name in (
    "load", "import_weights", "convert", "evaluate", "probe", "predict", "audit", "train", "init_from", "resume")}


def open_all(path: str, ways: list[list[str]]) -> int:
    """In a fork: opens one file in every way under observation; prints failures and returns their number."""
    wrong: list[str] = []
    shutil.copytree("mine", "before")

    def watch(event: str, arguments: tuple) -> None:
        if event.startswith(FORBIDDEN):
            wrong.append(f"{event} {str(arguments)[:80]}")

    sys.addaudithook(watch)
    for way, *rest in ways:
        start, err = time.monotonic(), io.StringIO()
        try:
            with warnings.catch_warnings(), contextlib.redirect_stderr(err), contextlib.redirect_stdout(io.StringIO()):
                warnings.simplefilter("ignore")
                WAYS[way](*(rest or [path]))
        except (ValueError, OSError) as error:
            message = str(error)
        except BaseException as error:
            wrong.append(f"{way}: {type(error).__name__}: {str(error)[:200]}")
            continue
        else:
            message = err.getvalue()
            if way in ("load", "import_weights", "convert") and not message:
                wrong.append(f"{way} accepted it")
        if "\x1b" in message:
            wrong.append(f"{way} prints control characters: {message[:300]!r}")
        if "Traceback" in message or message.strip().count("\n"):
            wrong.append(f"{way} prints more than one sentence: {message[:300]}")
        if (seconds := time.monotonic() - start) > SECONDS * float(os.environ.get("VIT_SLOW", "1")):
            wrong.append(f"{way} took {seconds:.1f} s")
    if (memory := resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024) > MEMORY:
        wrong.append(f"{memory / 2**20:.0f} MB of memory")
    if os.path.lexists(MARKER):
        wrong.append("a program was run")
    if {p.name: p.read_bytes() for p in Path("mine").iterdir()} != {p.name: p.read_bytes()
                                                                   for p in Path("before").iterdir()}:
        wrong.append(f"a file outside was changed: {os.listdir('mine')}")
    print("\n".join(wrong))
    return len(wrong)


def attempt(folder: Path, write: Callable[[Path], None], name: str, ways: list[list[str]]) -> None:
    (folder / "mine").mkdir()
    for each in ("last.ckpt", "config.json", "train.tsv"):
        (folder / "mine" / each).write_text("precious")
    from PIL import Image

    Image.new("RGB", (9, 9)).save(folder / "photo.png")
    before = os.getcwd()
    os.chdir(folder)  # for relative links
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            write(folder / name)
    finally:
        os.chdir(before)
    done = forks().run(f"{HERE}:open_all", name, ways, folder=folder, seconds=len(ways) * SECONDS + 30)
    assert done.code == 0, done.output[-2000:]


QUICK = ("os.system.pth", "pickle.safetensors", "bytearray.pth", "wrong shape.npz", "recursive.pth", "fifo.pth",
         "header of 2^64.safetensors", "recorded os.mkdir", "recorded socket", "depth of 10^9", "deep config",
         "pickle in CIFAR", "FIFOs as photos")


def cases() -> Iterator[Case]:
    files = ["load", "import_weights", "convert", "init_from", "probe"]
    for name, write in WEIGHT_FILES.items():
        yield Case(name, lambda folder, n=name, w=write: attempt(folder, w, n, [[way] for way in files]),
                   quick=name in QUICK)
    for name, write in MODELS.items():
        ways = ["evaluate", "probe"] if name.startswith("recorded") else ["load", "convert", "init_from", "evaluate",
                                                                         "predict"]
        yield Case(f"model: {name}", lambda folder, w=write, ways=ways: attempt(
            folder, w, "model", [[way] for way in ways]), quick=name in QUICK)
    for name, write in RUNS.items():
        yield Case(f"run: {name}", lambda folder, w=write: attempt(folder, w, "run", [["resume"]]))
    for name, (write, overrides) in SETS.items():
        arguments = [each.format("set") for each in overrides]
        ways = [["train", *arguments]] if "corpus" in arguments[0] else [["train", *arguments], ["audit", *arguments]]
        yield Case(f"data: {name}", lambda folder, w=write, ways=ways: attempt(folder, w, "set", ways),
                   quick=name in QUICK)


PROMISE = Promise("untrusted files run no code and exhaust no resources (1 GB, 10 s, no file outside)", cases)
