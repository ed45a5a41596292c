"""A checkpoint four times the resident-memory limit opens at once and decodes under the limit."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest

from kdnb.checkpoint import expected_tensors
from kdnb.config import TargetConfig
from tests.support.models import BASE

LIMIT = 300 << 20
CHANGES = {
    "hidden_size": 1024,
    "moe_intermediate_size": 1024,
    "intermediate_size": 256,
    "num_hidden_layers": 3,
    "n_routed_experts": 144,
    "num_experts_per_tok": 4,
    "n_shared_experts": None,
    "vocab_size": 300,
}
DECODE = r"""
import json, re, sys
import kdnb
def high_water():  # of this process since it was started, unlike ru_maxrss
    return int(re.search(r"VmHWM:\s+(\d+) kB", open("/proc/self/status").read()).group(1)) * 1024
target = kdnb.load_target(sys.argv[1], expert_cache_bytes=64 << 20)
opened = high_water()
taps = []
run = kdnb.generate(target, list(range(5, 101)), max_new_tokens=24, prefill_chunk=8)
experts = set()
result = target.forward([*run.prompt_ids, *run.token_ids], target.new_cache(),
                        taps=[n for n in target.tap_names if n.endswith("topk_index")])
for name, index in result.taps.items():
    experts |= {(name, int(e)) for e in index.ravel()}
peak = high_water()
print(json.dumps({"opened": opened, "peak": peak, "experts": len(experts),
                  "mapped": target.mapped_bytes, "tokens": run.token_ids.tolist()}))
"""


def write_sparse(folder):
    """Random small tensors; experts are holes in the file, which read as zeros."""
    config = {**BASE, **CHANGES}
    (folder / "config.json").write_text(json.dumps(config))
    rng = np.random.default_rng(0)
    header, small, offset = {}, {}, 0
    for name, shape in expected_tensors(TargetConfig.from_dict(config)).items():
        is_expert = ".experts." in name
        values = rng.standard_normal(shape).astype(np.float32) if not is_expert else None
        if name.endswith("e_score_correction_bias"):
            values *= 0  # let the tokens choose, so that many experts are read
        elif values is not None and len(shape) == 2 and "embed" not in name:
            values /= np.sqrt(shape[1])
        num_bytes = int(np.prod(shape)) * (2 if is_expert else 4)
        header[name] = {
            "dtype": "BF16" if is_expert else "F32",
            "shape": list(shape),
            "data_offsets": [offset, offset + num_bytes],
        }
        if values is not None:
            small[offset] = values
        offset += num_bytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(folder / "model.safetensors", "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        start = file.tell()
        for at, values in small.items():
            file.seek(start + at)
            file.write(values.tobytes())
        file.truncate(start + offset)
    return start + offset


@pytest.mark.skipif(sys.platform != "linux", reason="peak memory is read from Linux's /proc")
def test_four_times_the_limit(tmp_path):
    size = write_sparse(tmp_path)
    assert size >= 4 * LIMIT
    on_disk = os.stat(tmp_path / "model.safetensors").st_blocks * 512
    assert on_disk < size / 10, "this file system does not keep the file sparse"
    done = subprocess.run(
        [sys.executable, "-c", DECODE, str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        env={**os.environ, "PYTHONPATH": os.getcwd(), "OPENBLAS_NUM_THREADS": "2"},
    )
    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stdout)
    print(facts)
    assert 0 < size - facts["mapped"] < 300_000  # all but the header
    assert len(facts["tokens"]) == 24
    expert_bytes = 3 * 1024 * 1024 * 2
    assert facts["experts"] * expert_bytes > 1.5 * LIMIT, "too few experts were read to prove much"
    assert facts["opened"] < LIMIT / 2
    assert facts["peak"] < LIMIT, f"peak {facts['peak'] >> 20} MiB, limit {LIMIT >> 20} MiB"
