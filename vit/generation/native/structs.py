"""The structs of `decoder.cpp`."""

import ctypes
from ctypes import POINTER, c_double, c_int64, c_void_p

import torch.nn.functional as F

from vit.nn.activations import quick_gelu

ACTIVATIONS = (F.relu, F.gelu, F.silu, quick_gelu)  # in the order of `activate`


class Linear(ctypes.Structure):
    _fields_ = [("weight", c_void_p), ("bias", c_void_p), ("in_features", c_int64), ("out_features", c_int64)]


class Norm(ctypes.Structure):
    _fields_ = [("weight", c_void_p), ("bias", c_void_p), ("eps", c_double)]


class Layer(ctypes.Structure):
    _fields_ = [(name, Linear) for name in ("qkv", "proj", "q", "cross_proj", "fc1", "fc2")] + [
        (name, Norm) for name in ("norm1", "cross_norm", "norm2")]


class Decoder(ctypes.Structure):
    _fields_ = [("layers", POINTER(Layer)), ("norm", Norm), ("head", Linear)] + [
        (name, c_int64) for name in ("depth", "dim", "heads", "head_dim", "hidden", "activation", "gated", "pre_norm")]


class Cache(ctypes.Structure):
    _fields_ = [(name, c_void_p) for name in ("keys", "values", "memory_keys", "memory_values", "memory_mask")] + [
        (name, c_int64) for name in ("rows", "capacity", "length", "memory", "memory_capacity")]


class Step(ctypes.Structure):
    _fields_ = [(name, c_void_p) for name in ("x", "logits", "mask", "cos", "sin", "pairs")] + [("beams", c_int64)]
