"""What a terminal sees while work goes on: tokens as they come, and signs of life."""

import os
import subprocess
import sys
import threading
import time
from types import TracebackType
from typing import Self

import click

from kdnb.model import Target

SILENCE = 1.5  # seconds without output before a sign of life
MAX_SILENCE = 2.0  # nobody waits longer without one
UNFINISHED = "\ufffd"  # what bytes decode to that are no whole character


def note(text: str) -> None:
    """Say what is going on, on standard error."""
    click.echo(text, err=True)


def restart(command: list[str]) -> None:
    """Become another program; on Windows, where exec would return to the shell at once, wait for it."""
    sys.stdout.flush()
    if os.name == "nt":
        raise click.exceptions.Exit(subprocess.call(command))
    os.execv(command[0], command)


def use_color() -> bool:
    """Whether standard output is a terminal that wants colours (NO_COLOR is respected)."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def ascii_only() -> bool:
    """Whether standard output cannot take box-drawing characters."""
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    try:
        "┡█→".encode(encoding)
    except (UnicodeEncodeError, LookupError):
        return True
    return False


class Streamer:
    """Gives the text of tokens while they come, whole characters only.

    Args:
        target: Whose tokenizer to use; without one the ids themselves are given.
    """

    def __init__(self, target: Target) -> None:
        self._tokenizer = target.tokenizer
        self._ids: list[int] = []
        self._context = 0  # tokens that are decoded only because others stand behind them
        self._given = 0  # tokens whose text was given

    def push(self, token_id: int) -> str:
        """Take the next token; return the text that is new and certain."""
        if self._tokenizer is None:
            return f"{token_id} "
        self._ids.append(token_id)
        before = self._tokenizer.decode(self._ids[self._context : self._given])
        now = self._tokenizer.decode(self._ids[self._context :])
        if now.endswith(UNFINISHED) and len(self._ids) - self._given < 8:
            return ""
        self._context, self._given = self._given, len(self._ids)
        return safe(now[len(before) :])

    def rest(self) -> str:
        """What is left of an unfinished character when no token follows."""
        if self._tokenizer is None or self._given == len(self._ids):
            return ""
        before = self._tokenizer.decode(self._ids[self._context : self._given])
        return safe(self._tokenizer.decode(self._ids[self._context :])[len(before) :])


def safe(text: str) -> str:
    """Text without control characters that could change a terminal: they become visible codes."""
    return "".join(c if c.isprintable() or c in "\n\t" else f"\\x{ord(c):02x}" for c in text)


class Patience:
    """Says on standard error that work goes on, when nothing else was shown for a while.

    Use as a context; `stop` ends the signs early.

    Args:
        what: What is going on.
    """

    def __init__(self, what: str) -> None:
        self._what = what
        self._terminal = sys.stderr.isatty()
        self._done = threading.Event()
        self._began = self._last = time.monotonic()
        self._silence = SILENCE
        self._written = False
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def rename(self, what: str) -> None:
        """Something else is going on now."""
        with self._lock:
            self._what = what

    def beat(self) -> None:
        """Something is about to be shown: make room for it, and wait again."""
        with self._lock:
            self._clear()
            self._last, self._silence = time.monotonic(), SILENCE

    def stop(self) -> None:
        """Be silent from now on."""
        with self._lock:
            self._done.set()
            self._clear()

    def _watch(self) -> None:
        while not self._done.wait(0.2):
            with self._lock:
                now = time.monotonic()
                if self._done.is_set() or now - self._last < self._silence:
                    continue
                words = f"... {self._what}, {now - self._began:.0f} s"
                self._last = now
                if self._terminal:
                    click.echo(f"\r{words}", nl=False, err=True)
                    self._written, self._silence = True, 1.0
                else:
                    note(words)
                    self._silence = min(2 * self._silence, MAX_SILENCE)

    def _clear(self) -> None:
        if self._written:
            click.echo("\r\x1b[K", nl=False, err=True)
            self._written = False
