"""Runs on texts, from overrides to a model in use: translation, image to text, classification, pre-training.
"""

import csv
import json
import os
import re
import signal
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import yaml
from PIL import Image
from safetensors.torch import load_file

import vit
from tests.run.conftest import run, table, write_questions, write_stories
from vit.bundle import load_bundle
from vit.cli import main
from vit.data import DataError, PairSplit, TextSplit
from vit.generation import Generation
from vit.run.config.composing import ConfigError, compose, resolve
from vit.run.jobs import build_job
from vit.run.jobs.masked_texts import MaskedTextJob
from vit.run.jobs.seq2seq import Seq2SeqJob, train_loader, val_loader
from vit.run.jobs.texts import TextClassificationJob
from vit.run.parts.devices import find_devices
from vit.run.records.reading import read_config
from vit.tasks import Seq2Seq

QUICK = ["recipe.epochs=2", "recipe.batch_size=32", "precision=32-true", "logger=csv", "report=false"]
QUICK += ["model.dim=16", "model.num_heads=2"]
SHORT = ["data.train=200", "data.val=20", "data.test=24"]
TRANSLATION = ["data=spelled_numbers", "data.limit=1000", *SHORT, *QUICK, "model.depth=1", "model.decoder_depth=1"]
STRIPS = ["data=digit_strips", "data.digits=2", *SHORT, *QUICK, "model.depth=1", "model.decoder_depth=1"]
STORIES = ["data=corpus", *QUICK, "model.depth=1", "recipe.batch_size=16", "recipe.epochs=1",
           "recipe.optimizer.lr=0.02"]


@pytest.fixture(scope="module")
def translation(tmp_path_factory):
    return vit.train([*TRANSLATION, f"run_dir={tmp_path_factory.mktemp('runs') / 'spelled'}"])


@pytest.fixture(scope="module")
def strips(tmp_path_factory):
    return vit.train([*STRIPS, f"run_dir={tmp_path_factory.mktemp('runs') / 'strips'}"])


def test_files_of_a_translation_run(translation):
    assert {"config.yaml", "metrics.csv", "metrics.json", "predictions.csv", "curves.png", "log.txt"} <= {
        file.name for file in translation.path.iterdir()
    }
    metrics = json.loads((translation.path / "metrics.json").read_text())
    for name in ("exact_match", "cer", "wer", "bleu", "chrf", "loss", "perplexity", "token_accuracy"):
        assert f"test/{name}" in metrics
    assert "tok:13a" in metrics["test/bleu_signature"]
    rows = table(translation.path / "predictions.csv")
    assert len(rows) == 24 and list(rows[0]) == ["name", "source", "reference", "generated", "right", "cer", "score",
                                                   "difference"]
    assert {"val/loss", "val/exact_match", "val/cer", "val/bleu"} <= set(
        table(translation.path / "metrics.csv")[0]
    )


def test_the_bundle_holds_tokenizers_and_settings_and_a_tied_matrix_once(translation):
    bundle = load_bundle(translation.path)
    assert bundle.tokenizers["target"].decode(bundle.tokenizers["source"].encode("12")) == "12"
    assert bundle.extra["generation"]["beam"] == 5
    assert bundle.extra["generation"]["length_penalty_form"] == "power"
    assert "target_embed.token.weight" not in load_file(translation.path / "model" / "model.safetensors")
    assert bundle.model.target_embed.token.weight is bundle.model.embed.token.weight


def test_evaluate_reproduces_the_numbers_of_the_run_to_the_last_digit(translation, tmp_path, capsys):
    assert main(["evaluate", str(translation.path), "--json", str(tmp_path / "again.json")]) == 0
    again = json.loads((tmp_path / "again.json").read_text())
    assert again.pop("pairs") == 24 and again.pop("unreadable") == []
    for name, value in again.items():
        assert translation.metrics[name] == value
    assert "exact_match" in capsys.readouterr().out


