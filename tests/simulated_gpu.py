"""A simulated GPU for machines without one: values are computed on the CPU, under the rules of a GPU.

torch's own `FakeTensorMode` has no values, and without a driver no backward pass. Here a tensor "on the GPU" holds a
tensor of the CPU. An operation that mixes devices as CUDA does not allow raises an error, and operations for which the
host waits for a GPU are recorded: copies that are not `non_blocking`, numbers that Python reads, and operations whose
result has a size that depends on values. An error is also an operation without a kernel for CUDA, a generator of the
CPU that draws numbers on the GPU, autocast of the CPU around work on the GPU, and a GPU other than the one of the
simulation, which is the second of two with `simulated_gpu(1)`.

What it cannot show: the rounding of the kernels of a GPU and their times; memory; the order of work on several streams,
so that a number which is read before its copy has ended looks right; whether memory is pinned, without which a copy to
the GPU with `non_blocking` waits, too; `torch.compile`, CUDA graphs and NCCL; waits inside of kernels other than those
of `WAITS`; kernels and dtypes that Apple GPUs lack, except float64; and all but the matrix products of autocast.
"""

import contextlib
import traceback
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, Self
from unittest.mock import patch

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.grad_mode import inference_mode
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, return_and_correct_aliasing
from torch.utils._pytree import tree_leaves, tree_map_only

GPU, STAND_IN = torch.device("cuda", 0), torch.device("meta", 0)  # in C++ the tensors are on the latter
APPLE_GPU = torch.device("mps", 0)
COPIES = {"_to_copy", "copy", "_foreach_copy"}
INDEXING = {"index", "index_put", "_index_put_impl", "_unsafe_index"}
NUMBERS = {"_local_scalar_dense", "is_nonzero", "equal"}  # whose result is a number of Python
WAITS = {*NUMBERS, "nonzero", "masked_select", "_unique2", "unique_dim", "unique_consecutive", "bincount", "_ctc_loss"}
IN_LOWER_PRECISION = {  # of the functions with autocast, those that this project calls
    F.linear, torch.matmul, torch.mm, torch.bmm, torch.addmm, torch.baddbmm, torch.einsum, F.conv1d, F.conv2d,
    F.scaled_dot_product_attention, Tensor.matmul, Tensor.mm, Tensor.bmm, Tensor.__matmul__, Tensor.__rmatmul__,
}
CAPTURE_CHECK = next(  # of an optimizer, which reads a CUDA stream; the second name is of torch 2.10
    name for name in ("_accelerator_graph_capture_health_check", "_cuda_graph_capture_health_check")
    if hasattr(torch.optim.Optimizer, name))
NO_SCALARS = {"cat", "stack", "gather", "index_select", "scatter", "scatter_add", "embedding", "mm", "bmm"}


class OnGpu(Tensor):
    """A tensor on the simulated device."""

    __torch_function__ = torch._C._disabled_torch_function_impl
    device, is_cuda, is_cpu, is_meta = GPU, True, False, False

    @staticmethod
    def __new__(cls, values: Tensor, requires_grad: bool = False) -> Self:
        layout = {"strides": values.stride(), "storage_offset": values.storage_offset(), "dtype": values.dtype}
        return Tensor._make_wrapper_subclass(cls, values.shape, **layout, device=STAND_IN, requires_grad=requires_grad)

    def __init__(self, values: Tensor, requires_grad: bool = False) -> None:
        self.values = values

    def __tensor_flatten__(self) -> tuple[list[str], None]:  # `nn.Module.to` swaps the tensors of such a class
        return ["values"], None

    def __repr__(self, **options: Any) -> str:
        return f"OnGpu({self.values})"

    def __deepcopy__(self, memo: dict) -> Self:
        if id(self) not in memo:
            memo[id(self)] = self.detach().clone().requires_grad_(self.requires_grad)
        return memo[id(self)]

    def __reduce_ex__(self, protocol: int) -> Any:
        return self.detach().values.__reduce_ex__(protocol)

    def numpy(self, *args: Any, **options: Any) -> None:
        raise TypeError("can't convert cuda:0 device type tensor to numpy")

    __array__ = numpy

    @classmethod
    def __torch_dispatch__(cls, operator: Any, types: Any, args: tuple = (), options: dict | None = None) -> Any:
        raise RuntimeError(f"{operator} outside of simulated_gpu()")


