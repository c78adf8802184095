"""`compare:` several models under one recipe: each an ordinary run of its own, then one table and one picture."""

import csv
import json
import logging
import pathlib
import shlex

import yaml

from vit.files.strict_json import json_text
from vit.report.comparison import ComparedModel, comparison_picture, comparison_table
from vit.report.curves import read_curves
from vit.run.config.composing import ConfigError, compose, hydras, plain
from vit.run.config.overrides import override_text, parse, shown
from vit.run.config.targets import TARGET, check_stored
from vit.run.console import command, console
from vit.run.folder import check_contents, new_path, read_stored
from vit.run.processes.apart import STOPPED, train_apart
from vit.run.result import Run
from vit.run.resume import CONTROL, to_record
from vit.training import Interrupted

log = logging.getLogger("vit")

MEASURES = ("accuracy", "map", "exact_match")  # the first that all runs have counts
PLAN, RESULT = "comparison.yaml", "comparison.json"


def is_comparison(config: dict) -> bool:
    """Whether several runs are asked for: by `compare`, or by resuming the folder of a comparison."""
    resumed = config["resume"] is not None and (pathlib.Path(config["resume"]) / PLAN).exists()
    return bool(config["compare"]) or resumed


def compare(config: dict, overrides: list[str]) -> Run:
    """Train what is not trained yet, then write `comparison.csv`, `comparison.json` and `comparison.png`.

    The result's metrics are the rows of that table by their names. After a run that fails the later ones still
    run, unless none has finished yet: then the overrides that all share may be wrong.

    Raises:
        ConfigError: an invalid override of any run, before the first one starts; failed runs, at the end.
        Interrupted: Ctrl-C or SIGTERM; the run under way has saved what was done.
    """
    folder, plan = find_plan(config, overrides)
    own = [*hydras(overrides), *(each for each in overrides if TARGET in each)]  # which stored configs may name too
    log.info("comparison of %s: %s", ", ".join(plan["runs"]), folder)
    done, failed = [], []
    for number, (name, recorded) in enumerate(plan["runs"].items(), 1):
        run = folder / name
        if (run / "metrics.json").exists():
            done.append(name)
            continue
        heading = f"\n[{number}/{len(plan['runs'])}] {shlex.join(recorded)}"
        console.print(heading, markup=False, highlight=False, soft_wrap=True)
        begun = (run / "config.yaml").exists()
        new = [*recorded, *hydras(overrides), override_text("run_dir", str(run))]
        code = train_apart([override_text("resume", str(run)), *own] if begun else new)
        if code in STOPPED:
            again = command("train", override_text("resume", str(folder)))
            resume = f"\nResume the whole comparison with:\n  {again}"
            console.print(resume, markup=False, highlight=False, soft_wrap=True)
            raise Interrupted(STOPPED[code], agreed=True)
        (failed if code else done).append(name)
        if not done:
            break
    rows = conclude(folder, plan, done) if done else {}
    if failed:
        raise ConfigError(
            f"{', '.join(failed)} of the comparison failed, as said above; when the cause is gone, "
            f"{shown('resume', folder)} goes on"
        )
    return Run(folder, rows)


def find_plan(config: dict, overrides: list[str]) -> tuple[pathlib.Path, dict]:
    """Folder and plan of a comparison: of the stopped one that is resumed, or of a new one."""
    settings, recorded = hydras(overrides), to_record(overrides)
    folder = find_stopped(config, recorded)
    if folder is not None:
        plan = read_plan(folder)
        check_plan(plan, folder, overrides)
        return folder, plan
    runs = {
        name: [*recorded, *own, "compare=null", f"name={config['name']}/{name}"]
        for name, own in config["compare"].items()
        if own is not None
    }
    if len(runs) < 2:
        raise ConfigError(f"compare has {len(runs)} runs, but needs 2 or more: each a name with a list of overrides")
    for each in runs.values():
        plain(compose([*each, *settings]))
    folder = new_path(config)
    if (folder / PLAN).exists():
        raise ConfigError(
            f"run_dir={folder}: a comparison lies there already; {shown('resume', folder)} goes on with it, "
            "or choose another run_dir"
        )
    plan = {"name": config["name"], "words": recorded, "runs": runs}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / PLAN).write_text(yaml.safe_dump(plan, sort_keys=False), encoding="utf-8")
    return folder, plan