def test_texts_are_evaluated_with_the_stated_generation_settings(translation, tmp_path):
    overrides = ["evaluate", str(translation.path), "task.decode.beam=1", "task.decode.max_len=3",
                 "task.decode.min_len=2", "--output", str(tmp_path)]
    assert main(overrides) == 0
    rows = table(tmp_path / "predictions.csv")
    sources, predicted = [row["source"] for row in rows], [row["generated"] for row in rows]
    translator = vit.load(translation.path)
    shorter = translator.predict(sources, replace(translator.settings, beam=1, max_len=3, min_len=2))
    assert predicted == [each.text for each in shorter] != [each.text for each in translator.predict(sources)]


def test_an_override_without_effect_is_an_error(translation, capsys):
    assert main(["evaluate", str(translation.path), "recipe.batch_size=4"]) == 2
    assert "recipe.batch_size=4 has no effect" in capsys.readouterr().err
    assert main(["evaluate", str(translation.path), "task.decode.bean=4"]) == 2
    assert "did you mean task.decode.beam?" in capsys.readouterr().err
    assert main(["evaluate", str(translation.path), "task.decode.beam=0"]) == 2
    assert "task.decode.beam=0: must be a whole number, 1 or more" in capsys.readouterr().err
    assert main(["audit", "data=digits", "seed=3"]) == 2
    assert "this command reads data=, experiment= and data.*" in capsys.readouterr().err


def test_predictions_are_in_order_and_do_not_depend_on_the_batch(translation, tmp_path, capfdbinary):
    lines = ["7", "", "123", "45"]
    (tmp_path / "lines.txt").write_text("\n".join(lines) + "\n")
    assert main(["predict", str(translation.path), str(tmp_path / "lines.txt")]) == 0
    together = capfdbinary.readouterr().out.decode().split("\n")[:-1]
    translator = vit.load(translation.path, device="cpu")
    assert together == [translator.predict([line])[0].text for line in lines] and together[1] == ""


def test_several_predictions_with_scores(translation, tmp_path):
    (tmp_path / "lines.txt").write_text("7\n12\n")
    output = tmp_path / "predictions.csv"
    assert main(["predict", str(translation.path), str(tmp_path / "lines.txt"), "-k", "3", "-o", str(output)]) == 0
    rows = table(output)
    assert [row["source"] for row in rows] == ["7", "12"]
    for row in rows:
        scores = [float(row[name]) for name in ("score", "score_2", "score_3")]
        assert scores == sorted(scores, reverse=True)


def test_an_ensemble_of_a_model_with_itself_is_the_model(translation, tmp_path, capfdbinary):
    (tmp_path / "lines.txt").write_text("7\n12\n")
    printed = []
    for more in ([], ["--ensemble", str(translation.path)]):
        assert main(["predict", str(translation.path), str(tmp_path / "lines.txt"), *more]) == 0
        printed.append(capfdbinary.readouterr().out)
    assert printed[0] == printed[1] and printed[0].count(b"\n") == 2
    other = vit.train([*TRANSLATION, "data.tokenizer.lower=true", "recipe.epochs=1", f"run_dir={tmp_path / 'other'}"])
    with pytest.raises(ValueError, match="have different target tokenizers"):
        vit.load(translation.path, ensemble=[other.path])


def test_a_line_that_is_too_long_is_named(translation):
    translator = vit.load(translation.path, device="cpu")
    with pytest.raises(ValueError, match=r"text 2: has \d+ tokens, but the model reads at most 16"):
        translator.predict(["1", "1" * 500])


def test_images_to_texts(strips, capfdbinary):
    assert min(Image.open(strips.path / "mistakes.png").size) > 100
    assert main(["predict", str(strips.path), str(strips.path / "samples")]) == 0
    rows = list(csv.DictReader(capfdbinary.readouterr().out.decode().splitlines()))
    assert len(rows) == 8 and all(row["file"].endswith(".png") for row in rows)
    images = sorted((strips.path / "samples").glob("*.png"))
    reader = vit.load(strips.path, device="cpu")
    wide = Image.open(images[0]).resize((48, 8))
    predicted = reader.predict([*images[:2], wide])
    assert [prediction.text for prediction in predicted[:2]] == [row["text"] for row in rows[:2]]
    assert reader.predict([images[0]])[0].text == predicted[0].text  # beside a wider one and alone


