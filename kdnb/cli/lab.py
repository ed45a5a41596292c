"""`kdnb lab` and `kdnb notebooks`: the notebooks, outside the package."""

import os
import shutil
import sys
from importlib.util import find_spec
from pathlib import Path

import click

from kdnb.cli.options import json_option, note, write_json
from kdnb.errors import ConfigError
from kdnb.notebooks import notebooks_dir


@click.command()
@click.option(
    "--dir", "folder", default="kdnb-notebooks", show_default=True, help="Where to copy the notebooks."
)
@click.option("--no-open", is_flag=True, help="Copy only.")
@click.argument("arguments", nargs=-1)
@json_option
def lab(folder: str, no_open: bool, arguments: tuple[str, ...], json_file: str | None) -> None:
    """Open JupyterLab on a copy of the notebooks; ARGUMENTS after -- go to jupyter lab.

    Notebooks that you changed are never overwritten.
    """
    if not no_open and find_spec("jupyterlab") is None:
        raise ConfigError('jupyterlab is not installed; run: pip install "kdnb[lab]"')
    copied = copy_notebooks(Path(folder))
    report(folder, copied, json_file)
    if not no_open:
        os.execv(
            sys.executable,
            [sys.executable, "-m", "jupyterlab", f"--notebook-dir={folder}", *arguments],
        )


@click.command()
@click.option("--copy", "folder", metavar="DIR", help="Copy the notebooks to DIR.")
@json_option
def notebooks(folder: str | None, json_file: str | None) -> None:
    """List the notebooks that come with kdnb, or copy them somewhere."""
    if folder is not None:
        report(folder, copy_notebooks(Path(folder)), json_file)
        return
    names = sorted(path.name for path in notebooks_dir().glob("*.ipynb"))
    if json_file is not None:
        write_json({"folder": str(notebooks_dir()), "notebooks": names}, json_file)
    else:
        click.echo("\n".join(names))


def copy_notebooks(folder: Path) -> dict[str, list[str]]:
    """Copy all notebooks and what they show; keep files that differ from ours.

    Returns:
        {"copied": names, "kept": names of files that are there already and differ}.

    Raises:
        ConfigError: if the folder cannot be written.
    """
    source = notebooks_dir()
    result: dict[str, list[str]] = {"copied": [], "kept": []}
    try:
        for path in sorted(source.rglob("*")):
            name = path.relative_to(source)
            if path.is_dir() or "__pycache__" in name.parts or ".ipynb_checkpoints" in name.parts:
                continue
            target = folder / name
            if target.exists() and target.read_bytes() != path.read_bytes():
                result["kept"].append(str(name))
                continue
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, target)
            result["copied"].append(str(name))
    except OSError as error:
        raise ConfigError(f"{str(folder)!r} cannot be written: {error.strerror}.") from None
    return result


def report(folder: str, result: dict[str, list[str]], json_file: str | None) -> None:
    """Say what was copied."""
    if json_file is not None:
        write_json({"folder": folder, **result}, json_file)
        return
    note(f"{len(result['copied'])} files copied to {folder}")
    if result["kept"]:
        note(f"kept your versions of: {', '.join(result['kept'])}")
