"""Models are pushed to a hub and loaded from it: commands and programs with a local hub server."""

import contextlib
import io
import json
import os
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from huggingface_hub import ModelCard, errors

import vit
from tests.exchange.hub_server import TOKEN, Hub
from tests.forking import Forks
from tests.run.conftest import QUICK, SMALL, write_photos
from vit.bundle import load_bundle
from vit.bundle.files import SourceError
from vit.cli import main
from vit.exchange.hub import create_repository, fetch, hub_errors_explained, is_complete, select_files
from vit.exchange.importing import import_weights

NOWHERE = "http://127.0.0.1:1"  # no server listens here


SERVERS = {}


def server(folder, endpoint, **more):
    """A process that has imported the libraries with the variables of this hub."""
    if found := SERVERS.get((endpoint, *more)):
        return found
    clean = {key: value for key, value in os.environ.items() if not key.startswith("HF_")}
    settings = {"HF_ENDPOINT": endpoint, "HF_HOME": str(folder / "home"), "HF_HUB_DISABLE_XET": "1",
                "HF_HUB_DISABLE_TELEMETRY": "1"}
    return SERVERS.setdefault((endpoint, *more), Forks(clean | settings | more))


def session(folder, endpoint, *steps, **more):
    """(result, standard output, standard error) of each step, all in one process with this hub as its endpoint."""
    plain = json.loads(json.dumps(steps, default=str))
    done = server(folder, endpoint, **more).run("tests.exchange.test_hub:perform", plain, folder=folder)
    assert done.code == 0, done.output
    return json.loads(done.output.splitlines()[-1])


def perform(steps):
    """In the fork: prints the results as JSON."""
    found = []
    for kind, token, *arguments in steps:
        os.environ.pop("HF_TOKEN", None)
        os.environ.update({"HF_TOKEN": token} if token else {})
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            try:
                result = STEPS[kind](*arguments)
            except ValueError as error:
                result = f"refused: {error}"
        found.append([result, out.getvalue(), err.getvalue()])
    print("\n" + json.dumps(found))


def load(name, photo):
    prediction = vit.load(name).predict(photo, top_k=3)[0]
    return [prediction.names, prediction.probabilities]


STEPS = {
    "vit": lambda *arguments: main(list(arguments)),
    "load": load,
    "fetch": lambda name: str(fetch(name)),
    "remove": lambda name, file: os.remove(fetch(name) / file),
    "import": lambda name: import_weights(name)[0].head.weight.double().sum().item(),
}


@pytest.fixture(scope="module")
def hub():
    with Hub() as running:
        running.commit("models/me/notes", {"notes.txt": b"no weights", "tf_model.h5": b"x"})
        running.commit("models/me/open", {})
        yield running
    for each in SERVERS.values():
        each.close()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("hub")


@pytest.fixture(scope="module")
def photos(folder):
    """Pictures in a folder whose path must not be published."""
    return write_photos(folder / "private disk" / "pets", {"cat": 12, "dog": 12, "emu|bird": 12})


@pytest.fixture(scope="module")
def run(folder, photos):
    overrides = ["data=folder", f"data.root='{photos}'", "recipe.mixup=null", "recipe.ema=null"]
    path = vit.train([*QUICK, *SMALL, *overrides, f"run_dir={folder / 'run'}"]).path
    (path / "model" / "diary.txt").write_text("mine")
    return path


@pytest.fixture(scope="module")
def pushed(hub, folder, run):
    """hub:OWNER/NAME@COMMIT, as the command prints it."""
    arguments = ["push", run, "me/pets", "--private", "--licence", "cc0-1.0", "--message", "First"]
    ((code, out, err),) = session(folder, hub.endpoint, ["vit", TOKEN, *map(str, arguments)])
    assert code == 0, err
    return out.strip()


def test_the_three_files_are_there_and_nothing_of_this_machine(hub, pushed, run):
    repo = hub.repos["models/me/pets"]
    ((commit, files),) = repo["commits"]
    assert pushed == f"hub:me/pets@{commit}" and repo["private"] and hub.message == "First"
    assert files.keys() == {"config.json", "model.safetensors", "README.md"}
    assert files["model.safetensors"] == (run / "model/model.safetensors").read_bytes()
    local, there = json.loads((run / "model/config.json").read_text()), json.loads(files["config.json"])
    assert "data.root=pets" in there["vit"]["extra"]["data"]
    local["vit"]["extra"].pop("data"), there["vit"]["extra"].pop("data")
    assert local["vit"].pop("config_sha256") != there["vit"].pop("config_sha256")
    assert there == local
    for text in (files["config.json"].decode(), files["README.md"].decode()):
        assert not [each for each in ("private disk", str(run.parent), f"{Path.home()}/", "127.0.0.1") if each in text]