class Operators(TorchDispatchMode):
    """Runs operators on the values; `waits` are those for which the host waits, with the line of the caller."""

    def __init__(self) -> None:
        super().__init__()
        self.waits: list[str] = []

    def wait(self, operator: Any) -> None:
        lines = [f"{frame.filename}:{frame.lineno}" for frame in traceback.extract_stack() if "/vit/" in frame.filename]
        self.waits.append(f"{operator} at {lines[-1] if lines else 'a line outside of vit'}")

    def __torch_dispatch__(self, operator: Any, types: Any, args: tuple = (), options: dict | None = None) -> Any:
        options = options or {}
        name = operator._schema.name.removeprefix("aten::").rstrip("_")
        tensors = [each for each in tree_leaves((args, options)) if isinstance(each, Tensor)]
        there = [each for each in tensors if isinstance(each, OnGpu)]
        here = [each for each in tensors if not isinstance(each, OnGpu)]
        to_gpu = options.get("device") == STAND_IN
        if not there and not to_gpu:
            return operator(*args, **options)
        if name in COPIES:
            crosses = here if to_gpu or name != "_to_copy" else options.get("device") is not None
            if crosses and not (options.get("non_blocking") or name != "_to_copy" and args[2:3] == (True,)):
                self.wait(operator)
        elif there and here:
            self.check_mixed(operator, name, args, here)
        check_kernel(operator, tree_leaves((args, options)))
        if there and (name in WAITS or name == "repeat_interleave" and options.get("output_size") is None):
            self.wait(operator)
        if name in INDEXING and any(getattr(each, "dtype", None) == torch.bool for each in args[1]):
            self.wait(operator)
        on_cpu = {"device": torch.device("cpu")} if to_gpu else {}
        found = operator(*tree_map_only(OnGpu, lambda each: each.values, args),
                         **tree_map_only(OnGpu, lambda each: each.values, options) | on_cpu)
        if name in NUMBERS or name == "_to_copy" and not to_gpu and options.get("device") is not None:
            return found
        if operator._schema.is_mutable and args and type(args[0]) is Tensor:
            return args[0]
        if OnGpu.device == APPLE_GPU and any(getattr(x, "dtype", None) == torch.float64 for x in tree_leaves(found)):
            raise TypeError(f"{operator}: the MPS framework doesn't support float64")
        found = tree_map_only(Tensor, OnGpu, found)
        return return_and_correct_aliasing(operator, args, options, found) if there and name != "_to_copy" else found

    def check_mixed(self, operator: Any, name: str, args: tuple, here: list[Tensor]) -> None:
        """Raise an error where CUDA does: only scalars, and indices of tensors on the GPU, may be on the CPU."""
        written = [each for each in args[2:3] if type(each) is Tensor and each.ndim]  # values of index_put on the CPU
        if name in INDEXING and isinstance(args[0], OnGpu) and not written:
            self.wait(operator)
        elif name in {*INDEXING, *NO_SCALARS} or any(each.ndim for each in here):
            shapes = ", ".join(str(tuple(each.shape)) for each in here)
            raise RuntimeError(f"{operator}: tensors on {OnGpu.device} and, of shape {shapes}, on the CPU")


def check_kernel(operator: Any, values: list[Any]) -> None:
    """Raise an error where the operator cannot run on the GPU, or would not run as the program expects."""
    if not torch._C._dispatch_has_computed_kernel_for_dispatch_key(operator.name(), "CUDA"):
        raise NotImplementedError(f"{operator} has no kernel for CUDA")
    if any(isinstance(each, torch.Generator) for each in values):
        raise RuntimeError(f"{operator}: expected a {OnGpu.device.type} generator, but found one of the CPU")
    if torch.is_autocast_enabled("cpu"):
        raise RuntimeError(f"{operator} runs on {OnGpu.device} within autocast of the CPU, which has no effect on it")


class Functions(TorchFunctionMode):
    """Replaces the device in calls, and functions that torch computes without its operators."""

    def __torch_function__(self, function: Any, types: Any, args: tuple = (), options: dict | None = None) -> Any:
        options = dict(options or {})
        if function is Tensor.cuda:
            return args[0].to(STAND_IN)
        if function is Tensor.pin_memory:
            return args[0].clone()
        if function is Tensor.tolist and isinstance(args[0], OnGpu):
            return args[0].cpu().tolist()
        if function in IN_LOWER_PRECISION and torch.is_autocast_enabled(OnGpu.device.type):
            args, options = tree_map_only(OnGpu, lowered, (args, options))
        if function is F.scaled_dot_product_attention and isinstance(args[0], OnGpu):
            return attention(*args, **options)
        if function is Tensor.to:
            args = (args[0], *(stand_in(each) for each in args[1:]))
        if "device" in options:
            options["device"] = stand_in(options["device"])
        if options.get("device") == STAND_IN and function in (torch.tensor, torch.as_tensor):
            made = function(*args, **{key: value for key, value in options.items() if key != "device"})
            return made.to(STAND_IN)
        if function is Tensor.new_tensor and isinstance(args[0], OnGpu):
            return torch.tensor(*args[1:], dtype=options.get("dtype", args[0].dtype)).to(STAND_IN)
        return function(*args, **options)


