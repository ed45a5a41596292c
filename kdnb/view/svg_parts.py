"""SVG as strings: escaping, numbers, the style sheet, and panels that a picture is put together of."""

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass

from kdnb.view.glyphs import text_width

FONT = "ui-monospace,SFMono-Regular,Menlo,Consolas,'DejaVu Sans Mono',monospace"
CHAR = 0.62  # width of a character per font size, with a little room
NO_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
# Every colour can be set from outside by a variable of its name. Node labels stand on a fill of their
# own, and what stands on the page is of middle brightness: legible on light and on dark.
LIGHT = {
    "ink": "#6c7683",
    "line": "#9aa5b1",
    "node": "#edf0f4",
    "node-line": "#aab4c0",
    "node-ink": "#1f2733",
    "kept": "#0d7f75",
    "kept-ink": "#ffffff",
    "bonus": "#fdf0d9",
    "bonus-line": "#c2740c",
    "bonus-ink": "#8a4a06",
    "wrong": "#d1242f",
}
DARK = {
    "ink": "#a9b4c2",
    "line": "#6b7683",
    "node": "#2b323c",
    "node-line": "#57626f",
    "node-ink": "#e4e9ef",
    "kept": "#2dd4bf",
    "kept-ink": "#042f2b",
    "bonus": "#3a2a12",
    "bonus-line": "#f0a03c",
    "bonus-ink": "#fcd08f",
    "wrong": "#ff7b72",
}
RULES = """\
.kdnb text{font-family:FONT;font-size:11px;fill:var(--k-ink);white-space:pre}
.kdnb .edge{fill:none;stroke:var(--k-line)}
.kdnb .edge.agreed{stroke:var(--k-kept);stroke-dasharray:2 2}
.kdnb .edge.kept{stroke:var(--k-kept)}
.kdnb .edge.bonus{stroke:var(--k-bonus-line);stroke-dasharray:4 3}
.kdnb .node rect{fill:var(--k-node);stroke:var(--k-node-line)}
.kdnb .node text{fill:var(--k-node-ink)}
.kdnb .node .prob,.kdnb .node .index{font-size:8px;font-weight:400;opacity:.75}
.kdnb .node.kept rect{fill:var(--k-kept);stroke:var(--k-kept)}
.kdnb .node.kept text{fill:var(--k-kept-ink)}
.kdnb .node.kept .token{font-weight:700}
.kdnb .node.bonus rect{fill:var(--k-bonus);stroke:var(--k-bonus-line);stroke-dasharray:4 3}
.kdnb .node.bonus text{fill:var(--k-bonus-ink)}
.kdnb .node.bonus .token{font-weight:700}
.kdnb .node.cut{opacity:.45}
.kdnb .cells{fill:var(--k-line)}
.kdnb .cells.kept{fill:var(--k-kept)}
.kdnb .cells.wrong{fill:var(--k-wrong)}
.kdnb .cells.thin{stroke:var(--k-line);stroke-width:.8;vector-effect:non-scaling-stroke}
.kdnb .cells.thin.kept{stroke:var(--k-kept)}
.kdnb .cells.thin.wrong{stroke:var(--k-wrong)}
.kdnb .band{fill:var(--k-kept);opacity:.14}
.kdnb .frame{fill:none;stroke:var(--k-line)}
.kdnb .prefix{fill:var(--k-line);opacity:.45}
.kdnb text.head{font-weight:700}
.kdnb text.small{font-size:9px}
.kdnb text.kept{fill:var(--k-kept);font-weight:700}
"""


@dataclass(frozen=True)
class Panel:
    """A part of a picture: its size and the elements drawn from its own origin."""

    width: float
    height: float
    elements: tuple[str, ...]

    def at(self, x: float, y: float) -> str:
        """The panel moved to a place."""
        return f'<g transform="translate({num(x)} {num(y)})">{"".join(self.elements)}</g>'


def printable(text: str) -> str:
    """The text, with a backslash and "xNN" for each character that XML forbids."""
    return NO_XML.sub(lambda found: f"\\x{ord(found.group()):02x}", text)


def escape(text: str) -> str:
    """Text for an XML element or attribute."""
    allowed = printable(text)
    for char, entity in (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;"), ('"', "&quot;")):
        allowed = allowed.replace(char, entity)
    return allowed


def num(value: float) -> str:
    """A coordinate: at most two decimals, none without need."""
    text = f"{value:.2f}".rstrip("0").rstrip(".")
    return "0" if text == "-0" else text


def label(x: float, y: float, text: str, kind: str = "", anchor: str = "") -> str:
    """A text element; anchor is "middle" or "end"."""
    attributes = (f' class="{kind}"' if kind else "") + (f' text-anchor="{anchor}"' if anchor else "")
    return f'<text x="{num(x)}" y="{num(y)}"{attributes}>{escape(text)}</text>'


def label_width(text: str, size: float = 11) -> float:
    """Width to leave for a text."""
    return text_width(text) * size * CHAR


def beside(panels: Sequence[Panel], gap: float, room: float) -> Panel:
    """Panels in lines, each line as wide as `room` allows, at least one panel per line."""
    elements: list[str] = []
    x = y = widest = line_height = 0.0
    for panel in panels:
        if x and x + panel.width > room:
            x, y, line_height = 0.0, y + line_height + gap, 0.0
        elements.append(panel.at(x, y))
        widest = max(widest, x + panel.width)
        line_height = max(line_height, panel.height)
        x += panel.width + gap
    return Panel(widest, y + line_height, tuple(elements))


def document(panel: Panel, title: str, description: str, margin: float = 10) -> str:
    """A whole SVG file.

    Args:
        panel: What it shows.
        title: Its accessible name.
        description: What it shows, in words.
        margin: Room around the panel.

    Returns:
        SVG text; the same arguments always give the same text.
    """
    body = panel.at(margin, margin)
    width, height = panel.width + 2 * margin, panel.height + 2 * margin
    name = "kdnb-" + hashlib.sha256(f"{title}{description}{body}".encode()).hexdigest()[:10]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="kdnb" role="img" '
        f'aria-labelledby="{name}-title {name}-desc" width="{num(width)}" height="{num(height)}" '
        f'viewBox="0 0 {num(width)} {num(height)}" style="max-width:100%;height:auto">'
        f'<title id="{name}-title">{escape(title)}</title>'
        f'<desc id="{name}-desc">{escape(description)}</desc>'
        f"<style>{_style()}</style>{body}</svg>\n"
    )


def _style() -> str:
    dark = f"@media (prefers-color-scheme:dark){{.kdnb{{{_variables(DARK)}}}}}\n"
    return f".kdnb{{{_variables(LIGHT)}}}\n{dark}{RULES.replace('FONT', FONT)}"


def _variables(colors: dict[str, str]) -> str:
    return "".join(f"--k-{name}:var(--kdnb-{name},{value});" for name, value in colors.items())
