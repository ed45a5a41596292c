"""The command line as a whole, `doctor`, `notebooks`, `lab` and `bench`."""

import json
import os
import subprocess
import sys
import time

import pytest

import kdnb as package
from kdnb import doctor as doctor_module
from kdnb.cli import COMMANDS
from kdnb.cli import lab as lab_command
from kdnb.cli.stream import Patience
from kdnb.errors import ConfigError


def run_python(*args, **environment):
    return subprocess.run(
        [sys.executable, *args],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **environment},
    )


def test_python_dash_m_and_version():
    done = run_python("-m", "kdnb", "--version")
    assert done.stdout == f"kdnb, version {package.__version__}\n"
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("option", ["-h", "--help"])
def test_help_lists_every_command(kdnb, option):
    result = kdnb(option)
    assert result.status == 0
    for name in COMMANDS:
        assert f"\n  {name} " in result.out


@pytest.mark.parametrize("name", [name for name in COMMANDS if name != "nb"])
def test_every_command_has_help_and_takes_json(kdnb, name):
    result = kdnb(name, "-h")
    assert result.status == 0
    assert "--json [FILE]" in result.out


def test_an_unknown_command_or_option(kdnb):
    result = kdnb("dance")
    assert result.status == 2
    assert "No such command 'dance'" in result.err
    assert kdnb("demo", "--slowly").status == 2


def test_help_is_quick_because_no_library_is_loaded():
    code = (
        "import sys; from kdnb.cli import main\n"
        "try: main(['--version'])\nexcept SystemExit: pass\n"
        "assert 'numpy' not in sys.modules, 'numpy'"
    )
    assert run_python("-c", code).returncode == 0


def test_mistakes_in_a_real_process():
    done = run_python("-m", "kdnb", "generate", "--prompt", "x", "--target", "/nonexistent")
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("Error: ")
    assert done.stderr.count("\n") == 1


def test_pure_json_in_a_real_process():
    done = run_python("-m", "kdnb", "generate", "--prompt", "def f(", "--max-new-tokens", "8", "--json")
    assert len(json.loads(done.stdout)["token_ids"]) == 8
    assert done.stderr == ""


def test_ctrl_c_is_status_130(tmp_path):
    code = (
        "import kdnb.cli.generate as g\n"
        "def stop(*a, **k): raise KeyboardInterrupt\n"
        "g.decode = stop\nfrom kdnb.cli import main\nmain(['generate', '--prompt', 'x'])"
    )
    done = run_python("-c", code)
    assert done.returncode == 130
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(("given", "expected"), [(None, "1"), ("3", "3")])
def test_demo_asks_blas_for_one_thread_unless_told_otherwise(given, expected):
    code = (
        "import os, sys; from kdnb.cli import main\n"
        "try: main(['demo', '--max-new-tokens', '1', '--json'])\nexcept SystemExit: pass\n"
        "print(os.environ['OPENBLAS_NUM_THREADS'], file=sys.stderr)"
    )
    environment = {name: value for name, value in os.environ.items() if name != "OPENBLAS_NUM_THREADS"}
    if given:
        environment["OPENBLAS_NUM_THREADS"] = given
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, env=environment)
    assert done.stderr.decode().splitlines()[-1] == expected  # before it may stand words for a slow machine


def test_doctor_says_what_works(kdnb):
    result = kdnb("doctor")
    assert result.status == 0
    assert "yes  numpy backend: the shipped model runs" in result.out
    assert "cuda backend" in result.out
    data = json.loads(kdnb("doctor", "--json").out)
    assert data["kdnb"] == package.__version__
    assert data["packages"]["numpy"]
    assert {"python", "platform", "cores", "blas", "abilities"} <= set(data)
    assert data["abilities"][0]["works"] is True


def test_doctor_on_a_machine_that_lacks_things(kdnb, monkeypatch):
    real = doctor_module._version
    gone = ("jupyterlab", "transformers", "tiktoken")
    monkeypatch.setattr(doctor_module, "_version", lambda name: None if name in gone else real(name))
    out = kdnb("doctor").out
    assert "no   notebooks (kdnb lab): jupyterlab is not installed" in out
    assert '[lab]"' in out
    assert '[reference]"' in out
    assert "not installed: tiktoken" in out