def test_the_card_is_valid_and_describes_the_run(pushed, hub, run):
    card = ModelCard(hub.repos["models/me/pets"]["commits"][0][1]["README.md"].decode())
    metrics = json.loads((run / "metrics.json").read_text())
    assert card.data.license == "cc0-1.0" and card.data.library_name == "timm"
    assert card.data.pipeline_tag == "image-classification" and card.data.model_name == "pets"
    results = {result.metric_name: result for result in card.data.eval_results}
    assert results["accuracy"].metric_value == metrics["test/accuracy"] and results["accuracy"].dataset_name == "pets"
    assert results["loss"].metric_value == metrics["test/loss"] and results["accuracy"].dataset_split == "test"
    assert metrics["test/images"] > 0 and "images" not in results and "| images |" not in card.text
    splits = {name: (run / "splits" / f"{name}.tsv").read_text().splitlines() for name in ("train", "val", "test")}
    birds = sum("emu|bird" in line for line in splits["train"])
    sizes = " / ".join(f"{len(lines)} {name}" for name, lines in splits.items())
    for part in ('vit.load("hub:me/pets")', "hf-hub:me/pets", f"| emu\\|bird | {birds} |", "2 (best: ", sizes,
                 "adamw, lr 0.001", "data.root=pets", "python -m vit train recipe.epochs=2"):
        assert part in card.text, part


def test_a_pushed_model_is_loaded_unchanged_pinned_or_not(hub, pushed, folder, run, photos):
    photo, commit = str(next((run / "samples").iterdir())), pushed.partition("@")[2]
    here = vit.load(run).predict(photo, top_k=3)[0]
    train = ["train", "data=folder", f"data.root='{photos}'", f"init_from='{pushed}'", "recipe.epochs=1",
             "recipe.optimizer.lr=0.0", "recipe.ema=null", "recipe.batch_size=8", "data.audit_seconds=1",
             "logger=csv", "report=false", "run_dir=next"]
    pinned, newest, weights, trained, _, predicted, converted = session(
        folder, hub.endpoint, ["load", TOKEN, pushed, photo], ["load", TOKEN, "hub:me/pets", photo],
        ["import", TOKEN, pushed], ["vit", TOKEN, *train], ["vit", TOKEN, "card", "next"],
        ["vit", TOKEN, "predict", pushed, photo, "-o", "predictions.csv"],
        ["vit", TOKEN, "convert", pushed, "copy", "--to", "bundle"])
    for (names, probabilities), _, _ in (pinned, newest):
        assert (tuple(names), tuple(probabilities)) == (here.names, here.probabilities)
    assert "is commit" not in pinned[2]
    assert f"hub:me/pets is commit {commit}; to load the same again, use {pushed}" in newest[2]
    assert weights[0] == vit.load(run).model.head.weight.double().sum().item()
    assert trained[0] == 0 and predicted[0] == 0, (trained, predicted)
    assert here.label in (folder / "predictions.csv").read_text()
    copy, original = load_bundle(folder / "copy"), load_bundle(run)
    assert converted[0] == 0 and copy.calibration == original.calibration is not None, converted
    started, finished = vit.load(run).model.state_dict(), vit.load(folder / "next").model.state_dict()
    assert all(torch.equal(tensor, finished[name]) for name, tensor in started.items())
    card = ModelCard.load(folder / "next" / "model" / "README.md")
    assert card.data.base_model == "me/pets" and "trained from the weights of `me/pets`" in card.text
    assert card.data.license is None and "private disk" not in str(card)


