"""init_from for models of texts: tokenizer, architecture and weights are loaded; what does not fit is an error."""

import shutil
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file

import vit
from tests.slow_values import quick_and_slow
from vit.bundle import load_bundle, save_bundle
from vit.cli import main
from vit.data import Preprocessing, train_tokenizer
from vit.run.config.composing import ConfigError, compose, resolve
from vit.run.jobs import build_job
from vit.run.parts.devices import find_devices
from vit.run.parts.tokenizers import build_tokenizers, check_stated
from vit.run.records.reading import read_config

SMALL = ["recipe.epochs=1", "precision=32-true", "logger=csv", "report=false", "model.dim=16", "model.num_heads=2",
         "model.depth=1"]
FIXED = ["recipe.optimizer.lr=0.0", "recipe.ema=null"]  # constant weights: the result has those of init_from
SMALL_DATA = ["data.train=64", "data.val=16", "data.test=16", "recipe.batch_size=32", "model.decoder_depth=1"]
OVERRIDES = {
    "translator": ["data=spelled_numbers", "data.limit=1000", *SMALL, *SMALL_DATA, "data.tokenizer.kind=bpe"],
    "reader": ["data=digit_strips", "data.digits=2", *SMALL, *SMALL_DATA],
    "pretrained": ["data=corpus", *SMALL, "recipe.batch_size=1000"],
}


