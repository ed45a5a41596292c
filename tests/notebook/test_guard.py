"""The guard around nbval, which is green on stripped outputs and unknown magics."""

import copy
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from kdnb.notebooks import faults, notebooks_dir
from tests.support.notebooks import GOOD, NOTEBOOKS


def test_the_notebooks_are_found():
    assert len(NOTEBOOKS) >= 3
    assert sorted(notebooks_dir().glob("*.ipynb")) == NOTEBOOKS


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_a_committed_notebook_is_run_and_clean(path):
    assert faults(path) == []


def cell(notebook, number=0):
    return notebook["cells"][number]


BREAK = {
    "execution counts are": lambda n: cell(n).update(execution_count=None),
    "cell ids are missing": lambda n: cell(n, 1).update(id="cell-1"),
    "kernelspec is not python3": lambda n: n["metadata"]["kernelspec"].update(name="julia"),
    "widget state": lambda n: n["metadata"].update(widgets={}),
    "only 2 cells have an output": lambda n: cell(n).update(outputs=[]),
    "only 2 cells have an output to": lambda n: cell(n)["outputs"][0].update(
        data={"image/png": "A", "text/plain": "<Figure size 1x1>"}
    ),
    "only 2 cells": lambda n: cell(n).update(source="# NBVAL_IGNORE_OUTPUT\nassert True"),
    "only 2": lambda n: cell(n)["metadata"].update(tags=["nbval-skip"]),
    "no cell asserts": lambda n: [c.update(source="1") for c in n["cells"]],
    "ends in ';'": lambda n: cell(n).update(source="assert True;"),
    "uses interact": lambda n: cell(n).update(source="assert interact(f)"),
    "uses interact, Output": lambda n: cell(n).update(source="assert widgets.interact_manual(f)"),
    "stores an error: ValueError": lambda n: cell(n).update(
        outputs=[{"output_type": "error", "ename": "ValueError"}]
    ),
    "a magic is unknown": lambda n: cell(n).update(
        outputs=[
            {"output_type": "stream", "name": "stderr", "text": "UsageError: Cell magic `%%x` not found."}
        ]
    ),
    "stores a path of one machine": lambda n: cell(n)["outputs"][0]["data"].update(
        {"text/plain": "/home/me/x"}
    ),
    "names a path of one machine": lambda n: cell(n).update(source="assert open('/home/me/x')"),
    "stores a PNG of": lambda n: cell(n)["outputs"][0]["data"].update({"image/png": "A" * 200_000}),
}


def test_a_good_notebook_has_no_fault(tmp_path):
    path = tmp_path / "good.ipynb"
    path.write_text(json.dumps(GOOD))
    assert faults(path) == []


@pytest.mark.parametrize("message", BREAK)
def test_each_fault_is_named(tmp_path, message):
    notebook = copy.deepcopy(GOOD)
    BREAK[message](notebook)
    path = tmp_path / "bad.ipynb"
    path.write_text(json.dumps(notebook))
    assert any(message in fault for fault in faults(path)), faults(path)


def run_nbval(path):
    sanitize = Path(__file__).parents[2] / "notebooks" / "sanitize.cfg"
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "--nbval",
        "--nbval-current-env",
        "--nbval-cell-timeout=60",
    ]
    command += [f"--nbval-sanitize-with={sanitize}", "-p", "no:cacheprovider", "-c", "nothing.ini", path.name]
    (path.parent / "nothing.ini").write_text("[pytest]\n")
    return subprocess.run(command, cwd=path.parent, capture_output=True, text=True, check=False, timeout=180)


def test_one_changed_digit_turns_nbval_red(tmp_path):
    """The proof that stored outputs are compared at all."""
    path = tmp_path / "notebook.ipynb"
    path.write_text(json.dumps(GOOD))
    done = run_nbval(path)
    assert done.returncode == 0, done.stdout
    assert "3 passed" in done.stdout
    wrong = copy.deepcopy(GOOD)
    wrong["cells"][1]["outputs"][0]["data"]["text/plain"] = "223"
    path.write_text(json.dumps(wrong))
    done = run_nbval(path)
    assert done.returncode == 1
    assert "1 failed" in done.stdout


def test_refresh_makes_the_outputs_of_a_notebook(tmp_path):
    from kdnb.notebooks import refresh

    stripped = copy.deepcopy(GOOD)
    for one in stripped["cells"]:
        one.update(outputs=[], execution_count=None)
    split = "import time\nfor number in range(3):\n    print(number, flush=True)\n    time.sleep(0.3)"
    stripped["cells"][0]["source"] = split
    path = tmp_path / "notebook.ipynb"
    path.write_text(json.dumps(stripped))
    assert faults(path) != []
    refresh(path)
    assert faults(path) == []
    first = path.read_text()
    refresh(path)
    assert path.read_text() == first
    assert "333" in first
    stream = json.loads(first)["cells"][0]["outputs"]
    assert [output["text"] for output in stream] == ["0\n1\n2\n"]  # one, however slowly it came


@pytest.mark.parametrize("path", NOTEBOOKS[:1], ids=lambda path: path.name)
def test_a_changed_output_of_a_real_notebook_turns_nbval_red(path, tmp_path):
    copied = tmp_path / path.name
    shutil.copy(path, copied)
    notebook = json.loads(copied.read_text())
    for one in notebook["cells"]:
        for output in one.get("outputs", []):
            text = "".join(output.get("text", []))
            digits = [i for i, c in enumerate(text) if c.isdigit()]
            if output["output_type"] == "stream" and digits:
                at = digits[0]
                output["text"] = text[:at] + str((int(text[at]) + 1) % 10) + text[at + 1 :]
                copied.write_text(json.dumps(notebook))
                assert run_nbval(copied).returncode == 1
                return
    raise AssertionError("the notebook prints no number")


@pytest.mark.parametrize("text", ["", "{}", "[1]", "# not a notebook"])
def test_what_is_no_notebook_is_refused(tmp_path, text):
    from kdnb.errors import ConfigError
    from kdnb.notebooks import refresh

    path = tmp_path / "x.ipynb"
    path.write_text(text)
    for act in (faults, refresh):
        with pytest.raises(ConfigError, match="is no notebook"):
            act(path)