def test_the_install_line_names_where_it_came_from(monkeypatch, tmp_path):
    monkeypatch.setattr(doctor_module, "__file__", str(tmp_path / "site-packages" / "kdnb" / "doctor.py"))
    clone = tmp_path / "a clone"
    clone.mkdir()
    (clone / "pyproject.toml").write_text("")

    class Distribution:
        def read_text(self, name):
            return json.dumps({"url": clone.as_uri(), "dir_info": {}})

    monkeypatch.setattr("importlib.metadata.distribution", lambda name: Distribution())
    assert doctor_module.install_line("lab").endswith(f'pip install "{clone}[lab]"')
    (clone / "pyproject.toml").unlink()
    assert doctor_module.install_line("lab").endswith('pip install ".[lab]"   (in a clone of kdnb)')


def test_doctor_fails_where_numpy_does_not_work(kdnb, monkeypatch):
    def broken(*_args, **_options):
        raise ImportError("libopenblas is missing")

    monkeypatch.setattr("kdnb.model.load_target", broken)
    result = kdnb("doctor")
    assert result.status == 1
    assert "no   numpy backend: ImportError: libopenblas is missing" in result.out


def test_the_driver_is_asked_by_cu_init_alone(monkeypatch):
    class Library:
        def __init__(self, status):
            self.cuInit = lambda flags: status

    monkeypatch.setattr("ctypes.CDLL", lambda name: Library(0))
    assert doctor_module._driver() == doctor_module.DRIVER_WORKS
    monkeypatch.setattr("ctypes.CDLL", lambda name: Library(100))
    assert "cuInit fails with error 100" in doctor_module._driver()


@pytest.fixture
def notebooks(tmp_path, monkeypatch):
    """A folder of two notebooks that stands for the shipped ones."""
    source = tmp_path / "shipped"
    (source / "pictures").mkdir(parents=True)
    (source / "00_start.ipynb").write_text("one")
    (source / "01_next.ipynb").write_text("two")
    (source / "pictures" / "a.svg").write_text("<svg/>")
    (source / ".ipynb_checkpoints").mkdir()
    (source / ".ipynb_checkpoints" / "x.ipynb").write_text("junk")
    monkeypatch.setattr(lab_command, "notebooks_dir", lambda: source)
    return source


def test_notebooks_are_listed_and_copied(kdnb, notebooks, tmp_path):
    assert kdnb("notebooks").out == "00_start.ipynb\n01_next.ipynb\n"
    assert json.loads(kdnb("notebooks", "--json").out)["notebooks"] == ["00_start.ipynb", "01_next.ipynb"]
    target = tmp_path / "mine"
    data = json.loads(kdnb("notebooks", "--copy", target, "--json").out)
    assert data["copied"] == ["00_start.ipynb", "01_next.ipynb", "pictures/a.svg"]
    assert (target / "pictures" / "a.svg").read_text() == "<svg/>"
    assert not (target / ".ipynb_checkpoints").exists()


def test_changed_notebooks_are_kept_and_untouched_ones_replaced(kdnb, notebooks, tmp_path):
    target = tmp_path / "mine"
    kdnb("notebooks", "--copy", target)
    (target / "00_start.ipynb").write_text("my own work")
    (notebooks / "00_start.ipynb").write_text("one, newer")
    (notebooks / "01_next.ipynb").write_text("two, newer")
    for _ in range(2):
        result = kdnb("notebooks", "--copy", target)
        assert "kept your versions of: 00_start.ipynb" in result.err
        assert (target / "00_start.ipynb").read_text() == "my own work"
        assert (target / "01_next.ipynb").read_text() == "two, newer"
    (target / ".kdnb-notebooks.json").write_text("damaged")
    (notebooks / "01_next.ipynb").write_text("two, newest")
    kdnb("notebooks", "--copy", target)
    assert (target / "01_next.ipynb").read_text() == "two, newer"  # nobody knows whose it is


def test_notebooks_that_cannot_be_copied(kdnb, notebooks, tmp_path):
    (tmp_path / "file").write_text("")
    result = kdnb("notebooks", "--copy", tmp_path / "file" / "below")
    assert result.status == 2
    assert "cannot be written" in result.err


def test_lab_copies_and_starts_jupyterlab_with_the_words_behind_the_dashes(
    kdnb, notebooks, tmp_path, monkeypatch
):
    started = []
    monkeypatch.setattr("os.execv", lambda path, words: started.append((path, words)))
    monkeypatch.setattr("kdnb.cli.lab.find_spec", lambda name: name)  # jupyterlab need not be installed
    monkeypatch.chdir(tmp_path)
    result = kdnb("lab", "--", "--no-browser", "--port", "1234")
    assert result.status == 0
    assert (tmp_path / "kdnb-notebooks" / "00_start.ipynb").read_text() == "one"
    [(path, words)] = started
    assert path == sys.executable
    assert words[1:] == [
        "-m",
        "jupyterlab",
        "--notebook-dir=kdnb-notebooks",
        "--no-browser",
        "--port",
        "1234",
    ]


