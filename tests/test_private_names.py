"""The private names of torch, Lightning and Hydra that vit uses, with the reasons and the modules that define them."""

import ast
import importlib
import inspect
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
MODULE, LOADER = "torch.nn.modules.module", "torch.utils.data.dataloader"
EPOCH_LOOP, FIT_LOOP = "pytorch_lightning.loops.training_epoch_loop", "pytorch_lightning.loops.fit_loop"
SIGNALS = "pytorch_lightning.trainer.connectors.signal_connector"
FSDP = "torch.distributed.fsdp.fully_sharded_data_parallel"
CHECKPOINTING = "torch.distributed.algorithms._checkpoint.checkpoint_wrapper"

WORKERS = "a DataLoader has no public method that ends its workers"
COMPILER = "eager training imports it, which takes as long as torch; vit has placeholders for the names that are used"
CALL = "fast_call must find out whether a module call runs anything besides `forward`"
COPY = "fast_call copies a module that shares its tensors"
FUSED = "one kernel for many tensors; the public functions take one tensor"
WRAPPER = "parameter names are those of the module inside the wrapper"
ONEDNN = "no public function selects oneDNN; without the operator F.linear is used"
STEP = "callbacks act only after an optimizer step, not between accumulated batches"
PICKLE = "a pickle names it, and its arguments are checked before PyTorch calls it"
SIGNAL = "vit installs its own signal handlers, which Lightning restores at the end"

PRIVATE = {  # name -> the module that defines it, and why vit needs it
    "_apply_overrides_to_config": ("hydra._internal.config_loader_impl",
                                   "Hydra has no public function that sets the values of overrides in a config"),
    "_BatchNorm": ("torch.nn.modules.batchnorm", "the base class of all batch norms has no public name"),
    "_are_functorch_transforms_active": ("torch._C", "no public function reports that torch.func transforms a call"),
    "_C": ("torch", "it holds _are_functorch_transforms_active"),
    "_backward_hooks": (MODULE, CALL),
    "_backward_pre_hooks": (MODULE, CALL),
    "_broadcast_sigterm_tensor": (EPOCH_LOOP, "vit agrees on a stop itself, without a broadcast in each step"),
    "_buffers": (MODULE, COPY),
    "_checkpoint_wrapped_module": (CHECKPOINTING, WRAPPER),
    "_compiled_call_impl": (MODULE, CALL),
    "_current_level": ("torch.autograd.forward_ad", "no public function reports that forward-mode AD is active"),
    "_data_fetcher": (FIT_LOOP, "a resumed epoch starts in its middle, after Lightning has made the iterator"),
    "_dynamo": ("torch", COMPILER),
    "_foreach_copy_": ("torch", FUSED),
    "_foreach_lerp_": ("torch", FUSED),
    "_foreach_mul_": ("torch", FUSED),
    "_foreach_norm": ("torch", FUSED),
    "_forward_hooks": (MODULE, CALL),
    "_forward_pre_hooks": (MODULE, CALL),
    "_fsdp_wrapped_module": (FSDP, WRAPPER),
    "_has_any_global_hook": (MODULE, CALL),
    "_inductor": ("torch", "no public function starts the processes of the compiler, with the stop signals blocked"),
    "_internal": ("hydra", "Hydra has no public names for the parser of its options and its config loader"),
    "_iterator": (LOADER, WORKERS),
    "_linear_pointwise": ("torch.ops.mkldnn", ONEDNN),
    "_modules": (MODULE, COPY),
    "_on_queue_feeder_error": ("multiprocessing.queues", "an object that a queue cannot send is dropped by default"),
    "_orig_mod": ("torch._dynamo.eval_frame", WRAPPER),
    "_original_handlers": (SIGNALS, SIGNAL),
    "_parameters": (MODULE, COPY),
    "_rebuild_device_tensor_from_cpu_tensor": ("torch._utils", PICKLE),
    "_rebuild_from_type_v2": ("torch._tensor", PICKLE),
    "_rebuild_tensor": ("torch._utils", PICKLE),
    "_rebuild_tensor_v2": ("torch._utils", PICKLE),
    "_tensor": ("torch", "it holds _rebuild_from_type_v2"),
    "_remove_worker_pids": ("torch.utils.data._utils.signal_handling", WORKERS),
    "_reorder_linear_weight": ("torch.ops.mkldnn", ONEDNN),
    "_scaled_dot_product_flash_attention_for_cpu": ("torch.ops.aten", "the operator of attention on a CPU, whose FLOPs "
                                                    "torch 2.10 does not count"),
    "_scale": ("torch.amp.grad_scaler", "GradScaler.get_scale copies the scale to the host, which waits for the GPU"),
    "_should_accumulate": (EPOCH_LOOP, STEP),
    "_shutdown_workers": (LOADER, WORKERS),
    "_signal_connector": ("pytorch_lightning.trainer.trainer", SIGNAL),
    "_softmax_backward_data": ("torch", "the gradient of a softmax by oneDNN; written out, it takes more passes"),
    "_step_supports_amp_scaling": ("torch.amp.grad_scaler", "fused optimizers unscale the gradients themselves"),
    "_utils": ("torch", "it holds the names of Python 2 in pickles, and in torch.utils.data _remove_worker_pids"),
    "_version": ("torch.autograd.graph", "the guard reads all weights if something besides the optimizer changed one"),
    "_worker_pids_set": (LOADER, WORKERS),
    "_workers": (LOADER, WORKERS),
}
DOTTED = re.compile(r"[a-z]\w*(\.\w+)+")  # a module, or an attribute of one
PYTHON = {"_replace", "_exit", "_current_frames"}  # documented in spite of the underscore
NUMPY = {"_core", "_reconstruct"}  # an allowed pickle global of CIFAR's files
NOT_ATTRIBUTES = {  # strings: modules, keys, parts of names
    "_args_", "_bias", "_codecs", "_global_", "_images", "_loading", "_mask", "_partial_", "_patch", "_per_second",
    "_proj", "_sweep", "_target_", "_token", "_type",
}


