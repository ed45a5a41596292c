"""Options and helpers that commands share."""

import importlib
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from kdnb.drafters import Drafter, load_drafter
from kdnb.errors import ConfigError, TraceError
from kdnb.first_token import first_token_seconds
from kdnb.model import Target, load_target
from kdnb.policies import BUILT_IN, TreePolicy

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]
LARGE_BYTES = 2 << 30  # from here on opening a checkpoint says what to expect


def json_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """--json [FILE]: write the result as JSON, to standard output if no file is named."""
    return click.option(
        "--json",
        "json_file",
        is_flag=False,
        flag_value="-",
        default=None,
        metavar="[FILE]",
        help="Write the result as JSON to FILE, or to standard output.",
    )(command)


def model_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """--target, --drafter, --backend, --dtype and the memory budget."""
    options: list[Decorator] = [
        click.option(
            "--target", default="tiny", show_default=True, help="Checkpoint folder or shipped name."
        ),
        click.option(
            "--drafter",
            default=None,
            help="DFlash folder, shipped name, ngram, none, or module:factory. Default: the target's own "
            "if it is a shipped one, else none.",
        ),
        click.option("--backend", default="numpy", show_default=True, help="Where to run."),
        click.option(
            "--dtype", default="float32", show_default=True, help="float32, or float64 as a referee."
        ),
        click.option(
            "--deterministic", is_flag=True, help="Row by row: equal to plain decoding bit for bit."
        ),
        click.option(
            "--expert-cache-bytes",
            type=int,
            default=None,
            help="Memory for dequantized weights. Default: half of the machine's.",
        ),
    ]
    for option in reversed(options):
        command = option(command)
    return command


def write_json(data: Any, json_file: str) -> None:
    """Write JSON to a file or, for `-`, to standard output.

    Raises:
        TraceError: if the file cannot be written.
    """
    text = json.dumps(data, allow_nan=False)
    if json_file == "-":
        click.echo(text)
        return
    try:
        Path(json_file).write_text(text + "\n", encoding="utf-8")
    except OSError as error:
        raise TraceError(f"{json_file!r} cannot be written: {error.strerror}.") from None


def note(text: str) -> None:
    """Say what is going on, on standard error."""
    click.echo(text, err=True)


def open_target(
    target: str, backend: str, dtype: str, deterministic: bool, expert_cache_bytes: int | None
) -> Target:
    """Load a target; for a large one say how much was mapped and how long the first token may take."""
    model = load_target(
        target,
        backend=backend,
        dtype=dtype,
        deterministic=deterministic,
        expert_cache_bytes=expert_cache_bytes,
    )
    if model.mapped_bytes >= LARGE_BYTES:
        note(f"mapped {model.mapped_bytes / 2**30:.1f} GiB of {model.name}; estimating the first token ...")
        seconds = first_token_seconds(model)
        note(f"the first token will take about {seconds:.0f} s (weights are read and dequantized as used)")
    return model


def open_drafter(drafter: str | None, target: Target) -> Drafter | None:
    """Load a drafter by folder, name, or module:factory (called with the target).

    Raises:
        ConfigError: if the module or factory does not exist.
    """
    if drafter is None:
        from kdnb.shipped import SHIPPED

        drafter = target.name if target.name in SHIPPED else "none"
    if drafter == "none":
        return None
    if is_attribute(drafter):
        made: Drafter = import_attribute(drafter)(target)
        return made
    return load_drafter(drafter, target)


def open_policy(policy: str) -> str | TreePolicy:
    """A policy by name, or an object at module:attr (a class is made without arguments)."""
    if policy in BUILT_IN or not is_attribute(policy):
        return policy
    found = import_attribute(policy)
    made: TreePolicy = found() if isinstance(found, type) else found
    return made


def is_attribute(name: str) -> bool:
    """Whether a name has the form module:attr (and is no path of Windows)."""
    module, colon, attribute = name.partition(":")
    return bool(colon) and attribute.isidentifier() and all(p.isidentifier() for p in module.split("."))


def import_attribute(name: str) -> Any:
    """Import module:attr, looking in the current folder too.

    Raises:
        ConfigError: if there is no such module or attribute.
    """
    module, _, attribute = name.partition(":")
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        return getattr(importlib.import_module(module), attribute)
    except ImportError as error:
        raise ConfigError(f"{name!r} cannot be imported: {error}.") from None
    except AttributeError:
        raise ConfigError(f"module {module!r} has no {attribute!r}.") from None


class Streamer:
    """Writes tokens as text while they come, whole characters only."""

    def __init__(self, target: Target) -> None:
        self._tokenizer = target.tokenizer
        self._ids: list[int] = []
        self._shown = 0
        self.started = time.perf_counter()

    def __call__(self, token_id: int) -> None:
        """Take the next token."""
        if self._tokenizer is None:
            click.echo(f"{token_id} ", nl=False)
            return
        self._ids.append(token_id)
        text = self._tokenizer.decode(self._ids)
        whole = text.rstrip("\ufffd")
        click.echo(whole[self._shown :], nl=False)
        self._shown = max(self._shown, len(whole))
