"""Paths in overrides are literal, and printed overrides can be pasted into a shell."""


import subprocess
from pathlib import Path

import pytest

import vit
from vit.cli import main
from vit.exchange.private_paths import PATH_KEYS
from vit.messages import override_for_shell
from vit.run.config.composing import compose, resolve
from vit.run.config.overrides import ConfigError, override_text, parse, sweep

NAMES = [
    "a (1)", "it's", "R&D", "été", "a,b", "[x]", "{x}", "k=v", "a b ", " a", 'say "hi"', "C:\\photos\\new", "tail\\",
    "\\'", "$HOME", "$(ls)", "a#b", "a;b", "!x", "a|b", "*", "2024", "1e5", "true", "007", "-1.5", "日本", "😀", "a\tb",
    "choice", "a~b", "~~", "a:b", "@x", "%41", "`ls`", "<a>", "a\nb", "x'y\"z\\", "''a", "a''", "null.d", "=", "==a",
]
KEYS = ["data.root", "resume", "init_from", "run_dir", "runs", "distill.teacher"]


def value(config, key):
    for part in key.split("."):
        config = config[part]
    return config


@pytest.mark.parametrize("name", NAMES)
def test_a_path_is_literal(name):
    """On the command line, from Python, and as we print it."""
    for path in (name, f"/data/{name}/x"):
        for key in KEYS:
            (found,) = parse([f"{key}={path}"])
            assert found.value() == path, key
            (found,) = parse([override_text(key, path)])
            assert found.value() == path, key
    config = resolve(compose(["data=folder", "distill=soft", *(f"{key}={name}" for key in KEYS)]))
    assert [value(config, key) for key in KEYS] == [name] * len(KEYS)


@pytest.mark.parametrize("name", [*NAMES, "R${D}", "\\${x}", "a\\\\${y", "null", "'a'", '"a"', "choice(a)", "'a','b'"])
def test_printed_overrides_are_parsed_back(name):
    """Also names that Hydra gives a meaning to, through bash and through a config."""
    command = f"printf %s {override_for_shell('data.root', name)}"
    pasted = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
    assert resolve(compose(["data=folder", pasted.stdout]))["data"]["root"] == name
    assert resolve(compose(["data=folder", override_text("data.root", name)]))["data"]["root"] == name


def test_plain_paths_are_printed_plainly():
    for path in ("runs/a (1)", "/data/été", "it's", "C:\\x"):
        assert override_text("resume", path) == f"resume={path}"
    assert override_text("data.revision", "a=b") == "data.revision='a=b'"
    assert override_for_shell("resume", "runs/x") == "resume=runs/x"


def test_the_home_folder(monkeypatch):
    monkeypatch.setenv("HOME", "/home/a b")
    for override in ("data.root=~/photos", "data.root='~/photos'"):
        assert resolve(compose(["data=folder", override]))["data"]["root"] == "/home/a b/photos"


def test_hydras_own_values_of_paths():
    config = compose(["data=folder", "data.root=x", "resume=null", "init_from='a (1)'", "run_dir=runs/${name}"])
    assert (config.resume, config.init_from, config.run_dir) == (None, "a (1)", "runs/folder")
    assert compose(["resume=auto"]).resume == "auto"


@pytest.mark.parametrize(
    ("override", "roots"),
    [
        ("data.root=a,b", ["a", "b"]),
        ("data.root=a (1),it's", ["a (1)", "it's"]),
        ("data.root='a,1','b'", ["a,1", "b"]),
        ("data.root=choice('a (1)', b)", ["a (1)", "b"]),
        ("data.root='a,b'", ["a,b"]),
        ("init_from=2023,2024", ["2023", "2024"]),
        ("init_from=a,null", ["a", None]),
        ('init_from="a,1",b', ["a,1", "b"]),
        ("data.root=${name}/a,'${name}/b,1',c", ["folder/a", "folder/b,1", "c"]),
        (r"data.root=\${name}/a,b", ["${name}/a", "b"]),
    ],
)
def test_sweeps_of_paths(override, roots):
    key = override.partition("=")[0]
    jobs = sweep(["data=folder", override, "seed=0,1"])
    assert len(jobs) == 2 * len(roots)
    found = [value(compose([job[0], "data.root=x", *job[1:]]), key) for job in jobs[::2]]
    assert found == roots


def test_other_values_are_hydras():
    assert parse(["data.fractions=[0.8,0.2,0]"])[0].value() == [0.8, 0.2, 0]
    with pytest.raises(ConfigError, match="name=a=b: .*must be quoted"):
        parse(["seed=0", "name=a=b"])


