"""The corpus, and the whole command with tiny sizes."""

import dataclasses
import gzip
import hashlib
import json
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import kdnb  # noqa: E402
from kdnb.training import __main__ as command  # noqa: E402
from kdnb.training import recipe as recipes  # noqa: E402
from kdnb.training.corpus import (  # noqa: E402
    Package,
    Source,
    choose_held_out,
    drop_near_duplicates,
    find_packages,
    read_packages,
)
from kdnb.training.data import Corpus  # noqa: E402
from kdnb.training.drafter import DrafterModel  # noqa: E402
from kdnb.training.evaluate import Outcome, by_bin, per_round, repeated_share, rounds_of  # noqa: E402
from kdnb.training.export import export_drafter, export_target, folder_bytes, load_target_model  # noqa: E402
from kdnb.training.measure import bits_per_byte  # noqa: E402
from kdnb.training.model import TargetModel  # noqa: E402


def package(name, licence="MIT", texts=()):
    sources = [
        Source(
            f"{i}.py",
            text,
            "",
            np.unique(np.array([hash(line) & 0xFFFF_FFFF for line in text.split("\n")], np.uint64)),
        )
        for i, text in enumerate(texts)
    ]
    return Package(name, "1", licence, Path(), [], sources)


@pytest.mark.parametrize(
    ("licence", "permissive"),
    [
        ("MIT", True),
        ("BSD-3-Clause AND Apache-2.0", True),
        ("Python Software Foundation License", True),
        ("Apache Software License", True),
        ("MIT OR GPL-2.0", False),
        ("GNU Lesser General Public License v3 (LGPLv3)", False),
        ("MPL-2.0 AND MIT", False),
        ("NVIDIA Proprietary Software", False),
        ("Other/Proprietary License", False),
        ("", False),
    ],
)
def test_licences(licence, permissive):
    assert package("p", licence).is_permissive is permissive


def test_near_duplicates_go_and_held_out_text_does_not_leak():
    text = "\n".join(f"line {i}" for i in range(10))
    half = "\n".join([f"line {i}" for i in range(6)] + [f"other {i}" for i in range(4)])
    new = "\n".join(f"new {i}" for i in range(10))
    held, train = package("held", texts=[text]), package("train", texts=[text, half, new])
    drop_near_duplicates([held, train])
    assert [s.text for s in held.sources] == [text]
    assert [s.text for s in train.sources] == [new]
    assert train.dropped == {"near-duplicate": 2}


def test_held_out_packages_depend_on_names_alone():
    packages = [package(f"p{i}", texts=["x" * 50_000]) for i in range(40)]
    names = [p.name for p in choose_held_out(packages, 0.05, seed=0)]
    assert len(names) == 2
    assert names == [p.name for p in choose_held_out(packages[::-1], 0.05, seed=0)]
    assert names != [p.name for p in choose_held_out(packages, 0.05, seed=1)]


def test_the_standard_library_is_found_and_read():
    found = {p.name: p for p in find_packages()}
    assert "kdnb" not in found
    cpython = found["cpython"]
    cpython.paths = ["bisect.py", "heapq.py", "absent.py"]
    read_packages([cpython], max_bytes=10**6, workers=1)
    assert [source.path for source in cpython.sources] == ["bisect.py", "heapq.py"]
    assert cpython.dropped == {"unreadable": 1}
    data = (cpython.root / "heapq.py").read_bytes()
    assert cpython.sources[1].sha256 == hashlib.sha256(data).hexdigest()


def test_bits_per_byte_are_kdnbs(tmp_path):
    """Two windows of 20 tokens: 38 predicted ones, each of as many bytes as its id's last digit."""
    model = TargetModel(recipes.SMOKE.target_config(96))
    model.initialize(torch.Generator().manual_seed(0))
    export_target(model, recipes.SMOKE.target_json(96), None, tmp_path)
    ids, sizes = np.random.default_rng(0).integers(0, 96, 45), np.arange(96) % 10
    target, bits, count = kdnb.load_target(tmp_path), 0.0, 0
    for window in (ids[:20], ids[20:40]):
        logits = target.logits(window).astype(np.float64)
        log_probs = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
        bits -= log_probs[np.arange(19), window[1:]].sum() / np.log(2)
        count += sizes[window[1:]].sum()
    found = bits_per_byte(load_target_model(tmp_path), torch.from_numpy(ids), torch.from_numpy(sizes), 20)
    assert found == pytest.approx(bits / count, abs=1e-4)


