"""Options shared by several commands."""

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Annotated, Any

import typer


def _use(names: list[str] | None) -> list[str] | None:
    if names:
        from heedful import parts

        for name in names:
            parts.use(name)
    return names


Parts = Annotated[
    list[str] | None,
    typer.Option(
        "--parts",
        help="Folder or installed package with custom components that the model needs. Its code is executed.",
        callback=_use,
    ),
]

SHORT = {"num_beams": "-b", "num_return_sequences": "-n", "stop_strings": "--stop", "do_sample": "--sample"}


def generation_options(**defaults: Any) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command an option for every key of `GenerationConfig`; the command receives their values as `generation`.
    The names and help texts are the config's; `defaults` are those of this command."""

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        from heedful.decoding.generation import GenerationConfig

        fields = GenerationConfig.model_fields

        @wraps(command)
        def run(**given: Any) -> None:
            values = {name: given.pop(name) for name in fields}
            values["early_stopping"] = values["early_stopping"] or "never"
            values["stop_strings"] = values["stop_strings"] or ()
            command(**given, generation=values)

        by_name = inspect.Parameter.KEYWORD_ONLY
        given_by_hand = inspect.signature(command).parameters.values()
        own = [one.replace(kind=by_name) for one in given_by_hand if one.name != "generation"]
        added = [_option(name, defaults) for name in fields]
        place = next(index for index, one in enumerate([*own, None]) if one is None or one.name == "parts")
        parameters = [*own[:place], *added, *own[place:]]
        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {one.name: one.annotation for one in parameters}
        return run

    return decorate


def _option(name: str, defaults: dict[str, Any]) -> inspect.Parameter:
    from heedful.decoding.generation import ALIASES, GenerationConfig

    field = GenerationConfig.model_fields[name]
    kind: Any = {"early_stopping": bool, "stop_strings": list[str] | None}.get(name, field.annotation)
    usual = {"early_stopping": False, "stop_strings": None}.get(name, field.default)
    flags = [f"--{name.replace('_', '-')}"]
    flags += [f"--{other.replace('_', '-')}" for other, known in ALIASES.items() if known == name]
    flags += [SHORT[name]] if name in SHORT else []
    return inspect.Parameter(
        name,
        inspect.Parameter.KEYWORD_ONLY,
        default=defaults.get(name, usual),
        annotation=Annotated[kind, typer.Option(*flags, help=field.description)],
    )
