"""The translation model of `vit.benchmarking.generation` in transformers and CTranslate2."""

import multiprocessing
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from vit.data.text.tokenizers import BOS, EOS, PAD
from vit.models import Transformer
from vit.weights.formats.marian import marian_arguments, to_marian

if TYPE_CHECKING:
    from transformers import MarianMTModel

Texts = list[list[int]]  # token ids of each text, without bos


def marian(model: Transformer) -> "MarianMTModel":
    """The model as transformers' Marian, with the same weights."""
    from transformers import MarianConfig, MarianMTModel

    theirs = MarianMTModel(MarianConfig(**marian_arguments(model.config, bos=BOS, eos=EOS, pad=PAD))).eval()
    theirs.load_state_dict(to_marian(model.state_dict()), strict=False)
    return theirs


def by_transformers(model: "MarianMTModel", beam: int, tokens: int, source: Tensor) -> Texts:
    """source (B,S) -> the ids of the best text of each row"""
    found = model.generate(
        source,
        attention_mask=torch.ones_like(source),
        num_beams=beam,
        max_new_tokens=tokens,
        min_new_tokens=tokens,
        length_penalty=1.0,
        do_sample=False,
        early_stopping="never",  # the default is a heuristic; here all generate the same number of tokens
        suppress_tokens=[PAD, BOS],
    )
    return [row[1:] for row in found.tolist()]


@contextmanager
def translating(
    theirs: "MarianMTModel", beam: int, tokens: int, device: str
) -> Iterator[Callable[[Tensor], Texts]]:
    """CTranslate2 with the same network, in a separate process that ends with the context."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    with tempfile.TemporaryDirectory() as folder:
        convert(theirs, Path(folder))
        arguments = (folder, beam, tokens, device, torch.get_num_threads(), there)
        process = context.Process(target=serve_translations, args=arguments, daemon=True)
        process.start()
        there.close()

        def translate(source: Tensor) -> Texts:
            here.send(source.tolist())
            return here.recv()

        try:
            yield translate
        finally:
            process.kill()
            process.join()


def convert(theirs: "MarianMTModel", folder: Path) -> None:
    """Save the network for CTranslate2. The converter for Marian would remove the padding token from the vocabulary and
    start from a zero vector; the one for BART, which is the same network, leaves the model unchanged.
    """
    from ctranslate2.converters.transformers import BartLoader

    theirs.config.normalize_before = theirs.config.normalize_embedding = False
    spec = BartLoader().get_model_spec(theirs)
    tokens = [str(number) for number in range(theirs.config.vocab_size)]
    spec.register_source_vocabulary(tokens)
    spec.register_target_vocabulary(tokens)
    spec.config.decoder_start_token = spec.config.bos_token = tokens[BOS]
    spec.config.eos_token, spec.config.unk_token = tokens[EOS], tokens[PAD]
    spec.config.layer_norm_epsilon = 1e-5
    spec.validate()
    spec.optimize()
    spec.save(str(folder))


def serve_translations(
    folder: str, beam: int, tokens: int, device: str, threads: int, sources: Connection
) -> None:
    """The process of CTranslate2: receives batches of sources and sends the best texts."""
    import ctranslate2

    chosen = torch.device(device)
    translator = ctranslate2.Translator(folder, device=chosen.type, device_index=chosen.index or 0,
                                        intra_threads=threads)
    while True:
        found = translator.translate_batch(
            [[str(token) for token in row] for row in sources.recv()],
            beam_size=beam,
            max_decoding_length=tokens,
            min_decoding_length=tokens,
            suppress_sequences=[[str(PAD)], [str(BOS)]],
        )
        sources.send([[int(token) for token in row.hypotheses[0]] for row in found])
