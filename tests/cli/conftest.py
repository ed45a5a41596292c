"""Running the command line inside the test process, and recording traces once."""

import os
from dataclasses import dataclass

import pytest

from kdnb.cli import BLAS_THREADS, main


@dataclass
class Result:
    status: int
    out: str
    err: str


@pytest.fixture
def kdnb(capsys, monkeypatch):
    """kdnb("demo", "--json") -> exit status, standard output, standard error."""
    for name in BLAS_THREADS:  # what demo sets is set back
        monkeypatch.setenv(name, os.environ.get(name, "1"))

    def run(*args):
        capsys.readouterr()
        with pytest.raises(SystemExit) as caught:
            main([str(arg) for arg in args])
        out, err = capsys.readouterr()
        return Result(caught.value.code or 0, out, err)

    return run


@pytest.fixture(scope="session")
def traces(tmp_path_factory):
    """A full draft-tree trace and a plain one of the same text, as files."""
    import kdnb

    folder = tmp_path_factory.mktemp("traces")
    target = kdnb.load_target("golden")
    drafter = kdnb.load_drafter("golden", target)
    choices = {"max_new_tokens": 24, "stop_ids": ()}
    prompt = "def read(self, size):\n\tif size"
    kdnb.generate(target, prompt, drafter, node_budget=16, trace="full", **choices).save(folder / "tree.json")
    kdnb.generate(target, prompt, **choices).save(folder / "plain.json")
    return folder
