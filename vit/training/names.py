"""Parameter names as they are saved: without the marks that wrappers leave in them."""

WRAPPERS = ("_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module")  # torch.compile, FSDP, checkpointing


def clean_name(name: str) -> str:
    """`module._orig_mod.encoder.norm.weight` -> `encoder.norm.weight`; DDP's `module.` stands only in front."""
    kept = ".".join(part for part in name.split(".") if part not in WRAPPERS)
    return kept.removeprefix("module.")