def test_a_fetched_model_is_loaded_without_a_network(hub, pushed, folder, run):
    photo, commit = str(next((run / "samples").iterdir())), pushed.partition("@")[2]
    here = vit.load(run).predict(photo, top_k=3)[0]
    session(folder, hub.endpoint, ["fetch", TOKEN, "hub:me/pets"])
    pinned, newest, other, push, card, again = session(
        folder, NOWHERE, ["load", TOKEN, pushed, photo], ["load", TOKEN, "hub:me/pets", photo],
        ["fetch", TOKEN, "hub:me/other"], ["vit", TOKEN, "push", str(run), "me/pets"],
        ["vit", TOKEN, "card", str(run), "--licence", "mit"],
        ["vit", TOKEN, "push", str(run), "a/b", "--licence", "mit"])
    assert pinned[0] == newest[0] == [list(here.names), list(here.probabilities)]
    assert "is commit" not in pinned[2] and f"hub:me/pets is commit {commit}" in newest[2]
    assert other[0].startswith(f"refused: hub:me/other: it cannot be fetched and is not in the cache: {NOWHERE} cannot")
    assert "or use a file or folder of this machine" in other[0] and "\n" not in other[0]
    assert push[0] == 1 and "error: me/pets: it was not pushed: http://127.0.0.1:1 cannot be reached" in push[2]
    assert "Connection refused" in push[2]
    assert card[0] == 0 and ModelCard.load(run / "model" / "README.md").data.license == "mit"
    assert again[0] == 1 and "README.md exists and states its own licence; leave out --licence" in again[2]
    (run / "model" / "README.md").unlink()


def test_files_missing_from_the_cache_are_fetched_again(hub, pushed, folder, run):
    """Weights in pieces, of which one is gone from the cache, at a pinned commit."""
    index = {"weight_map": {"a": "model-1-of-2.safetensors", "b": "model-2-of-2.safetensors"}}
    pieces = {name: f"weights {name}".encode() for name in index["weight_map"].values()}
    commit = hub.commit("models/me/pieces", {**pieces, "model.safetensors.index.json": json.dumps(index).encode(),
                                             "config.json": b"{}", "pytorch_model.bin": b"the same again"})
    name = f"hub:me/pieces@{commit}"
    first, _, again = session(folder, hub.endpoint, ["fetch", "", name],
                              ["remove", "", name, "model-2-of-2.safetensors"], ["fetch", "", name])
    there = {file.name: file.read_bytes() for file in Path(again[0]).iterdir()}
    assert again[0] == first[0] and there.items() >= pieces.items()
    assert there.keys() == {*pieces, "model.safetensors.index.json", "config.json"}


@pytest.mark.slow
def test_an_offline_error_names_the_cause(hub, folder):
    ((message, *_),) = session(folder, hub.endpoint, ["fetch", TOKEN, "hub:me/other"], HF_HUB_OFFLINE="1")
    assert "hub:me/other: it cannot be fetched and is not in the cache: HF_HUB_OFFLINE=1 forbids requests" in message


FETCHED = [
    ("hub:me/nothing", TOKEN, "has no model me/nothing, or it is private; check the name"),
    ("hub:me/pets", "", "has no model me/pets, or it is private; check the name, or log in with: hf auth login"),
    (f"hub:me/pets@{'0' * 40}", TOKEN, f"me/pets has no revision '{'0' * 40}'"),
    ("hub:me/pets@v7", TOKEN, "me/pets has no revision 'v7'"),
    ("hub:me/notes", TOKEN, "the model has no known file of weights: none of model.safetensors"),
    ("hub:me", TOKEN, "hub:me: this is not a name of the hub; write hub:OWNER/NAME"),
]
PUSHED = [
    (["me/new"], "", "no permission; log in with a token that has it: hf auth login"),
    (["me/open", "--private"], TOKEN, "me/open: it exists and is public"),
    (["me/pets@main"], TOKEN, "a push creates a new commit"),
    (["me/pets", "--licence", "Apache 2"], TOKEN, "is not an identifier of the hub"),
    (["pets"], TOKEN, "pets: this is not a name of the hub"),
]


def test_invalid_values_are_errors_of_one_line(hub, pushed, folder, run):
    found = session(folder, hub.endpoint, *(["fetch", token, name] for name, token, _ in FETCHED),
                    *(["vit", token, "push", str(run), *arguments] for arguments, token, _ in PUSHED))
    for (result, *_), (*_, message) in zip(found[: len(FETCHED)], FETCHED, strict=True):
        assert message in result and "\n" not in result
    for (code, _, err), (*_, message) in zip(found[len(FETCHED) :], PUSHED, strict=True):
        assert code != 0 and message in err and len(err.strip().splitlines()) == 1, err
    assert len(hub.repos["models/me/pets"]["commits"]) == 1 and not hub.repos["models/me/open"]["commits"][0][1]