def find_stopped(config: dict, overrides: list[str]) -> pathlib.Path | None:
    """The comparison that `resume` names; for `auto` that in `run_dir`, or the newest unfinished one."""
    if config["resume"] is None:
        return None
    if config["resume"] != "auto":
        folder = pathlib.Path(config["resume"])
        if not (folder / PLAN).exists():
            raise ConfigError(f"resume={folder}: no {PLAN} there, so no comparison to go on with")
        return folder
    if config["run_dir"]:
        folder = pathlib.Path(config["run_dir"])
        return folder if (folder / PLAN).exists() else None
    plans = sorted((pathlib.Path(config["runs"]) / config["name"]).glob(f"*/{PLAN}"), reverse=True)
    unfinished = (plan.parent for plan in plans if not (plan.parent / RESULT).exists())
    return next((folder for folder in unfinished if read_plan(folder)["words"] == overrides), None)


def read_plan(folder: pathlib.Path) -> dict:
    """The stored plan of a comparison.

    Raises:
        ConfigError: it cannot be read, or is none.
    """
    plan = read_stored(folder / PLAN)
    runs = plan.get("runs")
    lists = [plan.get("words"), *(runs.values() if isinstance(runs, dict) else [None])]
    if not all(isinstance(each, list) and all(isinstance(item, str) for item in each) for each in lists):
        raise ConfigError(f"{folder / PLAN} is no plan of a comparison: it wants lists of overrides as words and runs")
    return plan


def check_plan(plan: dict, folder: pathlib.Path, overrides: list[str]) -> None:
    """A comparison may come from anybody: its runs lie inside it, and call nothing that `overrides` do not name.

    Raises:
        ConfigError: names the run and the override.
    """
    check_contents(folder)
    for name, stored in plan["runs"].items():
        if not isinstance(name, str) or pathlib.PurePath(name).name != name or name == "..":
            raise ConfigError(f"{folder / PLAN}: the run {name!r} would lie outside {folder}; its name must be one "
                              "folder name")
        refused = [override.input_line for override in parse(stored) if override.key_or_group in CONTROL]
        for override in [*refused, *hydras(stored)]:
            raise ConfigError(f"{folder / PLAN}: the run {name} may not set {override}")
        check_stored(plain(compose([*stored, *hydras(overrides)])), folder / PLAN, overrides)


def conclude(folder: pathlib.Path, plan: dict, done: list[str]) -> dict:
    """Gather the numbers of the runs that are done; write and show them side by side."""
    metrics = {name: json.loads((folder / name / "metrics.json").read_text(encoding="utf-8")) for name in done}
    split, measure = judged_by(list(metrics.values()))
    contenders = [contender(folder / name, name, numbers, split, measure) for name, numbers in metrics.items()]
    rows = [row(each, metrics[each.name]) for each in contenders]
    with open(folder / "comparison.csv", "w", newline="", encoding="utf-8") as file:
        table = csv.DictWriter(file, list(rows[0]))
        table.writeheader()
        table.writerows(rows)
    comparison_picture(folder / "comparison.png", contenders, plan["name"])
    if len(done) == len(plan["runs"]):
        (folder / RESULT).write_text(json_text({**plan, "results": rows}) + "\n", encoding="utf-8")
    console.print()
    console.print(comparison_table(contenders, plan["name"]))
    console.print(f"  {folder / 'comparison.png'}", highlight=False, soft_wrap=True)
    return {each["name"]: each for each in rows}


def judged_by(metrics: list[dict]) -> tuple[str, str]:
    """The split and the measure that all runs have a number of."""
    pairs = ((split, measure) for measure in MEASURES for split in ("test", "val"))
    found = (pair for pair in pairs if all(numbers.get("/".join(pair)) is not None for numbers in metrics))
    try:
        return next(found)
    except StopIteration:
        raise ConfigError(f"the runs have none of {', '.join(MEASURES)} to be compared by") from None


def contender(run: pathlib.Path, name: str, metrics: dict, split: str, measure: str) -> ComparedModel:
    curves = read_curves(run / "metrics.csv")
    return ComparedModel(
        name,
        metrics["model"],
        curves.get(f"val/{measure}"),
        split,
        metrics[f"{split}/{measure}"],
        metrics["parameters"],
        metrics["flops"],
        next(value for key, value in metrics.items() if key.endswith("_per_second")),
        metrics["seconds"],
        metrics.get("trained_parameters"),
        metrics.get("peak_memory", 0),
        measure,
    )


def row(each: ComparedModel, metrics: dict) -> dict:
    """One line of the table, under the names that runs use."""
    return {
        "name": each.name,
        "model": each.model,
        **{key: value for key, value in metrics.items() if key.endswith(f"/{each.measure}")},
        "best_epoch": metrics["best_epoch"],
        "epochs": metrics["epochs"],
        "parameters": each.parameters,
        "trained_parameters": each.trained,
        "flops": each.flops,
        "per_second": each.per_second,
        "seconds": each.seconds,
        "peak_memory": each.memory,
    }
