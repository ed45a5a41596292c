"""The command line. Commands are imported when they are called, so that `kdnb --help` is quick."""

import importlib
import io
import os
import sys
from collections.abc import Sequence

import click

from kdnb import __version__
from kdnb.errors import KdnbError

COMMANDS = {  # name -> "module:attribute", in the order of the help
    "demo": "kdnb.cli.demo:demo",
    "generate": "kdnb.cli.generate:generate",
    "lab": "kdnb.cli.lab:lab",
    "doctor": "kdnb.cli.doctor:doctor",
    "bench": "kdnb.cli.bench:bench",
    "view": "kdnb.cli.view:view",
    "diff": "kdnb.cli.diff:diff",
    "export": "kdnb.cli.export:export",
    "notebooks": "kdnb.cli.lab:notebooks",
    "nb": "kdnb.cli.nb:nb",
}


BLAS_THREADS = ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")


class LazyGroup(click.Group):
    """A group whose commands live in modules of their own."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command to run."""
        if args[0] == "demo":  # its matrices are so small that more threads only wait for each other,
            for name in BLAS_THREADS:  # for seconds where other programs want the cores
                os.environ.setdefault(name, "1")  # read when numpy is loaded, which it is not yet
        return super().resolve_command(ctx, args)

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names in the order of COMMANDS."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a command."""
        home = COMMANDS.get(cmd_name)
        if home is None:
            return None
        module, attribute = home.split(":")
        command: click.Command = getattr(importlib.import_module(module), attribute)
        return command


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="kdnb")
def cli() -> None:
    """Draft-tree speculative decoding (DDTree) of MLA/MoE models, step by step.

    Start with `kdnb demo`. Every command takes --json [FILE] for output that programs read.
    """


def main(args: Sequence[str] | None = None) -> None:
    """Run the command line; a user's mistake is one line on standard error and exit status 2.

    Args:
        args: Words of the command line; None takes the process's own.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal that lacks a character is no reason to stop
    try:
        status = cli.main(args, prog_name="kdnb", standalone_mode=False)
        sys.exit(status if isinstance(status, int) else 0)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except KdnbError as error:
        click.echo(f"Error: {error}", err=True)
        sys.exit(2)
    except (click.Abort, KeyboardInterrupt):
        click.echo("Interrupted.", err=True)
        sys.exit(130)
    except BrokenPipeError:  # the reader has had enough, as in `kdnb view x.json | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(141)