def test_an_image_to_text_model_starts_from_a_classifier(tmp_path, capsys):
    same = ["model.dim=16", "model.num_heads=2", "model.depth=1", "logger=csv", "report=false", "precision=32-true"]
    digits = vit.train(["recipe.epochs=1", *same, f"run_dir={tmp_path / 'digits'}"])
    plain = ["model.stem=linear", "model.mlp=mlp", "model.mlp_ratio=4.0", "model.norm=layer", "model.positions=learned"]
    vit.train([*STRIPS, *plain, "recipe.epochs=1", f"init_from={digits.path}", f"run_dir={tmp_path / 'reader'}"])
    log = (tmp_path / "reader" / "log.txt").read_text()
    assert "weights from" in log and "1 resized" in log and "0 new" in log


def test_stopped_and_resumed_a_run_ends_with_the_same_bits(translation, tmp_path, monkeypatch):
    step, seen = Seq2Seq.training_loss, []

    def stopping(task, batch, *counters):
        seen.append(1)
        if len(seen) == 9:
            os.kill(os.getpid(), signal.SIGINT)
        return step(task, batch, *counters)

    with monkeypatch.context() as patch:
        patch.setattr(Seq2Seq, "training_loss", stopping)
        with pytest.raises(BaseException) as stopped:
            vit.train([*TRANSLATION, f"run_dir={tmp_path / 'run'}"])
    assert stopped.type.__name__ == "Interrupted"
    vit.train([f"resume={tmp_path / 'run'}"])
    ours, theirs = (load_file(path / "model" / "model.safetensors") for path in (tmp_path / "run", translation.path))
    assert ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)
    assert (tmp_path / "run" / "predictions.csv").read_text() == (translation.path / "predictions.csv").read_text()


@pytest.mark.parametrize("strategy", ["ddp", pytest.param("fsdp", marks=pytest.mark.slow)])
def test_two_processes_have_the_losses_of_one(tmp_path, strategy):
    overrides = [*TRANSLATION, "model.dropout=0.0", "recipe.epochs=3", "recipe.ema=null", "recipe.batch_size=100"]
    alone = vit.train([*overrides, f"run_dir={tmp_path / 'alone'}"])
    two = ["trainer.devices=2", "trainer.accelerator=cpu", f"strategy={strategy}", "run_dir=two"]
    code, _, err = run([*overrides, *two], tmp_path)
    assert code == 0, err
    for name in ("train/loss", "val/loss", "val/perplexity", "train/grad_norm"):
        one, both = ([float(row[name]) for row in table(path / "metrics.csv")]
                     for path in (alone.path, tmp_path / "two"))
        assert both == pytest.approx(one, rel=1e-5) and len(one) == 3
    assert load_bundle(tmp_path / "two").model.state_dict().keys() == load_bundle(alone.path).model.state_dict().keys()


@pytest.fixture(scope="module")
def pretrained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    return vit.train([*STORIES, write_stories(folder), f"run_dir={folder / 'bert'}"])


def test_pre_training_then_classes(pretrained, tmp_path, capfdbinary):
    metrics = pretrained.metrics
    assert metrics["test/loss"] > 0 and 0 < metrics["test/token_accuracy"] <= 1 and "test/pair_accuracy" in metrics
    questions = write_questions(tmp_path / "questions.csv")
    overrides = ["data=text_table", questions, f"init_from={pretrained.path}", "model.pool=pooler", "recipe.epochs=1",
                 "logger=csv", "report=false", "data.max_len=90"]
    tuned = vit.train([*overrides, "precision=32-true", f"run_dir={tmp_path / 'tuned'}"])
    config = load_bundle(tuned.path).model.config
    assert tuned.metrics["test/sentences"] == 100
    assert not config.pre_norm and config.embed_norm and config.norm_eps == 1e-12  # as it was pre-trained
    log = (tuned.path / "log.txt").read_text()
    assert "2 new" in log and "head.weight" in log and "(1, 128, 16) -> (1, 90, 16)  the first 90 positions" in log
    assert config.max_len == read_config(tuned.path)["data"]["max_len"] == 90
    assert main(["evaluate", str(tuned.path), "--json", str(tmp_path / "again.json")]) == 0
    assert json.loads((tmp_path / "again.json").read_text())["test/accuracy"] == tuned.metrics["test/accuracy"]
    capfdbinary.readouterr()
    assert main(["predict", str(tuned.path), str(tuned.path / "samples" / "lines.txt"), "-k", "2"]) == 0
    rows = list(csv.DictReader(capfdbinary.readouterr().out.decode().splitlines()))
    predicted = table(tuned.path / "predictions.csv")
    assert len(rows) == 8 and rows[0]["label"] == predicted[0]["label"]