def test_lab_without_jupyterlab(kdnb, notebooks, tmp_path, monkeypatch):
    monkeypatch.setattr(lab_command, "find_spec", lambda name: None)
    monkeypatch.chdir(tmp_path)
    result = kdnb("lab")
    assert result.status == 2
    assert "jupyterlab is not installed; run: " in result.err
    assert '[lab]"' in result.err
    assert not (tmp_path / "kdnb-notebooks").exists()
    assert kdnb("lab", "--no-open").status == 0


def test_notebooks_dir_looks_in_the_package_and_beside_it(tmp_path, monkeypatch):
    from kdnb import notebooks as module

    package_folder = tmp_path / "site" / "kdnb"
    package_folder.mkdir(parents=True)
    monkeypatch.setattr(module, "__file__", str(package_folder / "notebooks.py"))
    with pytest.raises(ConfigError, match="the notebooks are not installed"):
        module.notebooks_dir()
    beside = tmp_path / "site" / "notebooks"
    beside.mkdir()
    (beside / "a.ipynb").write_text("")
    assert module.notebooks_dir() == beside
    inside = package_folder / "_notebooks"
    inside.mkdir()
    (inside / "a.ipynb").write_text("")
    assert module.notebooks_dir() == inside


def test_bench_measures_and_says_on_what(kdnb, monkeypatch):
    monkeypatch.setattr("kdnb.bench.find_spec", lambda name: None)
    words = ("bench", "--repeat", 2, "--max-new-tokens", 24, "--prefill", 32)
    data = json.loads(kdnb(*words, "--json").out)
    rows = {row["name"]: row for row in data["rows"]}
    assert set(rows) == {"kdnb plain", "kdnb draft trees", "kdnb prefill 32"}
    plain = rows["kdnb plain"]
    assert len(plain["seconds"]) == 2
    assert plain["tokens_per_second"] == pytest.approx(24 / (sum(plain["seconds"]) / 2), rel=0.01)
    assert data["same_tokens"] is True
    assert data["transformers"] == "torch and transformers not installed"
    assert data["machine"]["versions"]["numpy"]
    assert data["peak_bytes"] > 10_000_000
    result = kdnb(*words)
    assert "without transformers: torch and transformers not installed" in result.out
    assert "same tokens everywhere: yes" in result.out
    assert "timing 3 things 2 times in turn" in result.err


def test_bench_starts_over_with_the_threads_asked_for():
    environment = {name: value for name, value in os.environ.items() if "NUM_THREADS" not in name}
    words = "bench --threads 1 --repeat 1 --max-new-tokens 3 --prefill 4 --no-transformers --json"
    done = subprocess.run(
        [sys.executable, "-m", "kdnb", *words.split()], capture_output=True, check=True, env=environment
    )
    data = json.loads(done.stdout)
    assert data["machine"]["threads"] == {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    assert data["transformers"] == "left out"


def test_bench_beside_a_peer_that_fails(kdnb, monkeypatch):
    class Broken:
        def __init__(self, folder):
            raise RuntimeError("unknown architecture\nlong story")

    monkeypatch.setattr("kdnb.bench.find_spec", lambda name: object())
    monkeypatch.setattr("kdnb.bench._Transformers", Broken)
    data = json.loads(
        kdnb("bench", "--repeat", 1, "--max-new-tokens", 4, "--prefill", 8, "--drafter", "none", "--json").out
    )
    assert data["transformers"] == "transformers cannot load it: RuntimeError: unknown architecture"
    assert [row["name"] for row in data["rows"]] == ["kdnb plain", "kdnb prefill 8"]


def test_signs_of_life_when_nothing_else_is_shown(capsys, monkeypatch):
    monkeypatch.setattr("kdnb.cli.stream.SILENCE", 0.0)
    with Patience("dequantizing") as patience:
        time.sleep(0.5)
        patience.rename("decoding")
        time.sleep(0.5)
    err = capsys.readouterr().err
    assert "... dequantizing, 0 s\n" in err
    assert "... decoding, " in err
    time.sleep(0.3)
    assert capsys.readouterr().err == ""


def test_no_signs_of_life_when_it_is_quick(capsys):
    with Patience("quick work"):
        time.sleep(0.3)
    assert capsys.readouterr().err == ""
