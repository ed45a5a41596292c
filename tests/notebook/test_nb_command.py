"""`kdnb nb`: what it says, and its exit status: 1 for a faulty notebook, 2 for a mistake of the caller."""

import json
import subprocess
import sys

import pytest

from kdnb import notebooks
from kdnb.cli import main
from kdnb.cli import nb as command
from tests.support.notebooks import GOOD, NOTEBOOKS


@pytest.fixture
def nb(capsys):
    """nb("check", path) -> exit status, standard output, standard error."""

    def run(*args):
        with pytest.raises(SystemExit) as caught:
            main(["nb", *map(str, args)])
        out, err = capsys.readouterr()
        return caught.value.code or 0, out, err

    return run


@pytest.fixture
def good(tmp_path):
    path = tmp_path / "good.ipynb"
    path.write_text(json.dumps(GOOD))
    return path


def test_check_without_paths_looks_at_ours(nb):
    assert nb("check", "--quick") == (0, "all is well\n", "")


def test_check_names_faults(nb, good):
    good.write_text(good.read_text().replace("assert True", "True"))
    status, out, _ = nb("check", good)
    assert (status, out) == (1, "good.ipynb: no cell asserts anything\n")
    assert nb("check", good, "--json")[0] == 1


def test_check_compares_outputs(good):
    def check(*args):
        line = [sys.executable, "-m", "kdnb", "nb", "check", str(good), *args]
        return subprocess.run(line, capture_output=True, text=True, check=False, timeout=180)

    assert check().stdout.endswith("all is well\n")
    good.write_text(good.read_text().replace('"222"', '"223"'))
    done = check("--json")
    assert done.returncode == 1
    assert json.loads(done.stdout) == {"faults": [], "outputs_differ": True}


def test_check_without_nbval_says_what_to_install(nb, good, monkeypatch):
    monkeypatch.setattr(command, "find_spec", lambda name: None)
    status, _, err = nb("check", good)
    assert status == 2
    assert "comparing outputs needs nbval; run: " in err
    assert nb("check", good, "--quick")[0] == 0


def test_check_that_could_not_run_is_no_difference(nb, good, monkeypatch):
    ended = subprocess.CompletedProcess([], returncode=4)
    monkeypatch.setattr(command.subprocess, "run", lambda *args, **kwargs: ended)
    status, out, err = nb("check", good)
    assert (status, out) == (2, "")
    assert "pytest ended with status 4 and compared nothing" in err


def test_refresh_writes_outputs(nb, good):
    good.write_text(good.read_text().replace('"222"', '"223"'))
    status, out, err = nb("refresh", good, "--json")
    assert (status, json.loads(out)) == (0, {"refreshed": [str(good)]})
    assert "running good.ipynb" in err
    assert '"222"' in good.read_text()


def test_refresh_says_which_cell_failed(nb, good):
    good.write_text(good.read_text().replace("assert True", "raise ValueError('no')"))
    status, _, err = nb("refresh", good)
    assert status == 2
    assert "good.ipynb cannot be run: ValueError: no." in err


def test_refresh_leaves_the_installed_package_alone(nb, good, monkeypatch):
    monkeypatch.setattr(notebooks, "__file__", str(good.parent / "notebooks.py"))
    before = good.read_text()
    status, _, err = nb("refresh", good)
    assert status == 2
    assert "belongs to the installed package" in err
    assert good.read_text() == before


def test_a_path_that_is_not_there(nb):
    status, _, err = nb("check", "nowhere.ipynb")
    assert status == 2
    assert "'nowhere.ipynb' is not a notebook file" in err


def test_the_sanitize_file_is_found_from_every_folder():
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", NOTEBOOKS[1].name],
        cwd=NOTEBOOKS[1].parent,
        capture_output=True,
        text=True,
        check=False,
        timeout=180,
    )
    assert done.returncode == 0, done.stdout
