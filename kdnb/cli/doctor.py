"""`kdnb doctor`: what this machine can run."""

import click

from kdnb import __version__
from kdnb.cli.options import json_option, write_json
from kdnb.doctor import examine


@click.command()
@json_option
def doctor(json_file: str | None) -> None:
    """Say what this machine can run, why not the rest, and what to install for it.

    Exit status 0 if the numpy backend works, else 1.
    """
    found = examine()
    works = found["abilities"][0]["works"]
    if json_file is not None:
        write_json({"kdnb": __version__, **found}, json_file)
    if json_file != "-":
        click.echo(f"kdnb {__version__}, Python {found['python']}, {found['platform']}")
        click.echo(f"{found['cores']} cores, numpy with {found['blas']}\n")
        for ability in found["abilities"]:
            click.echo(f"{'yes' if ability['works'] else 'no ':<4} {ability['name']}: {ability['reason']}")
            if ability["mend"]:
                click.echo(f"     {ability['mend']}")
        click.echo("\npackages:")
        for name, version in found["packages"].items():
            click.echo(f"  {name:<24} {version or '-'}")
    if not works:
        raise click.exceptions.Exit(1)
