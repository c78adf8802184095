"""Beam search and sampling against brute force, plain loops and transformers, and the guarantees of the settings."""

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.ndimage import map_coordinates
from torch import Tensor, nn
from transformers import MarianConfig, MarianMTModel

from tests.slow_values import quick_and_slow
from vit.generation import Generation, Uncached, generate
from vit.generation import candidates as parts
from vit.generation.candidates import best, candidates
from vit.generation.ctc import ctc_greedy
from vit.generation.sampling import draw, uniform
from vit.models.seq2seq import EncoderDecoderConfig, Transformer
from vit.nn import Cache
from vit.nn.cpu import ALL
from vit.nn.cpu.linear import ANY_SIZE, LARGE
from vit.weights.formats.marian import marian_arguments, to_marian

V, S, EOS = 150, 6, 2


def model(seed: int = 0, sharp: float = 0.25, **options) -> Transformer:
    """Random weights, large enough for uneven distributions; EOS is neither rare nor frequent."""
    torch.manual_seed(seed)
    sizes = {"vocab_size": V, "max_len": 24, "dim": 16, "depth": 1, "decoder_depth": 2, "num_heads": 2}
    made = Transformer(EncoderDecoderConfig(**{**sizes, "mlp_ratio": 2.0, "norm_eps": 1e-5, **options})).eval()
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.add_(torch.randn_like(parameter) * sharp)
    return made


def sources(rows: int = 5) -> tuple[Tensor, Tensor]:
    torch.manual_seed(3)
    lengths = torch.tensor([6, 3, 1, 5, 4, 2, 6, 6, 3])[:rows, None]
    mask = torch.arange(S) < lengths
    return torch.randint(5, V, (rows, S)) * mask, mask


def texts(found: list) -> list[list[tuple]]:
    return [[hypothesis.ids for hypothesis in row] for row in found]


def scores(found: list) -> Tensor:
    return torch.tensor([hypothesis.score for row in found for hypothesis in row])


def same(a: list, b: list) -> None:
    assert texts(a) == texts(b)
    assert [h.ended for row in a for h in row] == [h.ended for row in b for h in row]
    torch.testing.assert_close(scores(a), scores(b), rtol=0, atol=1e-4)


def log_probabilities(made: nn.Module, row: int, ids: tuple[int, ...], source=None, bos: int = 1) -> Tensor:
    """(len(ids) + 1, V): of each next token, by one forward over the whole text of a row by itself."""
    source, mask = source or sources()
    with torch.no_grad():
        logits = made(source[row : row + 1, mask[row]], torch.tensor([[bos, *ids]]))
    return logits[0].double().log_softmax(-1)


def score_of(made: nn.Module, row: int, hypothesis, penalty: float = 1.0, forced: int = 0) -> float:
    whole = [*hypothesis.ids, *([EOS] if hypothesis.ended else [])]
    table = log_probabilities(made, row, tuple(whole[:-1]))
    total = sum(float(table[position, token]) for position, token in enumerate(whole) if position >= forced)
    return total / (len(whole) - forced) ** penalty


SETTINGS = {
    "greedy": {},
    "beam": {"beam": 4, "n_best": 3},
    "short texts": {"beam": 3, "length_penalty": -0.7, "n_best": 2},
    "sums": {"beam": 3, "length_penalty": 0.0},
    "long texts": {"beam": 3, "length_penalty": 2.0, "min_len": 4},
    "no repeats": {"beam": 3, "no_repeat_ngram": 2},
    "forced beginning": {"beam": 3, "prefix": (9, 7, 9)},
    "samples": {"sample": True, "n_best": 3, "top_k": 9, "top_p": 0.9, "temperature": 1.3},
}
POSITIONS = [{}, {"positions": "rotary", "pre_norm": True}, {"positions": "learned", "tied": "none"}]


@pytest.mark.parametrize("name", SETTINGS)
def test_cached_equals_uncached(name: str) -> None:
    settings = Generation(**{"max_len": 9, **SETTINGS[name]})
    for options in POSITIONS:
        made = model(**options)
        same(generate(made, *sources(), settings), generate(Uncached(made), *sources(), settings))


def test_generation_uses_the_current_weights(monkeypatch) -> None:
    made, settings = model(), Generation(beam=4, n_best=3, max_len=12)
    before = generate(made, *sources(), settings)
    monkeypatch.setattr("vit.nn.cpu.ENABLED", ALL)
    monkeypatch.setattr("vit.nn.cpu.linear.LARGE", dict.fromkeys(LARGE, ANY_SIZE))  # so all products are large ones
    same(generate(made, *sources(), settings), before)
    made.target_embed.token.weight.data = made.target_embed.token.weight.data.flip(0)
    after = generate(made, *sources(), settings)
    same(after, generate(Uncached(made), *sources(), settings))
    assert texts(after) != texts(before)