@pytest.mark.parametrize(("task", "weights"), [("tokens", (2, 0)), ("pairs", (0, 1))])
def test_one_task_of_bert_alone(task, weights, tmp_path, capfdbinary):
    """The losses of validation, test and `vit evaluate` are weighted as in training."""
    overrides = [f"task.token_loss={weights[0]}", f"task.pair_loss={weights[1]}", "model.dropout=0",
                 "model.attention_dropout=0", "recipe.optimizer.weight_decay=0", "recipe.ema=null"]
    run = vit.train([*STORIES, write_stories(tmp_path), *overrides, f"run_dir={tmp_path / 'run'}"])
    found = load_bundle(run.path).model
    unused = found.pair_head.bias if task == "tokens" else found.token_head.bias
    used = found.token_head.bias if task == "tokens" else found.pair_head.bias
    assert not unused.any() and used.any()
    metrics = run.metrics
    assert metrics["test/loss"] == pytest.approx(
        weights[0] * metrics["test/token_loss"] + weights[1] * metrics["test/pair_loss"])
    (row,) = table(run.path / "metrics.csv")
    assert float(row["val/loss"]) == pytest.approx(metrics["test/loss"], rel=0.3) and float(row["val/loss"]) > 0
    assert main(["evaluate", str(run.path), "--json", str(tmp_path / "again.json")]) == 0
    assert json.loads((tmp_path / "again.json").read_text())["test/loss"] == metrics["test/loss"]


def test_a_text_with_line_breaks_is_one_line_of_the_samples(tmp_path):
    splits = {"test": TextSplit(np.zeros(2, np.int64), ["a", "b"], (["a\r\nb", "c\td"], ["e", "f"]))}
    job, folder = SimpleNamespace(source=SimpleNamespace(splits=splits), split="test"), SimpleNamespace(path=tmp_path)
    assert TextClassificationJob.save_samples(job, folder).read_bytes() == b"a  b\te\nc d\tf\n"
    splits["test"] = PairSplit(["x", "y"], ["a", "b"], ["a\nb", "c\td"])
    (tmp_path / "samples" / "lines.txt").unlink()
    (tmp_path / "samples").rmdir()
    assert Seq2SeqJob.save_samples(job, folder).read_bytes() == b"a b\nc\td\n"


def test_long_sentences_and_another_ratio_of_masks_are_reported(tmp_path, capsys):
    stories = write_stories(tmp_path)
    run = vit.train([*STORIES, stories, "data.max_len=8", "data.mask_ratio=0.3", f"run_dir={tmp_path / 'run'}"])
    log = (run.path / "log.txt").read_text()
    assert re.search(r"\d+ sentences of train are longer than data.max_len=8 allows, and their ends are not used", log)
    capsys.readouterr()
    for overrides, reported in (([], False), (["data=corpus", stories], True)):
        assert main(["evaluate", str(run.path), *overrides]) == 0
        assert ("0.15 of the tokens are masked, but 0.3 were in the training" in capsys.readouterr().err) is reported


@pytest.mark.parametrize(("root", "table"), [(None, []), ("stories", ["data.path=TABLE"])])
def test_the_next_command_after_pre_training_on_another_corpus_has_a_table_of_labelled_texts(root, table):
    job = SimpleNamespace(config={"data": {"root": root}})
    command = MaskedTextJob.next_command(job, SimpleNamespace(path="run"), None)
    assert command == ("train", "data=text_table", *table, "init_from=run")


def test_no_task_of_bert_is_an_error(tmp_path):
    with pytest.raises(ConfigError, match="task.token_loss and task.pair_loss are both 0"):
        vit.train([*STORIES, "task.token_loss=0", "task.pair_loss=0", f"run_dir={tmp_path / 'run'}"])
    assert not (tmp_path / "run").exists()


