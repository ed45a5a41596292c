"""Characters: what a drawing is made of, and how wide a text is."""

import unicodedata
from dataclasses import dataclass


@dataclass(frozen=True)
class Glyphs:
    """The signs of a text drawing; heavy lines lead along the accepted path."""

    branch: str
    last: str
    down: str
    before_kept: str  # a branch that the heavy line passes
    kept: str  # the heavy line turns, and others follow below
    kept_last: str
    kept_down: str
    arrow: str
    ellipsis: str
    full: str
    upper: str
    lower: str
    bars: str


UNICODE = Glyphs("├─ ", "└─ ", "│  ", "┠─ ", "┡━ ", "┗━ ", "┃  ", "→", "…", "█", "▀", "▄", "▁▂▃▄▅▆▇█")
ASCII = Glyphs("|- ", "`- ", "|  ", "#- ", "#= ", "#= ", "#  ", "->", "...", "#", "'", ",", ".:-=+*#@")


class Ink:
    """Colours of a terminal; every colour repeats what a sign already says.

    Args:
        color: Whether to write escape sequences at all.
    """

    def __init__(self, color: bool) -> None:
        self._color = color

    def kept(self, text: str) -> str:
        """Of the accepted path."""
        return self._paint("1;32", text)

    def bonus(self, text: str) -> str:
        """Of the bonus token."""
        return self._paint("1;33", text)

    def dim(self, text: str) -> str:
        """Of what matters less."""
        return self._paint("2", text)

    def bold(self, text: str) -> str:
        """Of a heading."""
        return self._paint("1", text)

    def _paint(self, code: str, text: str) -> str:
        return f"\x1b[{code}m{text}\x1b[0m" if self._color and text else text


def text_width(text: str) -> int:
    """Columns that a text takes in a terminal."""
    return sum(_char_width(char) for char in text)


def pad(text: str, width: int) -> str:
    """The text with blanks behind it up to `width` columns."""
    return text + " " * max(0, width - text_width(text))


def shorten(text: str, width: int, ellipsis: str = "…") -> str:
    """The text, cut to at most `width` columns with an ellipsis at its end."""
    if text_width(text) <= width:
        return text
    out, used = "", text_width(ellipsis)
    for char in text:
        used += _char_width(char)
        if used > width:
            break
        out += char
    return out + ellipsis


def _char_width(char: str) -> int:
    if unicodedata.combining(char) or unicodedata.category(char) in ("Mn", "Me", "Cf"):
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1