def table(path, vocabulary):
    """A CSV of two classes, in 80 texts of these words."""
    rows = [f"{vocabulary[i % 5]} {vocabulary[i * 7 % 5]} {vocabulary[i % 3]},{'ab'[i % 2]}" for i in range(80)]
    path.write_text("\n".join(["text,label", *rows]) + "\n")
    return ["data=text_table", f"data.path={path}", "data.tokenizer.vocab_size=264", *SMALL, "recipe.batch_size=16"]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A run of each kind of model, by its name."""
    folder = tmp_path_factory.mktemp("runs")
    overrides = OVERRIDES | {"classifier": table(folder / "texts.csv", ["alpha", "beta", "gamma", "delta", "omega"])}
    return {name: vit.train([*each, f"run_dir={folder / name}"]).path for name, each in overrides.items()}


@pytest.fixture
def others(tmp_path):
    """Texts of other words, of which a tokenizer would learn other tokens."""
    return table(tmp_path / "others.csv", ["onion", "garlic", "pepper", "salted", "rosemary"])


@pytest.fixture(scope="module")
def digits(tmp_path_factory):
    path = tmp_path_factory.mktemp("runs") / "digits"
    return vit.train([*SMALL, "data.patch_size=4", "model.dim=32", f"run_dir={path}"]).path


def weights(folder):
    return load_file(folder / "model" / "model.safetensors")


def tokenizers(folder):
    return {side: tokenizer.to_dict() for side, tokenizer in load_bundle(folder).tokenizers.items()}


@pytest.mark.slow
def test_a_checkpoint_is_loaded_with_the_tokenizer_of_its_embeddings(runs, others, tmp_path):
    learnt = vit.train([*others, f"run_dir={tmp_path / 'learnt'}"]).path
    assert tokenizers(learnt) != tokenizers(runs["classifier"])
    checkpoint = runs["classifier"] / "checkpoints" / "last.ckpt"
    run = vit.train([*others, *FIXED, f"init_from={checkpoint}", f"run_dir={tmp_path / 'run'}"]).path
    assert tokenizers(run) == tokenizers(runs["classifier"])
    name = "embed.token.weight"
    assert torch.equal(weights(run)[name], weights(runs["classifier"])[name])


def test_a_resumed_run_has_its_tokenizer_from_its_own_checkpoint(runs, others, tmp_path, caplog):
    shutil.copytree(runs["classifier"], tmp_path / "source")
    run = vit.train([*others, *FIXED, f"init_from={tmp_path / 'source'}", "data.tokenizer.min_frequency=2",
                     f"run_dir={tmp_path / 'run'}"]).path
    shutil.rmtree(tmp_path / "source")
    config, checkpoint = read_config(run), run / "checkpoints" / "last.ckpt"
    caplog.clear()
    resumed = build_job(config, find_devices(config["trainer"]), checkpoint)
    assert resumed.tokenizer.to_dict() == tokenizers(run)["source"] and "has no effect" not in caplog.text


def test_a_checkpoint_without_tokenizer_does_not_give_its_embeddings(runs, others, tmp_path):
    content = torch.load(runs["classifier"] / "checkpoints" / "last.ckpt", weights_only=True)
    del content["config"]["tokenizers"]
    torch.save(content, tmp_path / "old.ckpt")
    overrides = [*others, f"init_from={tmp_path / 'old.ckpt'}"]
    with pytest.raises(ConfigError, match=r"old.ckpt has embeddings of 264 tokens but no tokenizer"):
        vit.train([*overrides, f"run_dir={tmp_path / 'run'}"])
    run = vit.train([*overrides, "data.tokenizer.vocab_size=263", f"run_dir={tmp_path / 'run'}"])
    assert "new     embed.token.weight  (264, 16) -> (263, 16)" in (run.path / "log.txt").read_text()


@pytest.mark.parametrize("kind", ["classifier", "translator"])
def test_weights_alone_do_not_give_their_embeddings(runs, tmp_path, kind):
    """The same number of tokens, of which nothing states that they are the same tokens."""
    torch.save(load_bundle(runs[kind]).model.state_dict(), tmp_path / "weights.pth")
    overrides = [each for each in read_config(runs[kind])["overrides"] if "run_dir" not in each]
    with pytest.raises(ConfigError, match=r"weights.pth has embeddings of \d+ tokens but no tokenizer"):
        vit.train([*overrides, f"init_from={tmp_path / 'weights.pth'}", f"run_dir={tmp_path / 'run'}"])
    assert not (tmp_path / "run").exists()


def test_bytes_are_the_same_tokens_in_any_weights(tmp_path):
    overrides = [each for each in OVERRIDES["translator"] if "tokenizer" not in each]
    first = vit.train([*overrides, f"run_dir={tmp_path / 'first'}"]).path
    torch.save(load_bundle(first).model.state_dict(), tmp_path / "weights.pth")
    run = vit.train([*overrides, *FIXED, f"init_from={tmp_path / 'weights.pth'}", f"run_dir={tmp_path / 'run'}"]).path
    name = "embed.token.weight"
    assert torch.equal(weights(run)[name], weights(first)[name])


@pytest.mark.parametrize("kind", ["classifier", "pretrained", "translator"])
def test_word_vectors_that_loaded_embeddings_would_replace_are_an_error(runs, tmp_path, kind):
    (tmp_path / "vectors.txt").write_text(f"a {' '.join(['0.5'] * 16)}\n")
    overrides = [each for each in read_config(runs[kind])["overrides"] if "run_dir" not in each]
    with pytest.raises(ConfigError, match=r"model.vectors=.*vectors.txt has no effect, because the embeddings of"):
        vit.train([*overrides, f"model.vectors={tmp_path / 'vectors.txt'}", f"init_from={runs[kind]}",
                   f"run_dir={tmp_path / 'run'}"])


def test_word_vectors_initialize_embeddings_that_init_from_does_not_have(runs, others, tmp_path):
    (tmp_path / "vectors.txt").write_text(f"a {' '.join(['0.5'] * 16)}\n")
    torch.save(load_bundle(runs["classifier"]).model.state_dict(), tmp_path / "weights.pth")
    run = vit.train([*others, *FIXED, "data.tokenizer.vocab_size=263", f"model.vectors={tmp_path / 'vectors.txt'}",
                     f"init_from={tmp_path / 'weights.pth'}", f"run_dir={tmp_path / 'run'}"]).path
    (a,) = load_bundle(run).tokenizers["source"].encode("a")
    assert weights(run)["embed.token.weight"][a].tolist() == [0.5] * 16


@pytest.mark.parametrize("kind", OVERRIDES)
@pytest.mark.parametrize("name", quick_and_slow(["best.ckpt", "last.ckpt"], "best.ckpt"))
def test_training_begins_with_a_checkpoint_of_any_kind(runs, tmp_path, kind, name):
    checkpoint = runs[kind] / "checkpoints" / name
    run = vit.train([*OVERRIDES[kind], *FIXED, f"init_from={checkpoint}", f"run_dir={tmp_path / 'run'}"]).path
    before, after = weights(runs[kind]), weights(run)
    assert before.keys() == after.keys() and all(torch.equal(before[each], after[each]) for each in before)
    assert tokenizers(run) == tokenizers(runs[kind]) and "0 new" in (run / "log.txt").read_text()


@pytest.mark.parametrize("kind", [*OVERRIDES, "classifier"])
def test_a_checkpoint_loads_as_a_model_that_predicts_nothing(runs, kind, tmp_path, capsys):
    checkpoint = runs[kind] / "checkpoints" / "last.ckpt"
    model, report = vit.import_weights(checkpoint)
    assert model.config == load_bundle(runs[kind]).model.config and {row.status for row in report.rows} == {"loaded"}
    (tmp_path / "lines.txt").write_text("one\n")
    for command in (["predict", checkpoint, tmp_path / "lines.txt"], ["evaluate", checkpoint],
                    ["attention", checkpoint, "one", "--output", tmp_path / "maps.html"]):
        assert main([str(override) for override in command]) == 1
        error = capsys.readouterr().err
        assert f"model of kind {model.config.kind}: it needs the tokenizers in its run folder" in error, error
        assert error.count("\n") == 1


def test_an_image_to_text_model_has_the_architecture_of_its_classifier(digits, tmp_path):
    overrides = [override for override in OVERRIDES["reader"] if not override.startswith("model.")]
    run = vit.train([*overrides, "model.decoder_depth=2", *FIXED, f"init_from={digits}", f"run_dir={tmp_path}"]).path
    ours, theirs = (load_bundle(path).model.config for path in (run, digits))
    for key in ("dim", "depth", "num_heads", "norm", "mlp", "mlp_ratio", "activation", "positions", "stem", "pre_norm"):
        assert getattr(ours, key) == getattr(theirs, key)
    assert ours.decoder_depth == 2 and ours.dropout == 0.1 and ours.positions == "learned" and not ours.scale_embed
    model, before = load_bundle(run).model.state_dict(), load_bundle(digits).model.state_dict()
    same = [name for name in before if not name.startswith("head.") and name != "embed.pos_embed"]
    assert all(torch.equal(model[name], before[name]) for name in same)
    log = (run / "log.txt").read_text()
    assert f"{len(same)} loaded, 1 resized, 0 new, 2 unused" in log and "grid of 2x2 to 2x10 patches" in log


def test_overrides_change_the_parts_around_the_blocks_of_a_classifier(digits, tmp_path):
    overrides = [override for override in OVERRIDES["reader"] if not override.startswith("model.")]
    overrides += [f"init_from={digits}", f"run_dir={tmp_path / 'run'}"]
    for override in ("model.mlp=swiglu", "model.norm=rms", "model.dim=64"):
        with pytest.raises(ConfigError, match=rf"{override}, but the classifier of init_from=.* leave it out"):
            vit.train([*overrides, override])
    run = vit.train([*overrides, "model.stem=masked_conv", "model.mlp=mlp", "model.norm=null",
                     "model.rotary_pairs=halves"])  # a former name
    assert load_bundle(run.path).model.config.stem == "masked_conv"


def test_a_classifier_without_a_matching_decoder_is_an_error(runs, digits, tmp_path):
    relative = [*SMALL, "data.patch_size=4", "model.positions=relative", f"run_dir={tmp_path / 'relative'}"]
    source = vit.train(relative).path
    timm = save_bundle(tmp_path / "timm", vit.create_model("timm:resnet10t", num_classes=2), [*"ab"],
                       Preprocessing((32, 32)))
    size = {"dim": 16, "num_heads": 2, "depth": 1, "image_size": 8, "patch_size": 4, "num_classes": 2}
    parallel = save_bundle(tmp_path / "parallel", vit.create_model("vit_micro", block="parallel", **size), [*"ab"],
                           Preprocessing((8, 8)))
    torch.save(load_bundle(digits).model.state_dict(), tmp_path / "weights.pth")
    other = save_bundle(tmp_path / "other", vit.create_model("vit_micro", norm_eps=1e-5, **size), [*"ab"],
                        Preprocessing((8, 8)))
    for start, more, expected in ((source, ["model.positions=learned"], ("learned", 1e-6)),
                                  (other, [], ("learned", 1e-5))):
        overrides = [*OVERRIDES["reader"], f"init_from={start}", *more]
        config = resolve(compose(overrides)) | {"overrides": overrides}
        made = build_job(config, find_devices(config["trainer"])).model.config
        assert (made.positions, made.norm_eps) == expected
    for start, message in (
        (parallel, "is a classifier with block=parallel, but a decoder has one of serial, res_post_norm"),
        (timm, "is a network that only timm computes, and an image-to-text model cannot start from it"),
        (tmp_path / "weights.pth", "weights.pth: the activation cannot be inferred from tensors"),
        (source, "is a classifier with positions=relative, but a decoder has one of learned, "),
        (runs["classifier"], "a model of kind text_classifier does not classify images"),
    ):
        with pytest.raises(ConfigError, match=message):
            vit.train([*OVERRIDES["reader"], f"init_from={start}", f"run_dir={tmp_path / 'run'}"])
    for start in (runs["pretrained"], digits):
        with pytest.raises(ConfigError, match="is not a seq2seq model, but a translator can start only from a seq2seq"):
            vit.train([*OVERRIDES["translator"], f"init_from={start}", f"run_dir={tmp_path / 'run'}"])


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("data.tokenizer.kind=byte", "has kind=bpe"),
        ("data.tokenizer.lower=true", "has lower=false"),
        ("data.tokenizer.vocab_size=262", "has vocab_size=264"),
    ],
)
def test_overrides_must_match_a_loaded_tokenizer(runs, others, tmp_path, override, message):
    with pytest.raises(ConfigError, match=rf"{override}, but the tokenizer of .*, {message}; leave the key"):
        vit.train([*others, override, f"init_from={runs['classifier']}", f"run_dir={tmp_path / 'run'}"])


def test_options_of_the_training_of_tokenizers_have_no_effect_on_loaded_ones(runs, tmp_path):
    base = [*OVERRIDES["translator"], f"init_from={runs['translator']}", "data.tokenizer.min_frequency=3"]
    with pytest.raises(ConfigError, match="data.tokenizer.shared=false, but init_from=.* has one tokenizer for"):
        vit.train([*base, "data.tokenizer.shared=false", f"run_dir={tmp_path / 'run'}"])
    run = vit.train([*base, "data.tokenizer.shared=true", f"run_dir={tmp_path / 'run'}"]).path
    assert "data.tokenizer.min_frequency=3 has no effect: the tokenizer of init_from=" in (run / "log.txt").read_text()
    own = [*OVERRIDES["translator"], "data.tokenizer.shared=false", "model.tied=target"]
    two = vit.train([*own, f"run_dir={tmp_path / 'two'}"]).path
    assert len({str(each) for each in tokenizers(two).values()}) == 2
    again = vit.train([*own[:-2], "model.tied=target", f"init_from={two}", f"run_dir={tmp_path / 'again'}"]).path
    assert tokenizers(again) == tokenizers(two)  # also where data.tokenizer.shared is true by default
    with pytest.raises(ConfigError, match="data.tokenizer.shared=true, but init_from=.* has two tokenizers for"):
        vit.train([*base[:-2], f"init_from={two}", "data.tokenizer.shared=true", f"run_dir={tmp_path / 'other'}"])


def test_two_tokenizers_do_not_share_embeddings(monkeypatch, tmp_path):
    """Also of the same size, where the shapes fit. Weights that were trained so are still loaded, with a warning."""
    two = [*OVERRIDES["translator"], "data.tokenizer.shared=false", "data.tokenizer.vocab_size=270", "model.tied=all"]
    with pytest.raises(ConfigError, match="model.tied=all shares .* set model.tied=target or data.tokenizer.shared=t"):
        vit.train([*two, f"run_dir={tmp_path / 'refused'}"])
    with monkeypatch.context() as earlier:
        earlier.setattr("vit.run.jobs.seq2seq.check_shared_embeddings", lambda *_: None)
        first = vit.train([*two, f"run_dir={tmp_path / 'first'}"]).path
    assert {each["kind"] for each in tokenizers(first).values()} == {"bpe"}
    again = vit.train([*OVERRIDES["translator"], f"init_from={first}", f"run_dir={tmp_path / 'again'}"]).path
    assert "the loaded weights were trained so" in (again / "log.txt").read_text()
    two[-1:] = ["data.tokenizer.kind=byte"]  # bytes are the same tokens on both sides
    vit.train([*(each for each in two if "kind=bpe" not in each), f"run_dir={tmp_path / 'bytes'}"])


def test_a_model_of_images_does_not_read_texts(digits, others, tmp_path):
    for overrides in (others, OVERRIDES["pretrained"]):
        with pytest.raises(ConfigError, match="init_from=.*: a model of kind vit does not read texts"):
            vit.train([*overrides, f"init_from={digits}", f"run_dir={tmp_path / 'run'}"])


@pytest.mark.parametrize("kind", ["reader", "pretrained"])
def test_a_model_of_texts_does_not_classify_images(runs, tmp_path, kind):
    """Also an OCR model, which has a preprocessing of images, but of lines."""
    name = {"reader": "encoder_decoder", "pretrained": "masked_text"}[kind]
    for model in ([], ["model=micro"]):
        with pytest.raises(ConfigError, match=f"init_from=.*: a model of kind {name} does not classify images; use"):
            vit.train([*model, *SMALL, f"init_from={runs[kind]}", f"run_dir={tmp_path / 'run'}"])


def test_a_text_classifier_has_the_encoder_of_a_translator(runs, others, tmp_path):
    overrides = [each for each in others if "tokenizer" not in each and not each.startswith("model.")]
    run = vit.train([*overrides, *FIXED, f"init_from={runs['translator']}", f"run_dir={tmp_path / 'run'}"]).path
    before, after = weights(runs["translator"]), weights(run)
    same = [name for name in after if name in before]
    assert len(same) > 5 and all(torch.equal(before[name], after[name]) for name in same)
    assert {name.partition(".")[0] for name in same} == {"embed", "encoder"}
    assert tokenizers(run)["source"] == tokenizers(runs["translator"])["source"]


def test_another_architecture_than_that_of_init_from_is_a_warning(runs, others, tmp_path):
    sizes = ("model.dim", "model.num_heads", "model.depth")
    overrides = [each for each in others if not each.startswith(sizes)]
    logs = []
    for name, more in (("one", ["model=text"]), ("two", ["model=text", *SMALL[-3:-1], "model.depth=2"]), ("three", [])):
        run = vit.train([*overrides, *more, *FIXED, f"init_from={runs['classifier']}", f"run_dir={tmp_path / name}"])
        assert load_bundle(run.path).model.config.dim == 16
        logs.append((run.path / "log.txt").read_text())
    assert ("model=text: the architecture is that of init_from=" in logs[0]
            and "with depth=1 instead of 3, dim=16 instead of 128, num_heads=2 instead of 4; keys such as "
            "model.depth=3 change it" in logs[0])
    assert not any("the architecture is that of" in log for log in logs[1:])


def test_the_tokenizer_of_one_side_is_that_of_both_where_they_share_it(caplog):
    tokenizer = train_tokenizer("bpe", ["eins one", "zwei two"])
    initial = SimpleNamespace(tokenizers={"target": tokenizer})
    texts = {"source": ["eins", "zwei"], "target": ["one", "two"]}
    for shared in (True, False):
        config = {"data": {"tokenizer": {"kind": "bpe", "shared": shared, "min_frequency": 1}}, "init_from": "reader",
                  "overrides": [f"data.tokenizer.shared={shared}", "data.tokenizer.min_frequency=1"]}
        caplog.clear()
        found = build_tokenizers(config, texts, initial, None)
        assert found["target"] is tokenizer and (found["source"] is tokenizer) is shared
        assert ("min_frequency=1 has no effect" in caplog.text) is shared
    both = SimpleNamespace(tokenizers={side: train_tokenizer("byte", []) for side in texts})
    config["data"]["tokenizer"] |= {"kind": "byte", "shared": False}
    assert build_tokenizers(config, texts, both, None) == both.tokenizers  # equal bytes are no contradiction


@pytest.mark.parametrize(("kind", "shared", "stages"), [
    ("bpe", True, [("words of the texts", 60, 60), ("merges of the tokenizer", 0, None)]),
    ("bpe", False, 2 * [("words of the texts", 30, 30), ("merges of the tokenizer", 0, None)]),
    ("char", True, [("words of the texts", 60, 60)]),
    ("byte", True, []),
])
def test_the_training_of_tokenizers_is_reported(kind, shared, stages):
    """That of 300,000 sentence pairs took 13 s without a sign of life."""
    texts = {"source": ["eins zwei", "zwei drei"] * 15, "target": ["one two", "two three"] * 15}
    node = {"kind": kind, "vocab_size": 300, "min_frequency": 2, "lower": False, "shared": shared}
    config, seen = {"data": {"tokenizer": node}, "overrides": [], "init_from": None}, []
    found = build_tokenizers(config, texts, None, None, lambda *each: seen.append(each))
    assert [each for each in seen if each[1] in (0, each[2])] == stages
    plain = build_tokenizers(config, texts, None, None)
    assert {side: each.to_dict() for side, each in found.items()} == {
        side: each.to_dict() for side, each in plain.items()}


def test_a_size_of_the_vocabulary_does_not_contradict_bytes():
    config = {"data": {"tokenizer": {"vocab_size": 100}}, "overrides": ["data.tokenizer.vocab_size=100"]}
    check_stated(config, {"source": train_tokenizer("byte", [])}, "resume=run")
    with pytest.raises(ConfigError, match="data.tokenizer.vocab_size=100, but the tokenizer of resume=run, whose"):
        check_stated(config, {"source": train_tokenizer("bpe", ["one two"])}, "resume=run")


def test_a_translator_that_starts_from_an_image_to_text_model_has_its_tokenizer(runs, tmp_path):
    """The tokenizer of bytes is that of init_from; one trained on the texts would have other ids."""
    overrides = [override for override in OVERRIDES["translator"] if "tokenizer" not in override]
    overrides += [f"init_from={runs['reader']}", "model.tied=target", f"run_dir={tmp_path / 'run'}"]
    run = vit.train(overrides).path
    assert tokenizers(run)["target"] == tokenizers(run)["source"] == tokenizers(runs["reader"])["target"]
    assert "new     target_embed" not in (run / "log.txt").read_text()