def test_a_masked_language_model_in_use(pretrained, tmp_path, capfdbinary):
    assert main(["evaluate", str(pretrained.path), "--json", str(tmp_path / "again.json")]) == 0
    again = json.loads((tmp_path / "again.json").read_text())
    assert again.pop("pairs") == 300 and len(again) == 6
    assert again == {name: pretrained.metrics[name] for name in again}
    texts = ["ann has [MASK] coins and <mask> pears", "ann has\tshe [MASK] coins"]
    capfdbinary.readouterr()
    assert main(["predict", str(pretrained.path), *texts, "-k", "2"]) == 0
    rows = list(csv.DictReader(capfdbinary.readouterr().out.decode().splitlines()))
    assert [(row["text"], row["mask"]) for row in rows] == [(texts[0], "1"), (texts[0], "2"), (texts[1], "1")]
    found = vit.load(pretrained.path).predict(texts, top_k=2)
    assert [row["word"] for row in rows] == [each.word for text in found for each in text.masks]
    assert [bool(row["next"]) for row in rows] == [False, False, True]
    assert main(["attention", str(pretrained.path), texts[0], "-o", str(tmp_path / "maps.png")]) == 0
    assert main(["predict", str(pretrained.path), "ann has coins [MASK]", "--set", "0.9"]) == 2
    assert b"this model predicts masked words" in capfdbinary.readouterr().err


def test_word_vectors_initialize_the_embeddings(tmp_path):
    lines = [f"has{' 0.5' * 16}", f"who{' -0.5' * 16}", ""]
    (tmp_path / "vectors.txt").write_text("\n".join(lines))
    small = ["model.dim=16", "model.num_heads=2", "model.depth=1", "recipe.epochs=1", "recipe.batch_size=200"]
    small += ["logger=csv", "report=false"]
    vectors = [f"model.vectors={tmp_path / 'vectors.txt'}", "recipe.optimizer.lr=1.0e-9", "recipe.ema=null"]
    questions = ["data=text_table", write_questions(tmp_path / "questions.csv")]
    run = vit.train([*questions, *small, *vectors, "precision=32-true", f"run_dir={tmp_path / 'run'}"])
    bundle = load_bundle(run.path)
    (has,) = bundle.tokenizers["source"].encode(" has")
    torch.testing.assert_close(bundle.model.embed.token.weight[has], torch.full((16,), 0.5), rtol=0, atol=1e-5)
    assert "vectors from" in (run.path / "log.txt").read_text()
    stories = ["data=corpus", write_stories(tmp_path)]
    masked = vit.train([*stories, *small, *vectors, "precision=32-true", f"run_dir={tmp_path / 'masked'}"])
    bundle = load_bundle(masked.path)
    (has,) = bundle.tokenizers["source"].encode(" has")
    torch.testing.assert_close(bundle.model.embed.token.weight[has], torch.full((16,), 0.5), rtol=0, atol=1e-5)
    with pytest.raises(ConfigError, match=r"model.vectors=.*txt are word vectors of the source, but .* is images"):
        vit.train([*STRIPS, f"+{vectors[0]}"])
    with pytest.raises(ConfigError, match="word vectors have 16 numbers each, but the model's dim is 32"):
        vit.train([*questions, *small, *vectors, "model.dim=32"])


def test_draws_follow_from_the_line_and_not_from_its_neighbours(translation):
    translator = vit.load(translation.path, device="cpu")
    settings = Generation(sample=True, max_len=12, seed=3)
    lines = ["1", "12", "123", "7"]
    together = translator.predict(lines, settings, batch_size=4)
    assert [each.text for each in translator.predict(lines, settings, batch_size=1)] == [each.text for each in together]


