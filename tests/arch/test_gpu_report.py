"""The committed report of a GPU run belongs to the kernels that are committed."""

import json
from pathlib import Path

import pytest

from kdnb.gpu_check import SANITIZERS
from kdnb.kernels.source import CUDA_SRC, sources_digest

REPORT = Path(__file__).parents[1] / "data" / "gpu_report.json"
CHECKS = (
    "backend",
    "golden targets, float32",
    "bfloat16, layer by layer",
    "golden pair, every round",
    "draft trees equal plain decoding",
    "offsets beyond 2**31",
    "2000 rounds",
    *(f"compute-sanitizer {tool}" for tool in SANITIZERS),
)


def test_the_report_is_of_these_sources():
    assert json.loads(REPORT.read_text())["sources"] == sources_digest(), (
        "kdnb/cuda_src has changed since the last run on a GPU: "
        "python -m kdnb.gpu_check --sanitize --json tests/data/gpu_report.json"
    )


@pytest.mark.parametrize("name", CHECKS)
def test_the_report_holds_every_check_and_none_failed(name):
    result = json.loads(REPORT.read_text())["checks"][name]["result"]
    assert "FAILED" not in str(result)


def test_the_digest_sees_a_change_of_any_kernel_or_header(tmp_path, monkeypatch):
    for path in CUDA_SRC.glob("*.cu*"):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    monkeypatch.setattr("kdnb.kernels.source.CUDA_SRC", tmp_path)
    assert sources_digest() == json.loads(REPORT.read_text())["sources"]
    for path in sorted(tmp_path.iterdir()):
        text = path.read_text()
        path.write_text(text + "\n")
        assert sources_digest() != json.loads(REPORT.read_text())["sources"], path.name
        path.write_text(text)