@pytest.mark.parametrize("name", SETTINGS)
def test_texts_do_not_depend_on_the_batch(name: str) -> None:
    made, (source, mask) = model(), sources(9)
    settings = Generation(**{"max_len": 12, **SETTINGS[name]})
    whole = generate(made, source, mask, settings)
    alone = [generate(made, source[i : i + 1, mask[i]], None, settings, rows=[i])[0] for i in range(9)]
    same(whole, alone)
    order = [4, 8, 0]
    same([whole[i] for i in order], generate(made, source[order], mask[order], settings, rows=order))
    if name != "long texts":  # rows leave the batch at different steps
        assert len({len(text) for row in texts(whole) for text in row}) > 1


@pytest.mark.parametrize("name", SETTINGS)
def test_scores_are_the_log_probabilities_of_the_text(name: str) -> None:
    made, settings = model(), Generation(**{"max_len": 9, **SETTINGS[name]})
    found = generate(made, *sources(), settings)
    for row, hypotheses in enumerate(found):
        assert [h.score for h in hypotheses] == sorted((h.score for h in hypotheses), reverse=True)
        for hypothesis in hypotheses:
            expected = score_of(made, row, hypothesis, settings.length_penalty, len(settings.prefix))
            assert abs(hypothesis.score - expected) < 1e-4
            assert len(hypothesis.ids) + hypothesis.ended <= 9 + len(settings.prefix)
            assert hypothesis.ids[: len(settings.prefix)] == settings.prefix
            assert not {0, 1, EOS} & set(hypothesis.ids)


def test_greedy_equals_a_plain_loop_and_a_beam_of_one() -> None:
    made = model()
    for row, (hypothesis,) in enumerate(generate(made, *sources(), Generation(max_len=10))):
        ids: list[int] = []
        while len(ids) < 10:
            likely = log_probabilities(made, row, tuple(ids))[-1]
            likely[[0, 1]] = -math.inf
            ids.append(int(likely.argmax()))
            if ids[-1] == EOS:
                break
        assert [*hypothesis.ids, *([EOS] if hypothesis.ended else [])] == ids
    same(generate(made, *sources(), Generation(max_len=10)), generate(made, *sources(), Generation(beam=1, max_len=10)))


@pytest.mark.parametrize(("penalty", "form"), quick_and_slow(
    [(-1.0, "power"), (0.0, "power"), (0.6, "power"), (1.0, "power"), (2.0, "power"), (-1.0, "gnmt"), (0.6, "gnmt")],
    (0.0, "power"), (0.6, "power"), (0.6, "gnmt")))
def test_a_beam_as_wide_as_the_tree_equals_brute_force(penalty: float, form: str) -> None:
    """Every text over a vocabulary of 5 of at most 5 tokens: padding, EOS, and three other ids."""
    made, length = model(vocab_size=5, sharp=0.5), 5
    source = torch.tensor([[3, 4, 4], [4, 3, 3]])
    settings = Generation(bos=0, beam=3**length, n_best=20, max_len=length, length_penalty=penalty,
                          length_penalty_form=form)
    found = generate(made, source, None, settings)

    def divisor(tokens: int) -> float:
        return tokens**penalty if form == "power" else (5 + tokens) ** penalty / (5 + 1) ** penalty

    for row in range(2):
        complete = []
        for size in range(length + 1):
            for ids in itertools.product((1, 3, 4), repeat=size):
                table = log_probabilities(made, row, ids, (source, torch.ones_like(source).bool()), bos=0)
                total = sum(float(table[position, token]) for position, token in enumerate(ids))
                if size < length:
                    complete.append(((total + float(table[-1, EOS])) / divisor(size + 1), ids, True))
                else:
                    complete.append((total / divisor(size), ids, False))
        complete.sort(reverse=True)
        assert [(h.ids, h.ended) for h in found[row]] == [(ids, ended) for _, ids, ended in complete[:20]]
        torch.testing.assert_close(scores([found[row]]), torch.tensor([score for score, _, _ in complete[:20]]))


@pytest.mark.parametrize(("penalty", "form"), [(-0.5, "power"), (0.0, "power"), (1.0, "power"), (1.5, "power"),
                                               (-0.5, "gnmt"), (0.6, "gnmt"), (1.5, "gnmt")])
def test_early_stopping_does_not_change_the_result(penalty: float, form: str) -> None:
    """The best texts of a search for as many as its beam width begin with those of a search for fewer."""
    settings = Generation(beam=6, max_len=14, length_penalty=penalty, length_penalty_form=form)
    for sharp in range(3):
        made = model(sharp)
        few, many = (generate(made, *sources(), replace(settings, n_best=n_best)) for n_best in (1, 6))
        same(few, [row[:1] for row in many])


