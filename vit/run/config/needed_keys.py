"""The keys that a run reads from its config and from each node of it; a file of the user's own may lack them.

The nodes of resumed runs are not checked: the code that reads them has defaults for keys that are newer than they are.
"""

from collections.abc import Collection

from vit.run.config.overrides import ConfigError, dotted_items

ON_IMAGES = ("classification", "masked_image")  # tasks on images of one size
ON_TEXTS = ("text_classification", "masked_text", "seq2seq")  # tasks on texts and on images of text

TOP_LEVEL = ("task", "model", "recipe", "strategy", "trainer", "logger", "callbacks", "data", "name", "seed", "runs",
             "run_dir", "resume", "init_from", "precision", "calibrate", "report", "compile", "debug", "compare")
IMAGE_DATA = ("audit_seconds", "balance", "image_size", "on_bad_sample", "patch_size", "preprocessing")
RECIPE = ("accumulate", "average_epochs", "batch_size", "clip", "ema", "epochs", "optimizer", "schedule")
ALL_TASKS = {  # node -> keys
    "recipe": RECIPE,
    "recipe.optimizer": ("lr", "lr_base_batch"),
    "recipe.schedule": ("name", "warmup", "final", "cooldown"),
    "recipe.crop": ("scale",),
    "data": ("_target_", "name", "workers"),
    "callbacks": ("monitor", "mode", "patience", "every_steps"),
    "strategy": ("name",),
    "trainer": ("accelerator", "devices", "num_nodes", "log_every_n_steps", "max_time"),
}
OF_TASK = {  # task -> node -> further keys; those of its recipe are the `recipe_keys` of its job
    "classification": {"data": IMAGE_DATA, "model": ("name",), "recipe.loss": ("label_smoothing",)},
    "masked_image": {"data": IMAGE_DATA, "model": ("name",), "task": ("examples", "examples_every")},
    "text_classification": {"data": ("balance", "max_len", "on_long", "tokenizer"),
                            "recipe.loss": ("label_smoothing",)},
    "masked_text": {"data": ("mask_ratio", "max_len", "tokenizer")},
    "seq2seq": {"data": ("max_source_len", "max_target_len", "on_bad_sample", "on_long", "tokenizer"),
                "task": ("decode", "decode_rows", "examples")},
}
COMPLETE = {  # group -> task -> the file that has all keys of the group; None for other tasks
    "recipe": {"masked_image": "mae", "text_classification": "text", "masked_text": "text", "seq2seq": "sequence",
               None: "scratch"},
    "data": {"text_classification": "text_table", "masked_text": "corpus", "seq2seq": "_pairs", None: "/data/_loading"},
    "callbacks": {None: "default"},
    "trainer": {None: "default"},
}


def missing_top_level_keys(found: Collection[str]) -> str | None:
    """The error about top-level keys that are not among `found`, the keys of a config; None if all are."""
    if missing := [key for key in TOP_LEVEL if key not in found]:
        them = "it" if len(missing) == 1 else "them"
        return (f"the config has no {', '.join(missing)}; do not remove {them} with ~, and list train in the defaults "
                "of a primary config of your own")
    return None


def check_complete(config: dict) -> None:
    """Checks that the nodes of a new run have the keys that it reads. Data that is complete for another task passes: a
    later error names both kinds of data.

    Raises:
        ConfigError: names the node, its missing keys and the fix.
    """
    values = dict(dotted_items(config))
    task = values.get("task.name")
    for nodes in (ALL_TASKS, OF_TASK.get(task, {})):
        for node, keys in nodes.items():
            found = values.get(node)
            if not isinstance(found, dict) or node == "data" and is_of_another_task(found, task):
                continue
            if missing := [key for key in keys if key not in found]:
                raise ConfigError(_sentence(node, missing, task))


def is_of_another_task(data: dict, task: str | None) -> bool:
    """Whether the data has all keys that another task needs."""
    needed = (set(ALL_TASKS["data"]) | set(nodes["data"]) for other, nodes in OF_TASK.items() if other != task)
    return any(keys <= set(data) for keys in needed)


def _sentence(node: str, missing: list[str], task: str | None) -> str:
    group = node.partition(".")[0]
    files = COMPLETE.get(node, {})
    fix = f"add {'it' if len(missing) == 1 else 'them'} to the node"
    if complete := files.get(task, files.get(None)):
        fix = f"list {complete} before _self_ in the defaults of its file in {group}/, or {fix}"
    return f"{node} has no {', '.join(missing)}, which task={task} needs; {fix}"