def test_sums_of_rounds():
    outcomes = [Outcome([1, 2, 3], [2, 4], [0.5, 2.5], [0.0, 1.0], 1.0), Outcome([4], [3], [1.0], [2.0], 1.0)]
    found = per_round(outcomes)
    assert found["mean"] == 3.0
    assert found["low"] <= 3.0 <= found["high"]
    kept, expected, entropy = rounds_of(outcomes)
    assert kept.tolist() == [1, 3, 2]
    bins = by_bin(expected, {"kept": kept, "entropy": entropy}, 2)
    assert bins == [{"kept": 1.5, "entropy": 1.0, "rounds": 2}, {"kept": 3.0, "entropy": 1.0, "rounds": 1}]
    assert repeated_share([[1, 2, 3, 4, 1, 2, 3, 4], [1, 2, 3, 4, 5, 6, 7, 8]]) == 0.1


def test_the_shipped_sizes_fit(tmp_path):
    config = recipes.TINY.target_config(recipes.TINY.vocab_size)
    target, drafter = TargetModel(config), DrafterModel(recipes.TINY.drafter_config(config))
    assert 8e6 < sum(p.numel() for p in target.parameters()) < 16e6
    export_target(target.eval(), recipes.TINY.target_json(config.vocab_size), None, tmp_path / "target")
    export_drafter(drafter, recipes.TINY.drafter_json(config), tmp_path / "drafter")
    tokenizer = 150_000  # bytes, about
    assert folder_bytes(tmp_path) + tokenizer < recipes.MAX_TOTAL_BYTES
    assert kdnb.load_drafter(tmp_path / "drafter", kdnb.load_target(tmp_path / "target")).max_depth == 15


def test_the_command_pauses_resumes_and_makes_a_pair(tmp_path, monkeypatch, capsys):
    torch.set_num_threads(1)
    small = dataclasses.replace(
        recipes.SMOKE, max_corpus_bytes=600_000, batch_tokens=256, max_steps=8, sample_rows=8,
        sample_batches=1, prompts=2, new_tokens=8, budgets=(8,),
    )  # fmt: skip
    monkeypatch.setattr(recipes, "SMOKE", small)
    out = tmp_path / "out"
    words = ["--out", str(out), "--smoke", "--minutes", "10", "--device", "cpu", "--no-evaluation"]
    assert command.main([*words, "--pause-after", "0"]) == 0
    assert "target paused at 12%" in capsys.readouterr().out
    assert not (out / "target").exists()
    assert command.main([*words, "--resume", str(out / "checkpoint.pt")]) == 0
    assert "target: goes on at step 1, 12%" in capsys.readouterr().out
    target = kdnb.load_target(out / "target")
    drafter = kdnb.load_drafter(out / "drafter", target)
    run = kdnb.generate(target, "def read(self", drafter, max_new_tokens=12, node_budget=8)
    assert (
        run.token_ids.tolist() == kdnb.generate(target, "def read(self", max_new_tokens=12).token_ids.tolist()
    )
    assert {"bf16_before", "int4_before", "bf16_after", "int4_after"} <= set(
        json.loads((out / "target.json").read_text())
    )
    corpus = Corpus.load(out / "corpus")
    facts = corpus.manifest["held_out"]
    assert corpus.token_bytes[corpus.held_out].sum() == facts["bytes"]
    assert command.main(words[:-1]) == 0  # what is there is kept: only the evaluation is left
    assert "stage" not in capsys.readouterr().out
    assert (out / "README.md").read_text().count("\n| dflash | ddtree | 8 |") == 1
    lines = gzip.decompress((out / "corpus/files.tsv.gz").read_bytes()).decode().splitlines()
    assert len(lines) == facts["files"] + corpus.manifest["train"]["files"]
    assert all(0 not in prompt for prompt in corpus.prompts(4, 16, np.random.default_rng(0)))