class Table(nn.Module):
    """A model whose logits depend on the step and the last token alone: (steps, V, V)."""

    max_len = None

    def __init__(self, logits: Tensor) -> None:
        super().__init__()
        self.logits, self.vocab_size = logits, logits.shape[-1]
        self.steps: list[Tensor] = []  # ids, step by step

    def start(self, source: Tensor, mask: Tensor | None, capacity: int) -> "Table":
        self.steps.clear()
        return self

    def select_rows(self, rows: Tensor) -> None:
        pass

    def select_tokens(self, tokens: Tensor) -> None:
        pass

    def advance(self, ids: Tensor, cache: "Table", beam_mask: Tensor | None = None) -> Tensor:
        self.steps.append(ids)
        return self.logits[len(self.steps) - 1, ids if beam_mask is not None else ids[:, -1:]].clone()


def test_a_beam_with_a_lower_score_may_still_win_by_its_length() -> None:
    """EOS comes early with a fair score, but a longer text has a better mean: the search may not stop before it."""
    probabilities = torch.full((9, 5, 5), 1e-9)
    probabilities[0, 1, EOS], probabilities[0, 1, 3] = 0.6, 0.4
    probabilities[1:8, 3, 3] = 0.999
    probabilities[8, 3, EOS] = 0.999
    table = Table(probabilities.log())
    (best,) = generate(table, torch.zeros(1, 1).long(), None, Generation(beam=2, max_len=9, length_penalty=1.0))
    assert best[0].ids == (3,) * 8 and best[0].ended
    (best,) = generate(table, torch.zeros(1, 1).long(), None, Generation(beam=2, max_len=9, length_penalty=0.0))
    assert best[0].ids == ()


@pytest.mark.parametrize("beam", [1, 3])
def test_a_row_ends_as_soon_as_no_beam_can_exceed_its_best_text(beam: int) -> None:
    """EOS has probability 1/2, the best other id 0.3: no sum of it is better, but for a while its mean may be.

    At most 20 tokens make a mean of n log(0.3) / 20, which is below log(1/2) from n = 12 on.
    """
    probabilities = torch.full((20, 300, 300), 0.2 / 298)
    probabilities[..., EOS], probabilities[..., 3] = 0.5, 0.3
    table, source = Table(probabilities.log()), torch.zeros(1, 1).long()
    (best,) = generate(table, source, None, Generation(beam=beam, max_len=20, length_penalty=0.0))
    assert best[0].ids == () and len(table.steps) == 1
    (best,) = generate(table, source, None, Generation(beam=beam, max_len=20, length_penalty=1.0))
    assert best[0].ids == () and len(table.steps) == (1 if beam == 1 else 12)


def test_equal_continuations_are_ordered_by_token() -> None:
    table = Table(torch.zeros(4, 300, 300))
    source = torch.zeros(1, 1).long()
    (found,) = generate(table, source, None, Generation(beam=3, n_best=3, max_len=2, min_len=2))
    assert [h.ids for h in found] == [(3, 3), (3, 4), (3, 5)]
    assert generate(table, source, None, Generation(max_len=2, min_len=2))[0][0].ids == (3, 3)


@pytest.mark.parametrize("size", [5, 150, 1000, 1024])  # few, and so many that they are searched in groups
@pytest.mark.parametrize("ties", [False, True])
def test_candidates_equal_a_sort_of_everything(size: int, ties: bool) -> None:
    torch.manual_seed(size)
    logits = torch.randn(3, 4, size)
    if ties:
        logits = logits.round()
    logits[0, :, :4] = -math.inf
    given = torch.randn(3, 4).round()
    values, found = candidates(logits, given, 8)
    complete = (logits + given[..., None]).flatten(1)
    expected, indices = complete.sort(dim=-1, descending=True, stable=True)
    assert values == expected[:, :8].tolist()
    assert found == indices[:, :8].tolist()


def test_only_rows_with_ties_are_searched_in_whole(monkeypatch) -> None:
    """With 100,000 tokens one tie in a batch of 64 took a hundred times as long as the search in groups."""
    torch.manual_seed(0)
    logits, given, searched = torch.randn(5, 4, 1000), torch.randn(5, 4), []
    logits[1], logits[3, 2, 5:7] = 0.0, logits[3].max() + 1
    monkeypatch.setattr(parts, "best", lambda values, count: searched.append(len(values)) or best(values, count))
    values, found = candidates(logits, given, 8)
    expected, indices = (logits + given[..., None]).flatten(1).sort(dim=-1, descending=True, stable=True)
    assert (values, found) == (expected[:, :8].tolist(), indices[:, :8].tolist()) and searched == [2]


def test_no_ngram_is_repeated() -> None:
    made = model(sharp=0.6)
    for size in (1, 2, 3):
        settings = {"max_len": 20, "min_len": 18, "prefix": (9, 8, 9)}
        free = generate(made, *sources(), Generation(**settings, beam=3))
        bound = generate(made, *sources(), Generation(**settings, beam=3, no_repeat_ngram=size, n_best=3))
        assert any(repeats(h.ids, size) for row in free for h in row) and texts(free) != texts(bound)
        beginning = size == 1  # the prefix is not checked against itself
        assert not any(repeats(h.ids[2:] if beginning else h.ids, size) for row in bound for h in row)