def test_a_card_written_by_hand_is_not_overwritten(run, capsys):
    readme = run / "model" / "README.md"
    readme.write_text("# My own text\n")
    assert main(["card", str(run)]) == 1 and readme.read_text() == "# My own text\n"
    assert "was not generated by this command; choose another --output, or add --overwrite" in capsys.readouterr().err
    assert main(["card", str(run), "--overwrite"]) == 0 and "## Metrics" in readme.read_text()
    assert "the card has no licence" in capsys.readouterr().err
    assert main(["card", str(run), "--licence", "mit"]) == 0 and ModelCard.load(readme).data.license == "mit"
    readme.unlink()


@pytest.mark.parametrize(("files", "fetched"), [
    (["pytorch_model.bin", "model.safetensors", "preprocessor_config.json", "processor_config.json", "config.json",
      "tokenizer.json"], ["model.safetensors", "config.json", "preprocessor_config.json", "processor_config.json"]),
    (["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors", "model.safetensors.index.json",
      "pytorch_model-00001-of-00001.bin", "model.safetensors.md"],
     ["model.safetensors.index.json", "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]),
    (["open_clip_pytorch_model.bin", "open_clip_config.json"], ["open_clip_pytorch_model.bin",
                                                                "open_clip_config.json"]),
])
def test_one_form_of_the_weights_and_the_configs_are_fetched(files, fetched):
    assert select_files("hub:o/n", files) == fetched
    with pytest.raises(SourceError, match="no known file of weights: .* but nothing"):
        select_files("hub:o/n", [])


def http_error(status, message=""):
    response = SimpleNamespace(status_code=status, headers={}, request=None)
    return errors.HfHubHTTPError("failed", response=response, server_message=message)


def foreign_error(module):
    return type("Timeout", (Exception,), {"__module__": module})("too slow")


@pytest.mark.parametrize(("error", "raised", "message"), [
    (http_error(401), True, "responded with 401: no permission; log in"),
    (http_error(403), True, "responded with 403: no permission; log in"),
    (http_error(503, "try\nlater"), False, r"responded with 503 try later; fetch it once"),
    (http_error(500), False, r"responded with 500; fetch it once"),
    (OSError("no route"), False, r"cannot be reached \(.*no route.*\); fetch it once"),
    (foreign_error("httpx"), False, r"cannot be reached \(.*too slow.*\); fetch it once"),
    (SourceError("damaged", "a.bin"), True, "^a.bin: damaged$"),
])
def test_errors_of_the_hub_are_raised_or_the_cache_is_tried(error, raised, message):
    caught = pytest.raises(SourceError, match=message) if raised else contextlib.nullcontext()
    with caught, hub_errors_explained("hub:o/n", "o/n") as unreachable:
        raise error
    assert len(unreachable) == (not raised)
    if not raised:
        with pytest.raises(SourceError, match=message):
            raise unreachable[0]
        with hub_errors_explained("o/n", "o/n", action="pushed") as pushed:
            raise error
        assert str(pushed[0]).startswith("o/n: it was not pushed: ")


@pytest.mark.parametrize("error", [KeyError("a"), foreign_error("other")])
def test_other_errors_are_not_those_of_the_hub(error):
    with pytest.raises(type(error)), hub_errors_explained("hub:o/n", "o/n"):
        raise error


@pytest.mark.parametrize(("status", "wanted", "private", "expected"), [
    (409, True, True, None), (409, True, False, SourceError), (409, False, False, None),
    (500, False, True, errors.HfHubHTTPError), (None, True, True, None),
])
def test_a_repository_that_exists_is_used_unless_it_is_public_against_the_request(status, wanted, private, expected):
    def create_repo(repo, private):
        created.append((repo, private))
        if status:
            raise http_error(status)

    created, info = [], SimpleNamespace(private=private)
    api = SimpleNamespace(create_repo=create_repo, model_info=lambda repo: info)
    with pytest.raises(expected) if expected else contextlib.nullcontext():
        create_repository(api, "o/n", wanted)
    assert created == [("o/n", wanted)]


def test_a_folder_is_complete_with_all_pieces_that_its_index_names(tmp_path):
    assert not is_complete(tmp_path)
    weight_map = {"a": "1.safetensors", "b": "2.safetensors"}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    for piece in ("1.safetensors", "2.safetensors"):
        assert not is_complete(tmp_path)
        (tmp_path / piece).touch()
    assert is_complete(tmp_path)
    (tmp_path / "2.safetensors").unlink()
    (tmp_path / "model.safetensors").touch()  # comes first
    assert is_complete(tmp_path)
