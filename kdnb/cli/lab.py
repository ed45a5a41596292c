"""`kdnb lab` and `kdnb notebooks`: the notebooks, outside the package."""

import hashlib
import json
import shutil
import sys
from importlib.util import find_spec
from pathlib import Path

import click

from kdnb.cli.options import json_option, write_json
from kdnb.cli.stream import note, restart
from kdnb.doctor import install_line
from kdnb.errors import ConfigError
from kdnb.notebooks import notebooks_dir
from kdnb.run import write_whole

DIGESTS = ".kdnb-notebooks.json"  # of the files as they were copied
SKIPPED = {"__pycache__", ".ipynb_checkpoints"}


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
        raise ConfigError(f"jupyterlab is not installed; run: {install_line('lab')}")
    copied = copy_notebooks(Path(folder))
    report(folder, copied, json_file)
    if no_open:
        return
    restart([sys.executable, "-m", "jupyterlab", f"--notebook-dir={folder}", *arguments])


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
    """Copy all notebooks and what they show; keep files that the user changed or wrote.

    What was copied is remembered by digest in the folder, so that a newer kdnb can replace the notebooks
    that nobody touched.

    Returns:
        {"copied": names of new and replaced files, "same": names of files that are there already,
        "kept": names of files that differ from ours and were changed}.

    Raises:
        ConfigError: if the folder cannot be written.
    """
    source = notebooks_dir()
    result: dict[str, list[str]] = {"copied": [], "same": [], "kept": []}
    try:
        ours = _read_digests(folder)
        for path in sorted(source.rglob("*")):
            name = path.relative_to(source)
            if path.is_dir() or SKIPPED.intersection(name.parts):
                continue
            kind = _place(path, folder / name, ours.get(name.as_posix()))
            result[kind].append(name.as_posix())
            if kind != "kept":
                ours[name.as_posix()] = _digest(path)
        write_whole(folder / DIGESTS, json.dumps(ours, indent=1, sort_keys=True) + "\n")
    except OSError as error:
        raise ConfigError(f"{str(folder)!r} cannot be written: {error.strerror or error}.") from None
    return result


def _place(path: Path, target: Path, remembered: str | None) -> str:
    """Copy one file unless the user's version would be lost."""
    if target.exists():
        digest = _digest(target)
        if digest == _digest(path):
            return "same"
        if digest != remembered:
            return "kept"
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(path, target)
    return "copied"


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _read_digests(folder: Path) -> dict[str, str]:
    try:
        found = json.loads((folder / DIGESTS).read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):  # not copied before, or damaged: then every file is the user's
        return {}
    return {str(name): str(digest) for name, digest in found.items()} if isinstance(found, dict) else {}


def report(folder: str, result: dict[str, list[str]], json_file: str | None) -> None:
    """Say what was copied."""
    if json_file is not None:
        write_json({"folder": folder, **result}, json_file)
    note(f"{folder}: {len(result['copied'])} files copied, {len(result['same'])} there already")
    if result["kept"]:
        note(f"kept your versions of: {', '.join(result['kept'])}")
