"""Options that belong together as one dataclass, whose fields are options of a command."""

import inspect
from collections.abc import Callable
from dataclasses import MISSING, Field, fields, is_dataclass
from functools import wraps


def with_option_groups(command: Callable[..., None]) -> Callable[..., None]:
    """The command with the fields of its dataclass parameters as options, in this order.

    A field is annotated as a parameter of a Typer command is. The command gets an instance of the dataclass:

        @with_option_groups
        def predict(model: Path, search: Search) -> None: ...
    """
    parameters = inspect.signature(command).parameters.values()
    groups = {each.name: each.annotation for each in parameters if is_dataclass(each.annotation)}
    flat = [option for each in parameters
            for option in (map(_option, fields(groups[each.name])) if each.name in groups else (each,))]

    @wraps(command)
    def grouped(**values: object) -> None:
        for name, group in groups.items():
            values[name] = group(**{field.name: values.pop(field.name) for field in fields(group)})
        command(**values)

    grouped.__signature__ = inspect.Signature([each.replace(kind=each.KEYWORD_ONLY) for each in flat])
    grouped.__annotations__ = {each.name: each.annotation for each in flat}
    return grouped


def _option(field: Field) -> inspect.Parameter:
    default = inspect.Parameter.empty if field.default is MISSING else field.default
    return inspect.Parameter(field.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=field.type)
