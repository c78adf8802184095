"""Predictors of texts: an unreadable input is returned as an error with its name, among the predictions of the rest."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from tokenizers import Tokenizer
from transformers import MarianConfig, MarianMTModel

import vit
from tests.inference.tiny_models import save_classifier, save_image_to_text, save_masked, save_translator
from vit.data import BadImage, ByteTokenizer
from vit.data.formats.lines import BadText, Line
from vit.data.text.tokenizers import BPETokenizer, CharTokenizer
from vit.exchange.export.transformers_tokenizer import tokenizer_files
from vit.generation import generate
from vit.weights.formats.marian import marian_arguments, to_marian

LONG = "123456789"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("models")


@pytest.fixture(scope="module")
def translator(folder):
    return vit.load(save_translator(folder / "translator"), device="cpu")


@pytest.fixture(scope="module")
def classifier(folder):
    return vit.load(save_classifier(folder / "classifier"), device="cpu")


@pytest.fixture(scope="module")
def pairs(folder):
    return vit.load(save_classifier(folder / "pairs", columns=2), device="cpu")


@pytest.fixture(scope="module")
def image_to_text(folder):
    return vit.load(save_image_to_text(folder / "image_to_text"), device="cpu")


@pytest.mark.parametrize("name", ["translator", "classifier", "image_to_text"])
def test_an_unknown_precision_is_an_error_when_a_model_is_loaded(request, folder, name):
    request.getfixturevalue(name)
    with pytest.raises(ValueError, match="precision='bf16' is not one of 32-true, "):
        vit.load(folder / name, device="cpu", precision="bf16")


@pytest.fixture(params=["translator", "classifier"])
def predictor(request):
    return request.getfixturevalue(request.param)


def near(predictions, expected):
    """Checks that predictions are equal up to the rounding of other batches."""
    assert [prediction.source for prediction in predictions] == [prediction.source for prediction in expected]
    for prediction, other in zip(predictions, expected, strict=True):
        values = [each.probabilities if hasattr(each, "probabilities") else each.scores for each in (prediction, other)]
        assert values[0] == pytest.approx(values[1], abs=1e-5)


def test_other_texts_are_predicted_beside_a_bad_one(predictor):
    good = ["ab", "c", "defg", "hi"]
    items = [good[0], LONG, *good[1:3], Line(b"\xff", 7, Path("in.txt")), good[3]]
    for size in (1, 2, 64):
        predictions = list(predictor.stream(items, batch_size=size))
        assert [isinstance(each, BadText) for each in predictions] == [False, True, False, False, True, False]
        near([prediction for prediction in predictions if not isinstance(prediction, BadText)], predictor.predict(good))
        assert str(predictions[1]).startswith("text 2: has 1")  # 10 or 11 tokens
        assert str(predictions[4]) == "in.txt line 7: byte 1 is not UTF-8; save the file as UTF-8"
    with pytest.raises(BadText, match="text 2: has 1"):
        predictor.predict(items)
    assert [type(prediction) for prediction in predictor.stream([LONG, LONG])] == [BadText] * 2


def test_a_text_alone_is_one_text(predictor):
    near(predictor.predict("12"), predictor.predict(["12"]))
    assert predictor.predict([]) == []


def test_a_line_is_equal_to_its_text(predictor):
    near(predictor.predict([Line(b"ab\r\n", 1)]), predictor.predict(["ab"]))


def test_lines_without_text(translator, classifier):
    assert [each.text for each in translator.predict(["", " "])] == ["", ""]  # outputs stay aligned with lines
    with pytest.raises(BadText, match="text 2: is empty"):
        classifier.predict(["a", "  "])  # training rejects empty texts


def test_pairs_are_tuples_or_lines_with_a_tab(pairs):
    near(pairs.predict([Line(b"ab\tc\n", 1)]), pairs.predict([("ab", "c")]))
    predictions = list(pairs.stream(["ab", ("a", "b", "c"), ("a", ""), ("a", "b")]))
    assert [str(prediction) for prediction in predictions[:3]] == [
        "text 1: has 1 text, but the model expects two texts separated by a tab",
        "text 2: has 3 texts, but the model expects two texts separated by a tab",
        "text 3: one of its texts is empty",
    ]
    assert predictions[3].source == "a\tb"


def test_an_endless_iterator_is_predicted_item_by_item(predictor):
    consumed = []

    def typing():
        while True:
            consumed.append(1)
            yield "ab"

    predictions = predictor.stream(typing(), batch_size=1)
    for count in range(1, 4):
        assert next(predictions).source == "ab" and len(consumed) == count


@pytest.mark.parametrize(("sources", "message"), [
    (5, "int is not a text; pass a str or a list of str"),
    (b"ab", "bytes is not a text"),
    ({"a": 1}, "dict is not a text"),
    (["a", 5], "text 2 is int, but the model reads texts; pass a str"),
    ([None], "text 1 is NoneType, but the model reads texts"),
])
def test_other_types_are_rejected(predictor, sources, message):
    with pytest.raises(TypeError, match=message):
        predictor.predict(sources)


def test_a_batch_size_of_0_is_rejected(predictor, image_to_text):
    for each in (predictor, image_to_text):
        with pytest.raises(ValueError, match="batch_size=0 must be a whole number of at least 1"):
            each.predict(["12"], batch_size=0)


def test_a_model_that_was_trained_on_truncated_texts_truncates_and_warns(folder, translator, classifier):
    truncating = [
        (save_translator(folder / "truncating translator", extra={"cuts": True}), LONG[:8], translator),
        (save_classifier(folder / "truncating", extra={"cuts": True}), LONG[:7], classifier),
    ]
    for path, beginning, strict in truncating:
        predictor = vit.load(path, device="cpu")
        message = "2 of 3 texts are longer than the model's limit of 9 tokens and were truncated, such as text 1"
        with pytest.warns(UserWarning, match=message):
            predictions = predictor.predict([LONG, "ab", LONG * 2], batch_size=2)
        assert [prediction.source for prediction in predictions] == [LONG, "ab", LONG * 2]
        (expected,) = strict.predict([beginning])
        got = [getattr(predictions[0], name) for name in ("scores", "probabilities") if hasattr(predictions[0], name)]
        assert got[0] == pytest.approx(getattr(expected, "scores", None) or expected.probabilities, abs=1e-5)


@pytest.mark.parametrize("save", [save_translator, save_classifier, save_masked])
def test_characters_that_the_tokenizer_lacks_are_reported(tmp_path, recwarn, save):
    letters = CharTokenizer("ab", lower=True)
    key = "source_tokenizer" if save is save_translator else "tokenizer"
    extra = {} if save is save_masked else {"extra": {"strip": True}}
    predictor = vit.load(save(tmp_path / "model", **{key: letters}, **extra), device="cpu")
    mask = "[MASK]" if save is save_masked else ""
    predictor.predict([f"Ab{mask}", f"ba{mask}"])
    assert not [each for each in recwarn if "lacks" in str(each.message)]
    message = ("2 of 3 texts have characters that the tokenizer of the model lacks, such as 'é' in text 2; the model "
               "reads all of them as the same unknown token")
    with pytest.warns(UserWarning, match=message):
        predictor.predict([f"ab{mask}", f"aé{mask}", f"x{mask}"], batch_size=2)


def test_white_space_that_is_removed_is_no_character_that_the_tokenizer_lacks(tmp_path, recwarn):
    path = save_translator(tmp_path / "model", source_tokenizer=CharTokenizer("ab"), extra={"strip": True})
    predictor = vit.load(path, device="cpu")
    predictor.predict([" ab ", ""])
    predictor.search(" ab ")
    assert not [each for each in recwarn if "lacks" in str(each.message)]
    with pytest.warns(UserWarning, match="1 of 1 text has characters .* lacks, such as ' ' in line 3;"):
        predictor.search("a b", name="line 3")


def test_texts_that_are_cut_at_the_maximum_length_are_reported(translator, recwarn):
    sources = [*"0123456789", ""]
    settings = translator.changed_settings(sample=True, seed=6)  # some of these texts end and others do not
    source, mask = translator.collate([translator.encode(each, each) for each in sources[:-1]])
    found = generate(translator.models, source, mask, settings, range(10), translator.utf8)
    cut = [*(len(texts[0].ids) == 6 for texts in found), False]  # max_len is 6, and eos counts
    assert 0 < sum(cut) < 10
    with pytest.warns(UserWarning) as warned:
        predictions = translator.predict(sources, settings)
    assert [each.is_cut for each in predictions] == cut
    (message,) = (str(each.message) for each in warned if "did not end" in str(each.message))
    assert message == (f"{sum(cut)} of 11 generated texts did not end within the maximum length of 6 tokens and are "
                       f"cut, such as that of text {cut.index(True) + 1}")
    translator.predict([""], settings)
    assert not recwarn  # an empty text ends


@pytest.mark.parametrize("save", [save_translator, save_image_to_text])
def test_the_score_of_a_generated_text_is_that_of_its_generation(tmp_path, save):
    """In batches and alone; texts of bytes have one tokenization each. Some of many samples end."""
    predictor = vit.load(save(tmp_path / "model"), device="cpu")
    pixels = np.random.default_rng(0).integers(0, 256, (3, 8, 20), np.uint8)
    sources, tta = (list(pixels), 3) if predictor.is_image_to_text else (["ab", "c", "defg"], 1)
    settings = predictor.changed_settings(sample=True, n_best=400, length_penalty=0.7, tta=tta)
    found = [(source, text, score) for source, each in zip(sources, predictor.predict(sources, settings), strict=True)
             for text, score, ended in zip(each.texts, each.scores, each.ended, strict=True) if ended]
    assert len({text for _, text, _ in found}) > 5
    scored = predictor.score([source for source, _, _ in found], [text for _, text, _ in found], settings)
    assert [each.score for each in scored] == pytest.approx([score for _, _, score in found], abs=1e-4)
    given = ["xy", "", "longer"]
    together = predictor.score(sources, given, settings)
    assert together[1].tokens == ("<eos>",) and together[0].tokens == ("x", "y", "<eos>")
    for source, text, each in zip(sources, given, together, strict=True):
        (alone,) = predictor.score([source], [text], settings)
        assert alone.log_probs == pytest.approx(each.log_probs, abs=1e-4) and each.text == text
        assert each.score == pytest.approx(sum(each.log_probs) / len(each.log_probs) ** 0.7)


def test_the_log_probabilities_of_given_texts_are_those_of_transformers(tmp_path):
    folder = save_translator(tmp_path / "model", max_len=32, decoder_depth=2, norm_eps=1e-5)
    predictor = vit.load(folder, device="cpu")
    theirs = MarianMTModel(MarianConfig(**marian_arguments(predictor.model.config, bos=1, eos=2, pad=0))).eval()
    theirs.load_state_dict(to_marian(predictor.model.state_dict()), strict=False)
    sources, texts = ["a text", "another, longer text"], ["ein Text", "é"]
    for source, text, scored in zip(sources, texts, predictor.score(sources, texts), strict=True):
        target = torch.tensor([[1, *ByteTokenizer().encode(text), 2]])
        ids = torch.tensor([[*ByteTokenizer().encode(source), 2]])
        with torch.no_grad():
            loss = theirs(input_ids=ids, decoder_input_ids=target[:, :-1], labels=target[:, 1:]).loss
        assert scored.log_prob == pytest.approx(-float(loss) * (target.shape[1] - 1), abs=1e-4)
        assert scored.score == pytest.approx(-float(loss), abs=1e-5)  # length_penalty=1


def test_texts_that_cannot_be_scored_are_named(translator):
    sources = ["ab", " ", LONG, "c"]
    found = list(translator.stream_scores(sources, ["x", "y", "z", Line(b"\xff", 4, Path("out.txt"))]))
    assert [str(each).partition(",")[0] for each in found[1:]] == [
        "text 2: is empty", "text 3: has 10 tokens", "out.txt line 4: byte 1 is not UTF-8; save the file as UTF-8"]
    with pytest.raises(BadText, match="reference 1: has 11 tokens, but the model generates at most 9"):
        translator.score("ab", ["0123456789"])
    for texts, message in ((["x"], "more sources than references, of which there are 1; pass one"),
                           (["x"] * 5, "more references than sources, of which there are 4")):
        with pytest.raises(ValueError, match=message):
            translator.score(sources, texts)


def test_an_ensemble_scores_with_the_mean_of_probabilities(folder, translator):
    other = vit.load(save_translator(folder / "deeper", decoder_depth=2), device="cpu")
    both = vit.load(folder / "translator", ensemble=[folder / "deeper"], device="cpu")
    one, two, mean = (np.exp(each.score("ab", "xy")[0].log_probs) for each in (translator, other, both))
    assert mean == pytest.approx((one + two) / 2, rel=1e-4)


def test_a_search_reports_that_it_truncates_the_text(folder):
    predictor = vit.load(save_translator(folder / "cutting_search", extra={"cuts": True}), device="cpu")
    with pytest.warns(UserWarning, match="line 7 is longer than the model's limit of 9 tokens and was truncated"):
        predictor.search(LONG, name="line 7")


def test_a_search_reads_what_a_prediction_reads(translator):
    assert translator.search(Line(b"ab", 1)).generated == translator.search("ab").generated
    with pytest.raises(TypeError, match="the source is int, but the model reads texts; pass a str"):
        translator.search(5)


def test_every_character_of_a_prefix_is_one_of_the_tokenizer(folder):
    predictor = vit.load(save_translator(folder / "prefix"), device="cpu")
    predictor.tokenizer = CharTokenizer("abc", lower=True)
    assert predictor.changed_settings(prefix="Ab").prefix == (5, 6)
    with pytest.raises(ValueError, match="prefix='aüb' has 'ü', which the tokenizer of the model lacks"):
        predictor.changed_settings(prefix="aüb")


@pytest.mark.parametrize(("prefix", "warned"), [("a dog ", True), ("a dog", False)])
def test_white_space_at_the_end_of_a_prefix_of_byte_pairs_is_reported(tmp_path, recwarn, prefix, warned):
    """The ids of such a prefix do not begin those of any text that continues with a known word, as in GPT-2."""
    pairs = BPETokenizer.train(["a dog sees a dog", "a dog runs", "dogs run"] * 2, vocab_size=280)
    path = save_translator(tmp_path / "model", vocab_size=280, source_vocab=261, tied="target", target_tokenizer=pairs)
    settings = vit.load(path, device="cpu").changed_settings(prefix=prefix)
    library = Tokenizer.from_str(json.dumps(tokenizer_files(pairs, 9)["tokenizer.json"]))
    whole = library.encode(prefix.strip() + " runs", add_special_tokens=False).ids
    assert (tuple(whole[: len(settings.prefix)]) != settings.prefix) == warned
    assert [str(each.message).split(", which")[0] for each in recwarn] == \
        [f"prefix={prefix!r} ends with white space"] * warned


def test_images_have_the_names_that_an_image_classifier_gives_them(image_to_text, tmp_path):
    for i in range(3):
        pixels = np.random.default_rng(i).integers(0, 255, (8, 12 + 4 * i), np.uint8)
        Image.fromarray(pixels).save(tmp_path / f"{i}.png")
    (tmp_path / "1.png").write_bytes(b"no image")
    predictions = list(image_to_text.stream(tmp_path))  # a folder is opened
    assert [isinstance(prediction, BadImage) for prediction in predictions] == [False, True, False]
    assert [getattr(each, "source", "") or each.name for each in predictions] == sorted(map(str, tmp_path.iterdir()))
    with pytest.raises(BadImage, match=r"1\.png: cannot be opened"):
        image_to_text.predict(tmp_path)
    near(image_to_text.predict(str(tmp_path / "0.png")), predictions[:1])
    assert image_to_text.predict([pixels])[0].source == "image 0"
    with pytest.raises(TypeError, match="int is not an image"):
        image_to_text.predict([5])


def test_former_names_remain():
    from vit import evaluation, inference

    assert inference.Writer is inference.Seq2SeqPredictor and inference.Written is inference.GeneratedText
    assert inference.LabelSetPredictor is inference.MultiLabelPredictor and inference.Bad is inference.BadInput
    assert inference.LabelSet is inference.MultiLabelPrediction
    assert evaluation.evaluate_label_sets is evaluation.evaluate_multi_label
    assert evaluation.LabelSetEvaluation is evaluation.MultiLabelEvaluation


def test_the_models_of_an_ensemble_read_the_same_sources(folder, translator, image_to_text):
    path, images = translator.bundle.path, image_to_text.bundle.path
    lower = save_translator(folder / "lower", source_tokenizer=ByteTokenizer(lower=True))
    with pytest.raises(ValueError, match="lower and .*translator have different source tokenizers"):
        vit.load(path, "cpu", ensemble=[lower])
    with pytest.raises(ValueError, match="image_to_text reads images, but .*translator reads texts"):
        vit.load(path, "cpu", ensemble=[images])
    darker = save_image_to_text(folder / "darker", mean=(0.1,))
    with pytest.raises(ValueError, match=r"different preprocessing: mean is \[0.1\] and \[0.5\]"):
        vit.load(images, "cpu", ensemble=[darker])


def test_the_lowest_limit_of_an_ensemble_holds(folder, translator, image_to_text):
    short = save_translator(folder / "short", max_len=5)
    ensemble = vit.load(translator.bundle.path, "cpu", ensemble=[short])
    found = list(ensemble.stream(["1234", "12345"]))
    assert found[0].source == "1234"
    assert str(found[1]).startswith("text 2: has 6 tokens, but the model reads at most 5")
    narrow = save_image_to_text(folder / "narrow", max_width=16)
    ensemble = vit.load(image_to_text.bundle.path, "cpu", ensemble=[narrow])
    assert ensemble.encode(np.zeros((8, 24), np.uint8), "wide").shape == (1, 8, 16)


def test_white_space_around_a_text_is_removed_as_in_training(folder):
    """Bundles that do not record the rule read texts as they are."""
    predictor = vit.load(save_translator(folder / "strip", extra={"strip": True}), device="cpu")
    plain, padded = predictor.predict(["ab", "\t ab\u00a0 "])
    assert (padded.texts, padded.scores) == (plain.texts, pytest.approx(plain.scores, abs=1e-5))
    assert predictor.search(" ab ").generated.texts == plain.texts
    assert not isinstance(next(predictor.stream(["  12345678  "])), BadText)  # 8 bytes and EOS
    older = vit.load(save_translator(folder / "older"), device="cpu")
    assert older.encode(" ab", "it").tolist() != older.encode("ab", "it").tolist()
    vit.load(folder / "strip", ensemble=[folder / "older"])
    save_translator(folder / "as they are", extra={"strip": False})
    with pytest.raises(ValueError, match=r"was trained with data\.strip=true and the other was not"):
        vit.load(folder / "strip", ensemble=[folder / "as they are"])


@pytest.mark.parametrize("text", ["", " \t"])
def test_the_search_of_an_empty_text_is_its_prediction(translator, text):
    search = translator.search(text)
    assert [search.generated] == translator.predict([text])
    assert len(search.tree.nodes) == len(search.tokens) == 1 and search.nodes == [0] and search.chosen == {0}
    with pytest.raises(ValueError, match="is for models of images"):
        translator.search(text, translator.changed_settings(tta=3))