def test_a_model_trained_with_ctc_decodes_with_ctc(strips, tmp_path, capsys):
    overrides = [*STRIPS, "recipe.loss.ctc=0.5", "data.train=800", "model.stem=pooled_conv", "data.patch_size=[8,4]",
                 "recipe.epochs=12", "recipe.optimizer.lr=0.004"]
    made = vit.train([*overrides, f"run_dir={tmp_path / 'run'}"])
    predictor = vit.load(made.path, device="cpu")
    assert predictor.settings.ctc == predictor.settings.greedy.ctc == 0.5
    assert yaml.safe_load((made.path / "config.yaml").read_text())["task"]["decode"]["ctc"] == 0.5
    assert main(["evaluate", str(made.path), "task.decode.ctc=0", "--json", str(tmp_path / "without.json")]) == 0
    without = json.loads((tmp_path / "without.json").read_text())
    assert made.metrics["test/cer"] < without["test/cer"]  # the encoder learns before the decoder does
    assert made.metrics["val/loss"] > 0 and float(table(made.path / "metrics.csv")[-1]["val/cer"]) < without["test/cer"]
    capsys.readouterr()
    assert main(["evaluate", str(strips.path), "task.decode.ctc=0.5"]) == 2
    message = capsys.readouterr().err
    assert "task.decode.ctc=0.5 needs a model trained with a CTC loss" in message and str(strips.path) in message


def test_training_with_ctc_saves_the_same_model(strips, tmp_path):
    """The CTC loss has no weights of its own, but changes those of the encoder."""
    made = vit.train([*STRIPS, "recipe.loss.ctc=0.5", "task.decode.ctc=0.4", "task.decode.views=3",
                      f"run_dir={tmp_path / 'run'}"])
    settings = vit.load(made.path, device="cpu").settings
    assert (settings.ctc, settings.tta) == (0.4, 3)
    decode = yaml.safe_load((made.path / "config.yaml").read_text())["task"]["decode"]
    assert decode["tta"] == 3 and "views" not in decode
    alone, both = (load_file(each.path / "model" / "model.safetensors") for each in (strips, made))
    assert {name: tensor.shape for name, tensor in alone.items()} == {name: each.shape for name, each in both.items()}
    assert not torch.equal(alone["encoder.blocks.0.attn.qkv.weight"], both["encoder.blocks.0.attn.qkv.weight"])
    assert "more tokens than their image has columns of patches" not in (made.path / "log.txt").read_text()
    overrides = [*STRIPS, "recipe.loss.ctc=0.5", "data.patch_size=[8,16]", "data.preprocessing.max_width=16"]
    wide = vit.train([*overrides, "task.decode.ctc=0", f"run_dir={tmp_path / 'wide'}"])
    log = (wide.path / "log.txt").read_text()
    assert "task.decode.ctc=0: the CTC output, which recipe.loss.ctc=0.5 trains, is not used" in log
    assert vit.load(wide.path, device="cpu").settings.ctc == 0
    assert "200 of 200 texts have more tokens than their image has columns of patches" in log


@pytest.fixture(scope="module")
def long_lines(tmp_path_factory):
    """A table of 24 images of 8 pixels in height, of which two are longer than the usual limit."""
    folder = tmp_path_factory.mktemp("lines")
    rows = ["file,text"]
    for i in range(24):
        width = 400 if i in (3, 17) else 40 + i
        pixels = torch.full((8, width), 240, dtype=torch.uint8)
        pixels[2:6, 3 : 3 + i] = 10
        Image.fromarray(pixels.numpy()).save(folder / f"{i}.png")
        rows.append(f"{i}.png,{'ß' * (i % 3 + 1)}")
    (folder / "table.csv").write_text("\n".join(rows), encoding="utf-8")
    return folder


def test_squeezed_lines_are_reported_and_tokens_are_characters(long_lines, tmp_path, capfd):
    overrides = ["data=image_text", f"data.path={long_lines / 'table.csv'}", *QUICK, "model.depth=1", "recipe.epochs=1",
                 "model.decoder_depth=1", "data.preprocessing.height=8", "data.patch_size=[8,4]", "recipe.batch_size=8"]
    free = vit.train([*overrides, f"run_dir={tmp_path / 'free'}"])
    predictor = vit.load(free.path, device="cpu")
    assert predictor.preprocessing.max_width == 400 and list(predictor.bundle.tokenizers) == ["target"]
    assert predictor.tokenizer.characters == ["ß"]
    assert all(set(text.text) <= {"ß"} for text in predictor.predict([long_lines / f"{i}.png" for i in range(24)]))
    narrow = vit.train([*overrides, "data.preprocessing.max_width=128", f"run_dir={tmp_path / 'narrow'}"])
    log = (narrow.path / "log.txt").read_text()
    assert re.search(r"images of train (is|are) wider than data.preprocessing.max_width=128 and squeezed to it, s", log)
    assert "400 pixels at a height of 8" in log and "squeezed to it" not in (free.path / "log.txt").read_text()
    assert main(["predict", str(narrow.path), str(long_lines)]) == 0
    message = " ".join(capfd.readouterr().err.split())
    assert "2 of 24 images are wider than the model's limit of 128 pixels and were squeezed, such as" in message