def stand_in(device: Any) -> Any:
    """The device by which C++ knows the simulated one; any other device or value unchanged."""
    if isinstance(device, str) and device.startswith(OnGpu.device.type):
        device = torch.device(device)
    if not isinstance(device, torch.device) or device.type != OnGpu.device.type:
        return device
    index = torch.cuda.current_device() if device.index is None and OnGpu.is_cuda else device.index or 0
    if index != OnGpu.device.index:
        raise RuntimeError(f"the program uses {device.type}:{index}, but the simulated device is {OnGpu.device}")
    return STAND_IN


def lowered(tensor: OnGpu) -> Tensor:
    """The tensor in the dtype of autocast."""
    lower = torch.get_autocast_dtype(OnGpu.device.type)
    return tensor.to(lower) if tensor.dtype == torch.float32 else tensor


def attention(query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, dropout_p: float = 0.0,
              is_causal: bool = False) -> Tensor:
    """`scaled_dot_product_attention`, whose kernels torch selects by the device"""
    scores = query @ key.transpose(-2, -1) * query.shape[-1] ** -0.5
    if is_causal:
        attn_mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=STAND_IN).tril()
    if attn_mask is not None:
        scores = scores.masked_fill(~attn_mask, -torch.inf) if attn_mask.dtype == torch.bool else scores + attn_mask
    return F.dropout(scores.softmax(-1).nan_to_num(), dropout_p) @ value


class Event:
    """An event of a device that has always finished its work."""

    def __init__(self, *args: Any, **options: Any) -> None: ...

    def record(self, *args: Any) -> None: ...

    def synchronize(self) -> None: ...


def enter(mode: inference_mode) -> None:
    """Inference tensors are not possible for the class: without gradients instead."""
    mode.before = torch.is_grad_enabled()
    torch.set_grad_enabled(not mode.mode and mode.before)


@contextlib.contextmanager
def simulated_gpu(index: int = 0) -> Iterator[list[str]]:
    """The context in which this process has `index + 1` GPUs, of which it may use the last one only. The first one is
    the current device. Returns the list of operations for which the host waits.
    """
    current = [0]
    changes = {
        "torch.cuda.is_available": lambda: True, "torch.cuda.device_count": lambda: index + 1,
        "torch.cuda.current_device": lambda: current[0],
        "torch.cuda.set_device": lambda device: current.__setitem__(0, torch.device(device).index or 0),
        "torch.cuda.synchronize": lambda device=None: None,
        "torch.cuda.get_rng_state": lambda device=None: torch.get_rng_state(),  # not separate from that of the CPU
        "torch.cuda.set_rng_state": lambda state, device=None: None,
        "torch.accelerator.current_accelerator": lambda check_available=False: torch.device("cuda"),
        "torch.cuda.get_device_name": lambda device=None: "simulated", "torch.cuda.empty_cache": lambda: None,
        "torch.cuda.get_device_capability": lambda device=None: (9, 0), "torch.cuda._lazy_init": lambda: None,
        "torch.cuda.get_device_properties": lambda device=None: SimpleNamespace(
            name="simulated", total_memory=2**36, major=9, minor=0),
        "torch.Event": Event, "torch.Tensor.record_stream": lambda *args: None,
        f"torch.optim.Optimizer.{CAPTURE_CHECK}": lambda optimizer: None,
    }
    with patch.object(OnGpu, "device", torch.device("cuda", index)), simulated(changes) as waits:
        yield waits


@contextlib.contextmanager
def simulated_apple_gpu() -> Iterator[list[str]]:
    """As `simulated_gpu`, with an Apple GPU, which has no float64."""
    with patch.multiple(OnGpu, device=APPLE_GPU, is_cuda=False), \
            simulated({"torch.mps.synchronize": lambda: None, "torch.Event": Event}) as waits:
        yield waits


@contextlib.contextmanager
def simulated(changes: dict[str, Any]) -> Iterator[list[str]]:
    """The context of a simulated device; `changes` are the functions of torch that are replaced."""
    operators = Operators()
    with contextlib.ExitStack() as stack:
        for name, replacement in changes.items():
            stack.enter_context(patch(name, replacement))
        stack.enter_context(patch.multiple(inference_mode, __enter__=enter,
                                           __exit__=lambda mode, *error: torch.set_grad_enabled(mode.before)))
        torch.__future__.set_swap_module_params_on_conversion(True)
        stack.callback(torch.__future__.set_swap_module_params_on_conversion, False)
        stack.enter_context(Functions())
        stack.enter_context(operators)
        yield operators.waits
