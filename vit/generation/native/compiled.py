"""Generation with a compiled decoding step: one call into C++ computes the whole decoder for the next tokens."""

import ctypes
import os
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vit.generation.native import structs
from vit.generation.native.cache import CompiledCache
from vit.generation.native.library import load_library
from vit.generation.native.support import check_supported
from vit.generation.uncached import GenerationWrapper
from vit.nn import Block, SwiGLU


class Compiled(GenerationWrapper):
    """Wraps a model for generation with a compiled decoding step, `generate(Compiled(model), ...)`.

    The step computes blocks with attention by scaled dot products, layer or root mean square norms, and an MLP or
    SwiGLU, in float32 on a CPU. Scores differ from those of the model by rounding. The weights of the decoder are
    copied, so that later changes to the model have no effect.

    Raises:
        Unsupported: the decoder has other parts, or is not in float32 on a CPU.
        BuildError: there is no C++ compiler, or it fails.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__(model)
        check_supported(model)
        self.library = load_library()
        self.panel = self.library.panel()
        self.buffers: list[object] = []  # tensors and arrays that the structs point to
        rotary = model.decoder.rotary
        self.other_channels = None  # (K,) the other channel of the rotary pair of each channel
        if rotary is not None:
            self.other_channels = rotary.pairs.swap(torch.arange(rotary.head_dim)).contiguous()
        self.decoder_struct = self.describe()

    def start(self, source: Tensor, source_mask: Tensor | None = None, capacity: int = 64) -> CompiledCache:
        """source (B,S) or images (B,C,H,W), source_mask (B,S) -> the cache for `advance`, with the encoded source"""
        memory, mask = self.model.encode(source, source_mask), self.model.memory_mask(source_mask)
        mask = None if mask is None or mask.all() else mask.contiguous()
        keys_values = [block.cross_attn.memory_keys_values(memory) for block in self.model.decoder.blocks]
        keys, values = (torch.stack(each).float() for each in zip(*keys_values, strict=True))  # (layers,B,H,S,K)
        return CompiledCache(keys, values, mask, capacity, self.panel)

    def advance(self, ids: Tensor, cache: CompiledCache, beam_mask: Tensor | None = None) -> Tensor:
        """As `EncoderDecoder.advance`: the next ids (B,T) -> logits (B,1,V) of the following token; with beam_mask
        (B,T,length+T), the next id of each of T beams -> logits (B,T,V)
        """
        if beam_mask is not None:
            return self.step(ids, cache, beam_mask)
        for column in ids.split(1, dim=1):  # forced ids one after the other
            logits = self.step(column, cache)
        return logits

    def step(self, ids: Tensor, cache: CompiledCache, beam_mask: Tensor | None = None) -> Tensor:
        """ids of W beams at one position (B,W), beam_mask (B,W,length+W) -> logits (B,W,V)"""
        B, W = ids.shape
        x = self.model.target_embed(ids.reshape(-1, 1), start=cache.position).float().contiguous()  # (B*W,1,D)
        logits = x.new_empty(B, W, self.vocab_size)
        mask = None if beam_mask is None else beam_mask.contiguous()
        rotary = self.model.decoder.rotary
        cos, sin = (None, None) if rotary is None else rotary.table[:, cache.position]  # (K) each
        cache.reserve(W)
        step = structs.Step(*map(address, (x, logits, mask, cos, sin, self.other_channels)), W)
        state = structs.Cache(
            *map(address, (cache.keys, cache.values, cache.memory_keys, cache.memory_values, cache.memory_mask)),
            B, cache.capacity, cache.length, cache.memory, cache.memory_keys.shape[-1])
        self.run(step, state, B)
        cache.length += W
        cache.position += 1
        return logits

    def run(self, step: structs.Step, state: structs.Cache, B: int) -> None:
        """Compute the rows of the batch in as many threads as torch uses."""
        arguments = [ctypes.byref(each) for each in (self.decoder_struct, state, step)]
        threads = min(torch.get_num_threads(), B)
        bounds = [B * i // threads for i in range(threads + 1)]
        if threads == 1:
            self.library.advance(*arguments, *bounds)
        else:
            parts = [pool().submit(self.library.advance, *arguments, *part) for part in pairwise(bounds)]
            for part in parts:
                part.result()

    def describe(self) -> structs.Decoder:
        """The struct of the decoder, with packed weights."""
        decoder, target, head = self.model.decoder, self.model.target_embed, self.model.head
        first = decoder.blocks[0]
        layers = (structs.Layer * len(decoder.blocks))(*map(self.layer, decoder.blocks))
        self.buffers.append(layers)
        return structs.Decoder(
            layers=layers,
            norm=self.norm(decoder.norm),
            head=self.linear(target.token.weight, None) if head is None else self.linear(head.weight, head.bias),
            depth=len(layers),
            dim=target.token.embedding_dim,
            heads=first.attn.heads.num_heads,
            head_dim=first.attn.heads.head_dim,
            hidden=first.mlp.fc2.in_features,
            activation=structs.ACTIVATIONS.index(first.mlp.activation),
            gated=isinstance(first.mlp, SwiGLU),
            pre_norm=first.pre_norm,
        )

    def layer(self, block: Block) -> structs.Layer:
        """The struct of a block."""
        attn, cross_attn, mlp = block.attn, block.cross_attn, block.mlp
        layers = (attn.qkv, attn.proj, cross_attn.q, cross_attn.proj, mlp.fc1, mlp.fc2)
        return structs.Layer(*(self.linear(layer.weight, layer.bias) for layer in layers),
                             *map(self.norm, (block.norm1, block.cross_norm, block.norm2)))

    def linear(self, weight: Tensor, bias: Tensor | None) -> structs.Linear:
        """The struct of a linear layer: weight (E,D), bias (E,) or None"""
        E, D = weight.shape
        padded = F.pad(weight.detach(), (0, 0, 0, -E % self.panel))
        packed = padded.view(-1, self.panel, D).transpose(1, 2).contiguous()  # (panels,D,panel)
        return structs.Linear(self.copied(packed), self.copied(bias), D, E)

    def norm(self, norm: nn.Module) -> structs.Norm:
        """The struct of a layer norm or root mean square norm; an empty one for `nn.Identity`"""
        if not isinstance(norm, nn.LayerNorm | nn.RMSNorm):
            return structs.Norm(None, None, 0.0)
        return structs.Norm(self.copied(norm.weight), self.copied(getattr(norm, "bias", None)), norm.eps)

    def copied(self, x: Tensor | None) -> int | None:
        """The address of a copy of a tensor that stays in memory."""
        if x is None:
            return None
        self.buffers.append(x.detach().clone(memory_format=torch.contiguous_format))
        return self.buffers[-1].data_ptr()


def address(x: Tensor | None) -> int | None:
    return None if x is None else x.data_ptr()


@cache
def pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(torch.get_num_threads(), "decoder")


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=pool.cache_clear)  # a child process does not inherit the threads