def is_private(name: str) -> bool:
    return re.fullmatch(r"_[A-Za-z]\w*", name) is not None


def private_names(tree: ast.AST):
    """Private names in imports, attributes and strings."""
    for node in ast.walk(tree):
        found = []
        if isinstance(node, ast.ImportFrom):
            found = [*(node.module or "").split("."), *(alias.name for alias in node.names)]
        elif isinstance(node, ast.Import):
            found = [part for alias in node.names for part in alias.name.split(".")]
        elif isinstance(node, ast.Attribute):
            found = [node.attr]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            found = node.value.split(".") if DOTTED.fullmatch(node.value) else [node.value]
        yield from filter(is_private, found)


def own_names(tree: ast.AST):
    """Private names that the code itself defines: functions, variables, and attributes of `self`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and ast.unparse(node.value) == "self":
            yield node.attr


def test_every_private_name_is_listed():
    trees = [ast.parse(path.read_text(encoding="utf-8")) for path in (ROOT / "vit").rglob("*.py")]
    own = {name for tree in trees for name in own_names(tree)}
    used = {name for tree in trees for name in private_names(tree)} - PYTHON - NUMPY - NOT_ATTRIBUTES
    assert used - own - set(PRIVATE) == set(), "use a public name, or list the private one with its reason"
    assert set(PRIVATE) - used == set(), "these are no longer used: remove them from the list"


def test_private_names_are_found():
    code = "import torch._a\nfrom hydra._b import c\nx._d\ngetattr(x, '_e')\n"
    code += "self._f = 1\n'a._h.i'\ndef _g(): x.__init__"
    tree = ast.parse(code)
    assert set(private_names(tree)) == {"_a", "_b", "_d", "_e", "_f", "_h"}
    assert {"_f", "_g"} <= set(own_names(tree))


@pytest.mark.parametrize("name", PRIVATE)
def test_a_listed_name_exists(name):
    where, _ = PRIVATE[name]
    if where.startswith("torch.ops."):  # a namespace of operators, which is no module
        import torch

        assert hasattr(getattr(torch.ops, where.rpartition(".")[2]), name)
        return
    module = importlib.import_module(where)
    if where in ("torch", "torch._C", "hydra"):
        assert hasattr(module, name)
    else:
        assert re.search(rf"\b{name}\b", inspect.getsource(module)), f"{where} has no {name}: see what replaces it"
