"""Options and helpers that commands share."""

import importlib
import inspect
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from kdnb.cli.stream import Patience, note
from kdnb.drafters import Drafter, load_drafter
from kdnb.errors import ConfigError, TraceError
from kdnb.first_token import first_token_seconds
from kdnb.model import Target, load_target
from kdnb.policies import BUILT_IN, TreePolicy
from kdnb.run import Run, write_whole

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
        callback=_check_folder,
        metavar="[FILE]",
        help="Write the result as JSON to FILE, or to standard output.",
    )(command)


def _check_folder(_context: click.Context, _option: click.Parameter, json_file: str | None) -> str | None:
    """Find out before the work, not after it, that a file cannot be written."""
    if json_file not in (None, "-") and not Path(str(json_file)).parent.is_dir():
        raise TraceError(f"{json_file!r} cannot be written: its folder does not exist.")
    if json_file not in (None, "-") and (not Path(json_file).name or Path(json_file).is_dir()):
        raise TraceError(f"{json_file!r} cannot be written: it is a folder.")
    return json_file


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
        click.option(
            "--backend",
            default="numpy",
            show_default=True,
            help="numpy, cuda, or emulated (kernels on a CPU).",
        ),
        click.option(
            "--dtype",
            default="float32",
            show_default=True,
            help="float32; float64 as a referee (numpy); bfloat16 (cuda, emulated).",
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
    else:
        write_whole(json_file, text + "\n")


def load_run(path: str) -> Run:
    """Read a trace; a long one takes seconds.

    Raises:
        TraceError: if it cannot be read.
    """
    with Patience(f"reading {path}"):
        return Run.load(path)


def open_target(
    target: str, backend: str, dtype: str, deterministic: bool, expert_cache_bytes: int | None
) -> Target:
    """Load a target; for a large one say how much was mapped and how long the first token may take."""
    with Patience(f"opening {target}") as patience:
        model = load_target(
            target,
            backend=backend,
            dtype=dtype,
            deterministic=deterministic,
            expert_cache_bytes=expert_cache_bytes,
        )
        if model.mapped_bytes >= LARGE_BYTES:
            patience.beat()
            note(f"mapped {model.mapped_bytes / 2**30:.1f} GiB of {model.name}")
            patience.rename("reading a sample to estimate the first token")
            seconds = first_token_seconds(model)
            patience.beat()
            note(
                f"the first token will take about {seconds:.0f} s: its weights are read and dequantized "
                "when they are first used"
            )
    return model


def open_drafter(drafter: str | None, target: Target) -> Drafter | None:
    """Load a drafter by folder, name, or module:attr (a drafter, or a factory).

    A factory is called with the target, or without arguments if it needs none.

    Raises:
        ConfigError: if the module or attribute does not exist, or gives no drafter.
    """
    if drafter is None:
        from kdnb.shipped import SHIPPED

        drafter = target.name if target.name in SHIPPED else "none"
    if drafter == "none":
        return None
    if is_attribute(drafter):
        found = import_attribute(drafter)
        is_drafter = isinstance(found, Drafter) and not isinstance(found, type)
        made = found if is_drafter or not callable(found) else _call(found, target)
        if not isinstance(made, Drafter):
            raise ConfigError(
                f"--drafter {drafter} gave {made!r}, which has no start, draft and commit; "
                "see kdnb.drafters.Drafter."
            )
        return made
    with Patience(f"opening {drafter}"):
        return load_drafter(drafter, target)


def open_policy(policy: str) -> str | TreePolicy:
    """A policy by name, or an object at module:attr (a class is made without arguments).

    Raises:
        ConfigError: if what is there cannot be called as a policy.
    """
    if policy in BUILT_IN or not is_attribute(policy):
        return policy
    found = import_attribute(policy)
    try:
        made: TreePolicy = found() if isinstance(found, type) else found
        inspect.signature(made).bind("draft", "node_budget")
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"{policy!r} is no tree policy, to be called with (draft, node_budget): {error}."
        ) from None
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
        home = importlib.import_module(module)
    except ImportError as error:
        raise ConfigError(f"{name!r} cannot be imported: {error}.") from None
    if not hasattr(home, attribute):
        raise ConfigError(f"module {module!r} has no {attribute!r}.")
    return getattr(home, attribute)


def _call(factory: Callable[..., Any], target: Target) -> Any:
    needed = [
        parameter
        for parameter in inspect.signature(factory).parameters.values()
        if parameter.default is parameter.empty
        and parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
    ]
    return factory(target) if needed else factory()