def repeats(ids: tuple, size: int) -> bool:
    runs = [ids[i : i + size] for i in range(len(ids) - size + 1)]
    return len(set(runs)) < len(runs)


@pytest.mark.parametrize("more", [{}, {"beam": 3, "n_best": 3}, {"sample": True, "n_best": 3}])
def test_length_limits_are_respected(more: dict) -> None:
    made = model()
    for fewest, most in ((0, 4), (6, 8), (5, 5)):
        found = generate(made, *sources(), Generation(min_len=fewest, max_len=most, **more))
        assert all(fewest <= len(h.ids) <= most and len(h.ids) + h.ended <= most for row in found for h in row)
        assert all(h.ended or len(h.ids) == most for row in found for h in row)


def test_a_text_without_an_allowed_continuation_is_truncated() -> None:
    made = model(vocab_size=5)
    for more in ({}, {"beam": 2, "n_best": 2}, {"sample": True}):
        settings = Generation(min_len=6, max_len=8, no_repeat_ngram=1, **more)
        found = generate(made, torch.tensor([[3, 4]]), None, settings)
        assert all(sorted(h.ids) == [3, 4] and not h.ended and math.isfinite(h.score) for h in found[0]) and found[0]
        for h in found[0]:  # the mean of its two tokens
            table = log_probabilities(made, 0, h.ids, (torch.tensor([[3, 4]]), torch.ones(1, 2, dtype=torch.bool)))
            assert h.score == pytest.approx(float(table[[0, 1], list(h.ids)].mean()), abs=1e-4)


def test_an_ensemble_generates_from_the_mean_of_probabilities() -> None:
    models = [model(seed) for seed in range(3)]
    found = generate(models, *sources(), Generation(beam=4, n_best=2, max_len=8))
    for row, hypotheses in enumerate(found):
        for h in hypotheses:
            whole = [*h.ids, *([EOS] if h.ended else [])]
            tables = [log_probabilities(made, row, tuple(whole[:-1])).exp() for made in models]
            mean = torch.stack(tables).mean(0).log()
            assert abs(h.score - sum(float(mean[i, t]) for i, t in enumerate(whole)) / len(whole)) < 1e-4
    same(generate([models[0]] * 3, *sources(), Generation(beam=4, max_len=8)),
         generate(models[0], *sources(), Generation(beam=4, max_len=8)))
    with pytest.raises(ValueError, match="one vocabulary, but they have 150, 151 ids"):
        generate([models[0], model(vocab_size=V + 1)], *sources())


def by_scipy(images: Tensor, degrees: float, stretch: float) -> Tensor:
    """The images sheared, and exp(-stretch) times as high, about the middle row; outside lies the outermost pixel."""
    y, x = np.indices(images.shape[2:])
    middle = (images.shape[2] - 1) / 2
    coordinates = [middle + math.exp(stretch) * (y - middle), x + math.tan(math.radians(degrees)) * (y - middle)]
    seen = [map_coordinates(plane, coordinates, order=1, mode="nearest") for plane in images.flatten(0, 1).numpy()]
    return torch.from_numpy(np.stack(seen)).view_as(images)


def image_model(**options) -> Transformer:
    options = {"stem": "pooled_conv", "vocab_size": 7, **options}
    return model(source="image", image_size=(8, 20), patch_size=4, tied="target", **options)


