"""Where the notebooks are, how they are refreshed, and what a committed notebook must be."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kdnb.errors import ConfigError

MAX_PNG_BYTES = 100_000
MIN_CHECKED = 3  # cells of a notebook with an output that is compared
UNCOMPARED = (
    "NBVAL_IGNORE_OUTPUT",
    "NBVAL_SKIP",
)  # in a cell, or as its tag nbval-skip ...
ABSOLUTE = re.compile(r"(?<![\w:/.])/(?:home|root|tmp|Users|usr|var|opt|mnt)/|[A-Z]:\\\\")
FORBIDDEN = re.compile(r"\binteract(?:ive|ive_output|_manual)?\(|\bOutput\(|clear_output")


def notebooks_dir() -> Path:
    """The folder of the notebooks: in the package when installed, beside it in a clone.

    Raises:
        ConfigError: if neither is there.
    """
    package = Path(__file__).parent
    for folder in (package / "_notebooks", package.parent / "notebooks"):
        if any(folder.glob("*.ipynb")):
            return folder
    raise ConfigError("the notebooks are not installed with this copy of kdnb; install it again.")


def refresh(path: Path) -> None:
    """Run a notebook and write its outputs, without what changes from run to run.

    Args:
        path: The notebook.

    Raises:
        ConfigError: if nbclient is not installed, a cell fails, or the notebook is part of an installed copy.
    """
    if Path(__file__).resolve().parent in path.resolve().parents:
        raise ConfigError(
            f"{path.name} belongs to the installed package, which is left as it is; "
            "copy the notebooks first: kdnb notebooks --copy DIR."
        )
    try:
        import nbclient
        import nbformat
    except ImportError:
        raise ConfigError('refreshing needs nbclient and nbformat: pip install ".[test]"') from None
    notebook = nbformat.from_dict(_read(path))
    for number, cell in enumerate(notebook.cells):
        cell["id"] = f"cell-{number:02d}"
    client = nbclient.NotebookClient(
        notebook,
        timeout=120,
        kernel_name="python3",
        coalesce_streams=True,  # where a stream is split depends on timing
        resources={"metadata": {"path": str(path.parent)}},
    )
    try:
        client.execute()
    except nbclient.exceptions.CellExecutionError as error:
        raise ConfigError(f"{path.name} cannot be run: {error.ename}: {error.evalue}.") from None
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)
    notebook.metadata = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }
    text = json.dumps(notebook, indent=1, sort_keys=True, ensure_ascii=False)
    path.write_text(text + "\n", encoding="utf-8")


def faults(path: Path) -> list[str]:
    """What is wrong with a committed notebook, so that comparing its outputs would prove nothing.

    Args:
        path: The notebook.

    Returns:
        One sentence per fault; empty if there is none.

    Raises:
        ConfigError: if the file is no notebook.
    """
    notebook = _read(path)
    return [f"{path.name}: {fault}" for fault in _faults(notebook)]


def _read(path: Path) -> dict[str, Any]:
    """A notebook as JSON; ConfigError if the file is none."""
    try:
        notebook = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{str(path)!r} is no notebook: {error}.") from None
    if not isinstance(notebook, dict) or "cells" not in notebook or notebook.get("nbformat") != 4:
        raise ConfigError(f"{str(path)!r} is no notebook of format 4.")
    return notebook


def _faults(notebook: dict[str, Any]) -> Iterator[str]:
    cells = notebook["cells"]
    code = [cell for cell in cells if cell["cell_type"] == "code" and "".join(cell["source"]).strip()]
    ids = [cell.get("id") for cell in cells]
    if None in ids or len(set(ids)) != len(ids):
        yield "cell ids are missing or not unique"
    counts = [cell.get("execution_count") for cell in code]
    if counts != list(range(1, len(code) + 1)):
        yield f"execution counts are {counts}, expected 1 to {len(code)}: run it with kdnb nb refresh"
    if notebook["metadata"].get("kernelspec", {}).get("name") != "python3":
        yield "the kernelspec is not python3"
    if "widgets" in notebook["metadata"]:
        yield "widget state is stored in its metadata"
    checked = 0
    for number, cell in enumerate(code, start=1):
        source = "".join(cell["source"])
        checked += _is_compared(cell, source)
        yield from (f"code cell {number} {fault}" for fault in _cell_faults(cell, source))
    if checked < min(MIN_CHECKED, len(code)):
        yield f"only {checked} cells have an output to compare, expected {MIN_CHECKED} or more"
    if not any("assert" in "".join(cell["source"]) for cell in code):
        yield "no cell asserts anything"


def _is_compared(cell: dict[str, Any], source: str) -> bool:
    """Whether nbval compares something of a cell: text or SVG, not a bitmap nor `<Figure ...>`."""
    tags = [tag.upper().replace("-", "_") for tag in cell["metadata"].get("tags", [])]
    if any(mark in source or mark in tags for mark in UNCOMPARED):
        return False
    for output in cell["outputs"]:
        data = output.get("data", {})
        plain = "".join(data.get("text/plain", ""))
        if output["output_type"] == "stream" or "image/svg+xml" in data or plain[:1] not in ("", "<"):
            return True
    return False


def _cell_faults(cell: dict[str, Any], source: str) -> Iterator[str]:
    tags = cell["metadata"].get("tags", [])
    if source.rstrip().endswith(";"):
        yield "ends in ';', which nbval does not honour"
    if FORBIDDEN.search(source):
        yield "uses interact, Output or clear_output, which nbval cannot compare"
    for output in cell["outputs"]:
        text = json.dumps(output)
        if output["output_type"] == "error" and "raises-exception" not in tags:
            yield f"stores an error: {output.get('ename')}"
        if "UsageError" in text:
            yield "stores a UsageError: a magic is unknown"
        if ABSOLUTE.search(text):
            yield "stores a path of one machine"
        png = output.get("data", {}).get("image/png", "")
        if len(png) * 3 // 4 > MAX_PNG_BYTES:
            yield f"stores a PNG of {len(png) * 3 // 4} bytes, {MAX_PNG_BYTES} at the most"
    if ABSOLUTE.search(source):
        yield "names a path of one machine"
