"""`kdnb nb`: keeping notebooks true."""

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import click

from kdnb.cli.options import json_option, write_json
from kdnb.cli.stream import note
from kdnb.doctor import install_line
from kdnb.errors import ConfigError
from kdnb.notebooks import faults, notebooks_dir
from kdnb.notebooks import refresh as run_notebook


@click.group()
def nb() -> None:
    """Refresh and check notebooks whose outputs are tests."""


@nb.command()
@click.argument("paths", nargs=-1, type=click.Path())
@json_option
def refresh(paths: tuple[str, ...], json_file: str | None) -> None:
    """Run notebooks and store their outputs; without PATHS all that come with kdnb."""
    chosen = _chosen(paths)
    for path in chosen:
        note(f"running {path.name} ...")
        run_notebook(path)
    if json_file is not None:
        write_json({"refreshed": [str(path) for path in chosen]}, json_file)


@nb.command()
@click.argument("paths", nargs=-1, type=click.Path())
@click.option("--quick", is_flag=True, help="Look at what is stored, run nothing.")
@json_option
def check(paths: tuple[str, ...], quick: bool, json_file: str | None) -> None:
    """Check that notebooks are run, clean, and give their stored outputs again; exit status 1 if not."""
    chosen = _chosen(paths)
    found = [fault for path in chosen for fault in faults(path)]
    failed = False
    if not quick and not found:
        if find_spec("nbval") is None:
            raise ConfigError(
                f"comparing outputs needs nbval; run: {install_line('test')}, or look only at what is "
                "stored: kdnb nb check --quick."
            )
        sanitize = notebooks_dir() / "sanitize.cfg"
        done = subprocess.run(
            [
                *(sys.executable, "-m", "pytest", "-q", "--nbval", "--nbval-current-env"),
                *("--nbval-cell-timeout=60", f"--nbval-sanitize-with={sanitize}"),
                *map(str, chosen),
            ],
            check=False,
            stdout=subprocess.DEVNULL if json_file is not None else None,
        )
        if done.returncode not in (0, 1):
            raise ConfigError(f"pytest ended with status {done.returncode} and compared nothing.")
        failed = done.returncode == 1
    if json_file is not None:
        write_json({"faults": found, "outputs_differ": failed}, json_file)
    else:
        click.echo("\n".join(found) if found else "outputs differ" if failed else "all is well")
    if found or failed:
        raise click.exceptions.Exit(1)


def _chosen(paths: tuple[str, ...]) -> list[Path]:
    chosen = [Path(path) for path in paths] or sorted(notebooks_dir().glob("*.ipynb"))
    for path in chosen:
        if not path.is_file():
            raise ConfigError(f"{str(path)!r} is not a notebook file.")
    return chosen