def test_a_whole_table_that_the_model_has_not_seen_is_evaluated(translation, tmp_path, capsys):
    rows = [("1", "one"), ("2", "two"), ("30", "thirty"), ("44", "forty-four")] * 3
    table = ["data=parallel", "data.source=en", "data.target=de", f"data.root={tmp_path / 'held.tsv'}"]
    (tmp_path / "held.tsv").write_text("en\tde\n" + "".join(f"{a}\t{b}\n" for a, b in rows))
    command = ["evaluate", str(translation.path), *table, "--json", str(tmp_path / "found.json")]
    assert main([*command, "--split", "all"]) == 0
    found = json.loads((tmp_path / "found.json").read_text())
    assert found["pairs"] == 12 and {"all/cer", "all/bleu"} <= set(found)
    (tmp_path / "held.tsv").write_text("en\tde\tsplit\n" + "".join(
        f"{a}\t{b}\t{'test' if i < 5 else 'extra'}\n" for i, (a, b) in enumerate(rows)))
    capsys.readouterr()
    assert main(command) == 1
    assert "split 'extra' is not one of" in capsys.readouterr().err
    assert main([*command, "data.on_unknown_split=skip"]) == 0
    assert json.loads((tmp_path / "found.json").read_text())["pairs"] == 5
    assert main(["evaluate", str(translation.path), "--split", "all"]) == 2
    assert "--split all would evaluate on the training samples of" in capsys.readouterr().err
    with pytest.raises(DataError, match="there are 0 training pairs; splits found: test"):
        vit.train([*table, "data.on_unknown_split=skip", *QUICK])


def test_invalid_combinations_are_errors(translation, capsys):
    with pytest.raises(ConfigError, match=r"data.tokenizer.kind=bp: must be one of byte, bpe, char"):
        vit.train([*TRANSLATION, "data.tokenizer.kind=bp"])
    with pytest.raises(ConfigError, match=r"task.decode.beam=2.5: must be a whole number, 1 or more"):
        vit.train([*TRANSLATION, "task.decode.beam=2.5"])
    with pytest.raises(ConfigError, match=r"recipe.loss.ctc=0.5 is for images of text, but this data is text"):
        vit.train([*TRANSLATION, "recipe.loss.ctc=0.5"])
    with pytest.raises(ConfigError, match=r"task.decode.ctc=0.3 needs a model trained with a CTC loss"):
        vit.train([*STRIPS, "task.decode.ctc=0.3"])
    with pytest.raises(ConfigError, match=r"task.decode.tta=2 is for images of text, but this data is text"):
        vit.train([*TRANSLATION, "task.decode.tta=2"])
    with pytest.raises(ConfigError, match=r"recipe.loss.ctc=1.5: must be a number, 0 or more, below 1"):
        vit.train([*STRIPS, "recipe.loss.ctc=1.5"])
    with pytest.raises(ConfigError, match="recipe.batch_size and recipe.batch_tokens are both null"):
        vit.train([*TRANSLATION, "recipe.batch_size=null"])
    with pytest.raises(ValueError, match=r"tokens are more than data.max_target_len=8; .* raise data.max_target_len"):
        vit.train([*TRANSLATION, "data.max_target_len=8"])
    with pytest.raises(ConfigError, match="dim 16 is not divisible by num_heads 3"):
        vit.train([*TRANSLATION, "model.num_heads=3"])
    assert main(["evaluate", str(translation.path), "data=digits"]) == 1
    assert "digits holds labelled images, but the model is for pairs of texts" in capsys.readouterr().err


