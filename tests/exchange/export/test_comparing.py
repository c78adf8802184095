"""The check of a conversion: models with several outputs, and what it leaves unchanged."""

import pytest
import torch
import transformers

from tests.inference.tiny_models import save_masked, save_translator
from vit.bundle import load_bundle
from vit.exchange import SourceError
from vit.exchange.export.comparing import check_same


@pytest.mark.parametrize("output", ["token_head", "pair_head"])
def test_each_of_several_outputs_is_compared(tmp_path, output):
    folder = save_masked(tmp_path / "model")
    model = load_bundle(folder).model
    check_same(folder, "bundle", model)
    last = [parameter for parameter in getattr(model, output).parameters() if parameter.ndim == 1][-1]
    with torch.no_grad():
        last += 0.5
    with pytest.raises(SourceError, match="the model that --to bundle would save computes other outputs in vit"):
        check_same(folder, "bundle", model)


@pytest.mark.parametrize("part", ["encoder", "decoder"])
def test_sources_and_targets_are_compared(tmp_path, part):
    folder = save_translator(tmp_path / "model", vocab_size=300, source_vocab=261, tied="target")
    model = load_bundle(folder).model
    check_same(folder, "bundle", model)
    with torch.no_grad():
        getattr(model, part).blocks[0].mlp.fc2.weight.mul_(1.1)
    with pytest.raises(SourceError, match="computes other outputs"):
        check_same(folder, "bundle", model)


def test_a_model_that_cannot_be_read_is_named(tmp_path):
    folder = save_masked(tmp_path / "model")
    model = load_bundle(folder).model
    (folder / "config.json").write_text("{}")
    with pytest.raises(SourceError, match=r"vit cannot read the model that --to bundle would save \(\w+: .*nothing"):
        check_same(folder, "bundle", model)


@pytest.mark.parametrize("shown", [True, False])
def test_the_progress_bars_of_transformers_are_as_before(tmp_path, shown):
    from vit.exchange.export.comparing import silent

    logging = transformers.utils.logging
    before, level = logging.is_progress_bar_enabled(), logging.get_verbosity()
    try:
        (logging.enable_progress_bar if shown else logging.disable_progress_bar)()
        with silent(logging):
            assert not logging.is_progress_bar_enabled() and logging.get_verbosity() == logging.ERROR
        assert (logging.is_progress_bar_enabled(), logging.get_verbosity()) == (shown, level)
    finally:
        (logging.enable_progress_bar if before else logging.disable_progress_bar)()