class Transformed(nn.Module):
    """A model whose images are transformed first."""

    def __init__(self, model: Transformer, degrees: float, stretch: float) -> None:
        super().__init__()
        self.model, self.transform = model, (degrees, stretch)
        self.vocab_size, self.max_len, self.advance = model.vocab_size, model.max_len, model.advance

    def start(self, images: Tensor, *options) -> Cache:
        return self.model.start(by_scipy(images, *self.transform), *options)

    def ctc_log_probs(self, images: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        return self.model.ctc_log_probs(by_scipy(images, *self.transform), mask)

    def forward(self, images: Tensor, ids: Tensor, mask: Tensor | None) -> Tensor:
        return self.model(by_scipy(images, *self.transform), ids, mask)


@pytest.mark.parametrize("settings", [{}, {"beam": 3}, {"beam": 3, "ctc": 0.4}], ids=str)
@pytest.mark.parametrize("count", [1, 2], ids=["one model", "two"])
def test_versions_of_an_image_are_an_ensemble(count: int, settings: dict) -> None:
    """Five versions: the image, and both ways sheared while it is higher and lower."""
    made, images = [image_model(seed=seed) for seed in range(count)], torch.randn(4, 3, 8, 20)
    shear, stretch = 8.5 / 2**0.5, 0.14 / 2**0.5
    corners = [(0, 0), (shear, stretch), (-shear, stretch), (-shear, -stretch), (shear, -stretch)]
    found = generate(made, images, None, Generation(tta=5, max_len=5, **settings))
    models = [Transformed(each, *corner) for each in made for corner in corners]
    same(found, generate(models, images, None, Generation(max_len=5, **settings)))
    plain = generate(made, images, None, Generation(max_len=5, **settings))
    assert not torch.allclose(scores(found), scores(plain), atol=1e-3)


def test_versions_are_the_same_alone_and_in_any_batch() -> None:
    made = image_model(stem="masked_conv")
    images, mask = torch.randn(2, 3, 8, 20), torch.ones(2, 2, 5, dtype=torch.bool)
    mask[1, :, 3:] = False
    settings = Generation(beam=3, max_len=6, ctc=0.5, tta=4)
    found = generate(made, images, mask.flatten(1), settings)
    same(found[1:], generate(made, images[1:, :, :, :12], None, settings))


def test_versions_are_of_images() -> None:
    with pytest.raises(ValueError, match="tta=3 is for images, but this model reads texts; use tta=1"):
        generate(model(), *sources(), Generation(max_len=4, tta=3))
    with pytest.raises(ValueError, match="tta is 0, but must be above 0"):
        Generation(tta=0)


def test_views_is_the_former_name_of_tta() -> None:
    with pytest.warns(UserWarning, match="views=3 is the former name of tta=3"):
        former = Generation(views=3)
    assert former == Generation(tta=3) == Generation.from_dict({"views": 3}) and replace(former, beam=2).tta == 3


def test_draws_follow_the_distribution() -> None:
    logits = torch.tensor([0.5, 0.2, 0.15, 0.1, 0.05]).log().expand(4000, -1)
    draws = torch.tensor([uniform(7, i) for i in range(4000)], dtype=torch.float64)

    def shares(**settings) -> Tensor:
        return draw(logits, draws, Generation(sample=True, **settings))[:, 0].bincount(minlength=5) / 4000

    torch.testing.assert_close(shares(), torch.tensor([0.5, 0.2, 0.15, 0.1, 0.05]), rtol=0, atol=0.025)
    torch.testing.assert_close(shares(top_k=2), torch.tensor([5 / 7, 2 / 7, 0, 0, 0]), rtol=0, atol=0.025)
    torch.testing.assert_close(shares(top_p=0.7), torch.tensor([5 / 7, 2 / 7, 0, 0, 0]), rtol=0, atol=0.025)
    torch.testing.assert_close(shares(top_p=0.71), torch.tensor([50, 20, 15, 0, 0]) / 85, rtol=0, atol=0.025)
    assert shares(top_p=0.01)[0] == 1 and shares(top_k=1)[0] == 1
    cold = torch.tensor([0.5, 0.2, 0.15, 0.1, 0.05]) ** 2
    torch.testing.assert_close(shares(temperature=0.5), cold / cold.sum(), rtol=0, atol=0.025)


def test_samples_never_contain_impossible_tokens() -> None:
    logits = torch.tensor([[-math.inf, 0.0, -math.inf, 0.0, -math.inf]]).expand(3, -1)
    edges = torch.tensor([0.0, 0.5, 1 - 2**-53], dtype=torch.float64)
    for settings in ({}, {"top_p": 0.99}, {"top_k": 4}):
        assert draw(logits, edges, Generation(sample=True, **settings))[:, 0].tolist() == [1, 3, 3]


def test_samples_follow_the_seed_and_differ_from_each_other() -> None:
    made = model()
    one, again, other = (generate(made, *sources(), Generation(sample=True, n_best=4, max_len=8, seed=seed))
                         for seed in (1, 1, 2))
    assert texts(one) == texts(again) != texts(other)
    assert all(len(set(row)) > 1 for row in texts(one))
    greedy = generate(made, *sources(), Generation(max_len=8))
    assert texts(generate(made, *sources(), Generation(sample=True, top_k=1, max_len=8))) == texts(greedy)


def test_numbers_from_counters_are_spread_evenly() -> None:
    numbers = torch.tensor([uniform(seed, row, step) for seed in range(10) for row in range(20) for step in range(20)])
    counts = numbers.histc(10, 0, 1)
    assert len(set(numbers.tolist())) == 4000 and counts.min() > 330 and counts.max() < 470


def test_a_model_in_training_mode_generates_without_dropout_and_stays_in_it() -> None:
    made = model(dropout=0.5)
    expected = generate(made, *sources(), Generation(beam=3, max_len=6))
    same(generate(made.train(), *sources(), Generation(beam=3, max_len=6)), expected)
    assert made.training and made.decoder.training


def test_every_module_keeps_its_mode(monkeypatch) -> None:
    made = model().train()
    made.encoder.eval()
    made.decoder.blocks[1].mlp.eval()
    before = {name: module.training for name, module in made.named_modules()}
    generate(made, *sources(), Generation(max_len=3))
    assert {name: module.training for name, module in made.named_modules()} == before
    monkeypatch.setattr(made, "advance", lambda *given: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        generate(made, *sources(), Generation(max_len=3))
    assert {name: module.training for name, module in made.named_modules()} == before


def double(module: nn.Module, inputs: tuple, output: Tensor) -> Tensor:
    return output * 2


def subclassed(part: nn.Module) -> None:
    kind = type(part)

    class Other(kind):
        def forward(self, *given, **more) -> Tensor:
            return super().forward(*given, **more) * 2

    part.__class__ = Other


def patched(part: nn.Module) -> None:
    forward = part.forward
    part.forward = lambda *given, **more: forward(*given, **more) * 2


CHANGES = {"hook": lambda part: part.register_forward_hook(double), "subclass": subclassed, "patched": patched}
PARTS = ["", "encoder", "decoder", "decoder.blocks.0", "decoder.blocks.1.attn", "decoder.blocks.1.cross_attn",
         "decoder.blocks.0.mlp.fc1", "decoder.norm", "target_embed"]


@pytest.mark.parametrize("settings", [{}, {"beam": 3}], ids=["greedy", "beam"])
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("part", PARTS)
def test_a_replaced_forward_of_any_part_is_used(part: str, change: str, settings: dict) -> None:
    made, chosen = model(pre_norm=True), Generation(max_len=9, **settings)
    before = generate(made, *sources(), chosen)
    CHANGES[change](made.get_submodule(part))
    after = generate(made, *sources(), chosen)
    same(after, generate(Uncached(made), *sources(), chosen))
    assert scores(after).tolist() != scores(before).tolist()


def test_a_forward_that_is_replaced_later_in_the_class_is_used(monkeypatch) -> None:
    made = model()
    before = generate(made, *sources(), Generation(max_len=9))
    forward = type(made.decoder.blocks[0]).forward
    monkeypatch.setattr(type(made.decoder.blocks[0]), "forward", lambda *given, **more: forward(*given, **more) * 2)
    after = generate(made, *sources(), Generation(max_len=9))
    same(after, generate(Uncached(made), *sources(), Generation(max_len=9)))
    assert [row[0].score for row in after] != [row[0].score for row in before]


@pytest.mark.filterwarnings("ignore")
def test_a_quantised_copy_has_every_layer_quantised_and_generates() -> None:
    made = model(qkv_bias=True, tied="target")
    quantised = torch.ao.quantization.quantize_dynamic(made, {nn.Linear}, dtype=torch.qint8)
    layers = [name for name, module in made.named_modules() if isinstance(module, nn.Linear)]
    kinds = {name: type(quantised.get_submodule(name)) for name in layers}
    assert len(layers) == 18 and set(kinds.values()) == {torch.ao.nn.quantized.dynamic.Linear}
    found, exact = (generate(each, *sources(), Generation(beam=2, max_len=9)) for each in (quantised, made))
    torch.testing.assert_close(scores(found), scores(exact), rtol=0, atol=0.1)


def test_texts_of_images() -> None:
    made = model(source="image", image_size=(8, 24), patch_size=4, tied="target", stem="masked_conv")
    images, mask = torch.randn(2, 3, 8, 24), torch.ones(2, 2, 6, dtype=torch.bool)
    mask[1, :, 3:] = False
    found = generate(made, images, mask.flatten(1), Generation(beam=3, max_len=6))
    same(found[1:], generate(made, images[1:, :, :, :12], None, Generation(beam=3, max_len=6)))


def alignment_sums(likely: Tensor) -> dict[tuple[int, ...], float]:
    """Log-probabilities (columns,V) -> the log-probability of each text, summed over its alignments."""
    columns, ids = likely.shape
    found: dict[tuple[int, ...], float] = {}
    for path in itertools.product(range(ids), repeat=columns):
        text = tuple(sign for sign, _ in itertools.groupby(path) if sign != 0)
        way = math.exp(sum(float(likely[i, sign]) for i, sign in enumerate(path)))
        found[text] = found.get(text, 0.0) + way
    return {text: math.log(ways) for text, ways in found.items()}


@pytest.mark.parametrize("count", [1, 2], ids=["one model", "two"])
@pytest.mark.parametrize("more", [{}, {"min_len": 2}, {"prefix": (4,)}, {"no_repeat_ngram": 1}], ids=str)
def test_ctc_is_part_of_the_score_and_adds_candidates(count: int, more: dict) -> None:
    """Against the sum over all alignments of a text, and a search that is wide enough to find all texts."""
    options = {"source": "image", "image_size": (8, 20), "patch_size": 4, "tied": "target", "vocab_size": 7,
               "stem": "pooled_conv", "positions": "learned", "class_token": True}
    made = [model(seed, **options) for seed in range(count)]
    images, mask = torch.randn(2, 3, 8, 20), torch.ones(2, 2, 5, dtype=torch.bool)
    mask[1, :, 3:] = mask[1, 1, 2] = False
    search = {"max_len": 4, "length_penalty": 0.5, **more}
    everything = generate(made, images, mask.flatten(1), Generation(**search, beam=600, n_best=600))
    plain = generate(made, images, mask.flatten(1), Generation(**search, beam=2, n_best=2))
    found = generate(made, images, mask.flatten(1), Generation(**search, beam=2, n_best=2, ctc=0.9))
    for row, width in ((0, 5), (1, 3)):
        ways, candidates = [], {(text.ids, text.ended) for text in plain[row]}
        for each in made:
            columns, widths = each.ctc_log_probs(images, mask.flatten(1))
            assert widths.tolist() == [5, 3]
            ways.append(alignment_sums(columns[row, :width].detach()))
            signs = itertools.groupby(columns[row, :width].argmax(-1).tolist())
            candidates.add((tuple(sign for sign, _ in signs if sign), True))
        expected = []
        for text in everything[row]:
            if (text.ids, text.ended) in candidates:
                ctc_score = sum(math.exp(each.get(text.ids, -math.inf)) for each in ways) / count
                ctc_score = math.log(ctc_score) if ctc_score else -math.inf
                length = len(text.ids) - len(more.get("prefix", ())) + text.ended
                expected.append((0.1 * text.score + 0.9 * ctc_score / length**0.5, text.ids))
        expected = sorted(expected, key=lambda each: -each[0])[:2]
        assert [text.ids for text in found[row]] == [ids for _, ids in expected]
        assert [text.score for text in found[row]] == pytest.approx([score for score, _ in expected], abs=1e-4)


def test_ctc_decides_which_text_is_the_best() -> None:
    made = model(source="image", image_size=(8, 20), patch_size=4, tied="target", vocab_size=7, stem="pooled_conv")
    images, settings = torch.randn(8, 3, 8, 20), {"beam": 3, "max_len": 4}
    plain = texts(generate(made, images, None, Generation(**settings)))
    by_ctc = texts(generate(made, images, None, Generation(**settings, ctc=1.0)))
    beams = texts(generate(made, images, None, Generation(**settings, n_best=3)))
    assert plain != by_ctc
    assert any(own not in beam for (own,), beam in zip(by_ctc, beams, strict=True))  # which no search had found


def test_greedy_search_has_the_text_of_ctc_as_a_second_candidate() -> None:
    made = model(source="image", image_size=(8, 20), patch_size=4, tied="target", vocab_size=7, stem="pooled_conv")
    images = torch.randn(8, 3, 8, 20)
    (columns, widths), plain = made.ctc_log_probs(images), texts(generate(made, images, None, Generation(max_len=6)))
    found = texts(generate(made, images, None, Generation(max_len=6, ctc=1.0)))
    for row, ((text,), (greedy,)) in enumerate(zip(found, plain, strict=True)):
        ways = alignment_sums(columns[row, : widths[row]].detach())
        signs = itertools.groupby(columns[row].argmax(-1).tolist())
        candidates = [greedy, tuple(sign for sign, _ in signs if sign)]
        allowed = [each for each in candidates if each == greedy or len(each) < 6 and not {1, 2} & set(each)]
        assert text == max(allowed, key=lambda each: ways.get(each, -math.inf) / (len(each) + 1))
    assert found != plain


def test_the_texts_of_ctc_are_different_ones() -> None:
    """A greedy text of CTC that the beam has found too counts once."""
    made = model(4, source="image", image_size=(8, 20), patch_size=4, tied="target", vocab_size=7, stem="pooled_conv")
    images, settings = torch.randn(8, 3, 8, 20), {"max_len": 3, "beam": 100, "n_best": 100}
    beams = texts(generate(made, images, None, Generation(**settings)))
    assert any(text in row for row, text in zip(beams, ctc_greedy(*made.ctc_log_probs(images, None), 0), strict=True))
    found = generate(made, images, None, Generation(**settings, ctc=0.5))
    assert all(len({(each.ids, each.ended) for each in row}) == len(row) for row in found)


def test_ctc_is_for_images_and_several_texts_only() -> None:
    with pytest.raises(ValueError, match=r"ctc=0.5 is for images, but this model reads texts"):
        generate(model(), *sources(), Generation(beam=2, max_len=4, ctc=0.5))
    with pytest.raises(ValueError, match="ctc=0.5 selects the best text of a search, but sample=True draws"):
        Generation(ctc=0.5, sample=True)
    with pytest.raises(ValueError, match=r"ctc is 1.5, but must lie in \[0, 1\]"):
        Generation(beam=2, ctc=1.5)


def test_no_text_is_longer_than_the_model_has_positions() -> None:
    made = model(max_len=7)
    with torch.no_grad():
        made.target_embed.token.weight[EOS] = 0
    (found,) = generate(made, *(each[:1] for each in sources()), Generation(beam=2, prefix=(5, 6), min_len=20))
    assert len(found[0].ids) == 2 + 5 and not found[0].ended
    with pytest.raises(ValueError, match="8 forced tokens, but max_len of the model is 7"):
        generate(made, *sources(), Generation(prefix=(5,) * 7))


@pytest.mark.parametrize("penalty", [0.6, 1.0])
@pytest.mark.parametrize("beam", [1, 4])
@pytest.mark.parametrize("size", [V, 1500])  # few ids, and so many that the best are searched in groups
def test_texts_equal_marians(size: int, beam: int, penalty: float) -> None:
    made = model(vocab_size=size)
    with torch.no_grad():
        made.target_embed.token.weight[EOS] *= size / V / 2 + 0.5  # among many ids as frequent as among few
    theirs = MarianMTModel(MarianConfig(**marian_arguments(made.config, bos=1, eos=EOS, pad=0))).eval()
    theirs.load_state_dict(to_marian(made.state_dict()), strict=False)
    source, mask = sources(9)
    more = {"length_penalty": penalty, "early_stopping": "never"} if beam > 1 else {}
    expected = theirs.generate(
        source, attention_mask=mask.long(), num_beams=beam, num_return_sequences=min(beam, 2), max_new_tokens=12,
        do_sample=False, suppress_tokens=[0, 1], no_repeat_ngram_size=3, output_scores=True,
        return_dict_in_generate=True, **more)
    settings = Generation(beam=beam, n_best=min(beam, 2), max_len=12, length_penalty=penalty, no_repeat_ngram=3)
    found = generate(made, source, mask, settings)
    rows = [[token for token in ids if token > EOS] for ids in expected.sequences.tolist()]
    assert [list(ids) for row in texts(found) for ids in row] == rows
    assert any(h.ended for row in found for h in row)
    if beam > 1:
        torch.testing.assert_close(scores(found), expected.sequences_scores, rtol=0, atol=1e-4)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"beam": 0}, "beam is 0, but must be above 0"),
        ({"n_best": 3, "beam": 2}, "n_best is 3, but must be at most beam 2"),
        ({"sample": True, "beam": 2}, "sample=True needs beam=1"),
        ({"top_p": 1.2}, r"top_p is 1.2, but must lie in \(0, 1\]"),
        ({"min_len": 9, "max_len": 4}, "min_len is 9, more than max_len 4"),
        ({"top_k": 4}, "is for sampling; add sample=True, or leave"),
        ({"no_repeat_ngram": -1}, "must not be negative"),
        ({"beam": 2.5}, "beam is 2.5, but must be a whole number"),
        ({"beam": None}, "beam is None, but must be a whole number"),
        ({"max_len": 1.5}, "max_len is 1.5, but must be a whole number"),
        ({"n_best": True}, "n_best is True, but must be a whole number"),
        ({"length_penalty": math.nan}, "length_penalty is nan, but must be a finite number"),
        ({"length_penalty": "1"}, "length_penalty is '1', but must be a finite number"),
        ({"length_penalty_form": "wu"}, "length_penalty_form is 'wu', but must be one of power, gnmt"),
        ({"sample": True, "temperature": math.inf}, "temperature is inf, but must be a finite number"),
        ({"length_penalty": True}, "length_penalty is True, but must be a finite number"),
        ({"sample": "false"}, "sample is 'false', but must be true or false"),
        ({"sample": None}, "sample is None, but must be true or false"),
        ({"prefix": (1.5,)}, "prefix is 1.5, but must be a whole number"),
        ({"prefix": (5, 2)}, r"prefix \(5, 2\) has 2, which is eos; pass the ids of the text only"),
        ({"prefix": (0,)}, "has 0, which is pad"),
    ],
)
def test_invalid_settings_are_errors_of_one_line(settings: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message) as error:
        Generation(**settings)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(("settings", "message"), [
    ({"prefix": (5, V)}, f"prefix has the id {V}, but the model's ids are 0..{V - 1}"),
    ({"prefix": (-1,)}, "prefix has the id -1"),
    ({"eos": V}, f"eos has the id {V}"),
])
def test_ids_outside_the_vocabulary_are_an_error(settings: dict, message: str) -> None:
    made = model()
    for each in (made, Uncached(made)):
        with pytest.raises(ValueError, match=message):
            generate(each, *sources(), Generation(max_len=4, **settings))


def test_a_prefix_may_be_of_any_type_of_numbers() -> None:
    settings = Generation(prefix=torch.tensor([9, 7]), max_len=torch.tensor(4))
    assert settings == Generation(prefix=[9, 7], max_len=4) and settings.prefix == (9, 7)


@pytest.mark.parametrize("more", [{}, {"beam": 3}, {"sample": True, "n_best": 2}])
def test_generation_in_half_precision(more: dict) -> None:
    """Cached keys and values have the type that the layers compute with."""
    for options in POSITIONS:
        made = model(**options, qk_norm=True)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            found = generate(made, *sources(), Generation(max_len=6, **more))
        found += generate(made.bfloat16(), *sources(), Generation(max_len=6, **more))
        assert all(math.isfinite(h.score) and h.score <= 0 for row in found for h in row)