def test_the_next_command_of_a_run_that_cut_its_texts_works(tmp_path, capfd):
    """What is too long for the model is cut in the test and by the saved model, as it was in training."""
    for name, count in (("train", 40), ("val", 8), ("test", 8)):
        for side in ("en", "de"):
            lines = [f"{i} " + "word " * (1 + 4 * (i % 2)) for i in range(count)]
            (tmp_path / f"{name}.{side}").write_text("".join(f"{line}\n" for line in lines))
    rows = [f"{'many words ' * (1 + 5 * (i % 2))}{i},{'ab'[i % 2]}" for i in range(60)]
    (tmp_path / "t.csv").write_text("\n".join(["text,label", *rows]) + "\n")
    small = [*QUICK, "model.depth=1", "recipe.epochs=1", "data.on_long=cut", "data.tokenizer.kind=byte"]
    pairs = ["data=parallel", f"data.root={tmp_path}", "data.source=en", "data.target=de", "data.max_source_len=16",
             "data.max_target_len=12", "model.decoder_depth=1"]
    texts = ["data=text_table", f"data.path={tmp_path / 't.csv'}", "data.max_len=24", "recipe.batch_size=8",
             "calibrate=none"]  # a checkpoint has no calibration
    for name, overrides in (("pairs", pairs), ("texts", texts)):
        made = vit.train([*small, *overrides, f"run_dir={tmp_path / name}"])
        samples = made.path / "samples" / "lines.txt"
        assert main(["predict", str(made.path / "model"), str(samples)]) == 0
        printed = capfd.readouterr()
        assert "texts are longer than the" in printed.err and f"were truncated, such as {samples} line" in printed.err
        assert "could not be read" not in printed.err
        assert main(["evaluate", str(made.path), "--json", str(tmp_path / "again.json")]) == 0
        again = json.loads((tmp_path / "again.json").read_text())
        if name == "pairs":  # each side has a limit of its own
            translator = vit.load(made.path / "model", device="cpu")
            assert (translator.max_source_len, translator.settings.max_len) == (16, 12)
            assert translator.strip  # data.strip of the training
            assert translator.model.config.max_len == 16
        assert all(made.metrics[key] == again[key] for key in again if key.startswith("test/"))
        copy = tmp_path / f"{name} of the checkpoint"
        assert main(["convert", str(made.path / "checkpoints" / "best.ckpt"), str(copy), "--to", "bundle"]) == 0
        extra, known = (load_bundle(folder).extra for folder in (copy, made.path / "model"))
        of_the_run = ("data", "evaluation", "name", "split_rule")
        assert extra["cuts"] and extra == {key: known[key] for key in known if key not in of_the_run}
        capfd.readouterr()
        assert main(["predict", str(copy), str(samples)]) == 0
        assert printed.out.endswith(capfd.readouterr().out)
        assert main(["evaluate", str(made.path), "data.on_long=error"]) == 1
        assert "but the model reads at most" in capfd.readouterr().err


def test_the_job_of_sharded_weights_reads_line_images_under_a_progress_bar(monkeypatch, tmp_path):
    stages = []

    @contextmanager
    def bar(console, description):
        yield lambda stage, done, total: stages.append((stage, done, total))

    monkeypatch.setattr("vit.run.jobs.base.stage_bar", bar)
    overrides = [*STRIPS, "strategy=fsdp", "task.decode.max_len=5", "recipe.accumulate=2", f"run_dir={tmp_path}"]
    config = resolve(compose(overrides)) | {"overrides": overrides}
    job = build_job(config, find_devices(config["trainer"]))
    assert job.task.validation.decode.max_len == 5
    assert job.task.optimization.schedule.keywords["planned"] == 14  # steps: 7 per epoch
    data, recipe = job.datasets["train"], job.config["recipe"] | {"batch_tokens": 80}
    of_tokens, both = ([len(train_loader(data, node, 0, 0, 0, 1)), len(val_loader(data, node, 0, 0, 1))]
                       for node in (recipe | {"batch_size": None}, recipe | {"batch_size": 2}))
    assert of_tokens == both  # the number of tokens alone limits a batch
    of_tokens = ["val/loss", "val/perplexity", "val/token_accuracy"]
    assert job.task.metric_names == [*of_tokens, "train/loss"]  # fsdp generates no texts
    count = len(job.source.splits["train"])
    assert ("sizes", count, count) in stages and ("images", count, count) in stages