@pytest.mark.parametrize(("overrides", "hint"), [
    (["data=CIFAR10"], "no such data; did you mean cifar10?"),
    (["strategy=DDP"], "no such strategy; did you mean ddp?"),
    (["precision=16"], "did you mean 16-mixed?"),
    (["precision=fp16"], "did you mean 16-mixed?"),
    (["precision=bf16"], "did you mean bf16-mixed or bf16-residual?"),
    (["precision=BF16-mixed"], "did you mean bf16-mixed?"),
    (["recipe.optimizer.betas=[0.9,0.95]"], "did you mean +recipe.optimizer.options.betas?"),
    (["+recipe.optimizer.foo=3"], "unknown key recipe.optimizer.foo (see all"),  # not the nearest key of its node
    (["++recipe.foo=3"], "unknown key recipe.foo (see all"),
    (["seed", "=", "3"], "seed =: leave out the spaces around =, as in seed=VALUE"),
    (["seed", "=3"], "leave out the spaces around ="),
    (["seed =3"], "leave out the space before =: seed=3"),
    (["seed=1,"], "leave out the space after the comma"),
    (["name=äöü"], """must be quoted: "name='äöü'\""""),
    (["experiment=null"], "leave it out for the default, or write experiment=[] for none"),
    (["recipe@_global_.recipe=scratch"], "write recipe=OPTION in a command"),
    (["hydra/launcher=jobib"], "no hydra/launcher/jobib; did you mean joblib?"),
    (["hydra.mode=multirun"], "hydra.mode=multirun: Invalid value 'multirun', expected one of [RUN, MULTIRUN]"),
])
def test_a_mistake_has_a_hint(overrides, hint):
    with pytest.raises(ConfigError) as caught:
        resolve(compose(overrides))
    assert hint in str(caught.value)


@pytest.mark.parametrize(("option", "hint"), [
    ("--epochs", "; did you mean recipe.epochs? Overrides are key=value, without dashes"),
    ("--batch-size=3", "; did you mean recipe.batch_size?"),
    ("-lr", "; did you mean recipe.optimizer.lr?"),
    ("--foo", "; --help lists the options"),
])
def test_a_key_that_is_typed_as_an_option(option, hint, capsys):
    assert main(["train", option, "3"]) == 2
    assert f"error: unknown option {option}{hint}" in capsys.readouterr().err


@pytest.mark.parametrize("option", ["--config-dir", "--config-name=own", "-m"])
def test_an_option_of_the_command_is_no_override(option):
    with pytest.raises(ConfigError, match=r"is an option of the command.* write hydra.searchpath=\[FOLDER\]"):
        parse([option, "my"])


def test_one_string_is_not_a_list_of_overrides():
    with pytest.raises(ConfigError, match=r"a list of strings, not one string: \['data=digits'\]"):
        compose("data=digits")


@pytest.mark.parametrize(("overrides", "message"), [
    (3, "not 3"), ([Path("photos")], r"one of them is \w*Path\('photos'\)"), (["seed=1", None], "one of them is None"),
    ({"seed": 1}, r"not a dict: \['seed=1'\]"),
], ids=str)
def test_other_objects_are_no_overrides(overrides, message):
    with pytest.raises(ConfigError, match=f"a list of strings.*{message}"):
        vit.train(overrides)


def test_every_path_key_is_a_key_of_the_config():
    config = compose(["distill=soft", "data=folder", "data.root=x"])
    for key in set(PATH_KEYS) - {"data.path", "model.vectors"}:
        value(config, key)


def test_the_error_about_a_path_in_place_of_data_names_the_overrides(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my photos" / "cat").mkdir(parents=True)
    for name in ("a.zip", "t.csv", "run/config.yaml", "notes.md"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    expected = {"my photos": "data=folder 'data.root=my photos'", "a.zip": "data=folder data.root=a.zip",
                "t.csv": "data=table data.path=t.csv"}
    for path, overrides in expected.items():
        with pytest.raises(ConfigError, match=f"key=value; for the data in it write {overrides}$"):
            parse([path])
        with pytest.raises(ConfigError, match=f"is a path, .* write {overrides}$"):
            compose([f"data={path}"])
    for path in ("run", "notes.md", "nowhere"):
        with pytest.raises(ConfigError, match=r"key=value, such as data=digits"):
            parse([path])


@pytest.mark.parametrize("command", [["audit"], ["bench"], ["bench", "step"]])
def test_commands_name_the_form_of_a_folder(tmp_path, monkeypatch, capsys, command):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "photos").mkdir()
    assert main([*command, "photos"]) == 2
    assert "data=folder data.root=photos" in capsys.readouterr().err
