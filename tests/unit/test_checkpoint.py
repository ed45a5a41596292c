"""Checkpoint files: formats by independent computation, damage by message."""

import json
import os
import stat

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save_file

import kdnb
from kdnb.checkpoint import Shard, TensorFolder, expected_tensors, is_ignored
from kdnb.config import TargetConfig
from kdnb.errors import CheckpointError, ConfigError
from tests.support.goldens import DATA, TARGETS
from tests.support.models import write_checkpoint


@pytest.mark.parametrize("name", TARGETS)
def test_every_golden_target_opens_and_fits_its_config(name):
    config = TargetConfig.from_folder(DATA / "targets" / name)
    tensors = TensorFolder(DATA / "targets" / name, prefix=config.tensor_prefix)
    tensors.check(expected_tensors(config), lambda tensor: is_ignored(config, tensor))
    assert tensors.mapped_bytes > 500_000


# --- formats ----------------------------------------------------------------------------------
def int4_parts(rows, columns, group, seed=0):
    """Quantise by hand, one nibble at a time."""
    rng = np.random.default_rng(seed)
    q = rng.integers(-8, 8, (rows, columns))
    scale = rng.random((rows, columns // group)).astype(ml_dtypes.bfloat16)
    words = -(-columns // 8)
    packed = np.zeros((rows, words), dtype=np.uint32)
    for row in range(rows):
        for column in range(columns):
            nibble = np.uint32(int(q[row, column]) + 8)
            packed[row, column // 8] |= nibble << np.uint32(4 * (column % 8))
    expected = np.array(
        [[float(q[r, c]) * float(scale[r, c // group]) for c in range(columns)] for r in range(rows)]
    )
    return packed.view(np.int32), scale, expected


@pytest.mark.parametrize(("columns", "group"), [(64, 32), (32, 32), (96, 32), (36, 12), (20, 20)])
@pytest.mark.parametrize("shape_dtype", [np.int32, np.int64])
def test_int4(tmp_path, columns, group, shape_dtype):
    packed, scale, expected = int4_parts(5, columns, group)
    parts = {
        "w.weight_packed": packed,
        "w.weight_scale": scale,
        "w.weight_shape": np.array([5, columns], dtype=shape_dtype),
    }
    save_file(parts, tmp_path / "model.safetensors")
    stored = TensorFolder(tmp_path)["w.weight"]
    assert (stored.kind, stored.shape) == ("int4", (5, columns))
    assert stored.read().dtype == np.float32
    np.testing.assert_array_equal(stored.read(), expected)  # q * scale is exact in float32
    np.testing.assert_array_equal(stored.read(np.float64), expected)
    np.testing.assert_array_equal(stored.read_rows(np.array([4, 0])), expected[[4, 0]])


@pytest.mark.parametrize("shape", [(128, 128), (130, 300), (576, 64), (1, 1)])
@pytest.mark.parametrize("scale_format", ["float32", "e8m0", "uint8"])
def test_fp8_with_ragged_edges(tmp_path, shape, scale_format):
    rng = np.random.default_rng(0)
    q = (rng.standard_normal(shape) * 100).astype(ml_dtypes.float8_e4m3fn)
    blocks = tuple(-(-size // 128) for size in shape)
    exponents = rng.integers(120, 132, blocks)
    scale = np.exp2(exponents - 127.0).astype(np.float32)
    if scale_format == "float32":
        scale = stored_scale = rng.random(blocks).astype(np.float32)
    elif scale_format == "uint8":
        stored_scale = exponents.astype(np.uint8)
    else:
        stored_scale = scale.astype(ml_dtypes.float8_e8m0fnu)
    tensors = {"w.weight": q, "w.weight_scale_inv": stored_scale}
    write_raw(tmp_path / "model.safetensors", tensors)
    expected = np.array(
        [
            [float(q[i, j]) * float(scale[i // 128, j // 128]) for j in range(shape[1])]
            for i in range(shape[0])
        ],
        dtype=np.float32,
    )
    stored = TensorFolder(tmp_path)["w.weight"]
    assert stored.kind == "fp8"
    np.testing.assert_array_equal(stored.read(), expected)
    rows = np.array([shape[0] - 1, 0])
    np.testing.assert_array_equal(stored.read_rows(rows), expected[rows])


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16, np.float64])
def test_plain_floats(tmp_path, dtype):
    values = np.random.default_rng(0).standard_normal((7, 9)).astype(dtype)
    save_file({"w.weight": values}, tmp_path / "model.safetensors")
    stored = TensorFolder(tmp_path)["w.weight"]
    np.testing.assert_array_equal(stored.read(), values.astype(np.float32))
    np.testing.assert_array_equal(
        stored.read_rows(np.array([3, 3])), values[[3, 3]].astype(stored.read_rows(np.array([0])).dtype)
    )
    view = stored.read(dtype)
    assert not view.flags.owndata
    with pytest.raises(ValueError, match="read-only"):
        view[0, 0] = 1


DTYPE_NAMES = {
    "float8_e4m3fn": "F8_E4M3",
    "float32": "F32",
    "uint8": "U8",
    "float8_e8m0fnu": "F8_E8M0",
    "int64": "I64",
}


def write_raw(path, tensors, tamper=lambda header: None, cut=0):
    """Write a safetensors file by hand, with a chance to damage it."""
    header, blobs, offset = {}, [], 0
    for name, array in tensors.items():
        data = array.tobytes()
        offsets = [offset, offset + len(data)]
        header[name] = {
            "dtype": DTYPE_NAMES[str(array.dtype)],
            "shape": list(array.shape),
            "data_offsets": offsets,
        }
        blobs.append(data)
        offset += len(data)
    tamper(header)
    text = json.dumps(header).encode() if isinstance(header, dict) else header
    data = len(text).to_bytes(8, "little") + text + b"".join(blobs)
    path.write_bytes(data[: len(data) - cut])


# --- damage -----------------------------------------------------------------------------------
GOOD = {"a.weight": np.ones((4, 4), np.float32), "b.weight": np.ones(3, np.float32)}


@pytest.mark.parametrize(
    ("tamper", "message"),
    [
        (lambda h: h["a.weight"].update(data_offsets=[0, 60]), "60 bytes but shape .4, 4. of F32 needs 64"),
        (lambda h: h["a.weight"].update(shape=[4, 5]), "64 bytes but shape .4, 5. of F32 needs 80"),
        (lambda h: h["a.weight"].update(shape=[4, -4]), "damaged header entry for a.weight"),
        (lambda h: h["a.weight"].pop("dtype"), "damaged header entry for a.weight"),
        (lambda h: h["a.weight"].update(dtype="F4"), "stores a.weight as F4"),
        (lambda h: h["b.weight"].update(data_offsets=[60, 72]), "overlapping tensors at b.weight"),
        (lambda h: h["b.weight"].update(data_offsets=[640, 652]), "reaches to byte"),
    ],
)
def test_damaged_headers(tmp_path, tamper, message):
    write_raw(tmp_path / "model.safetensors", GOOD, tamper)
    with pytest.raises(CheckpointError, match=message):
        TensorFolder(tmp_path)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "is 0 bytes long"),
        (b"\x05\0\0", "is 3 bytes long"),
        (b"\xff" * 16, "says its header has"),
        ((99).to_bytes(8, "little") + b"{}", "header has 99 bytes but the file has 10"),
        ((2).to_bytes(8, "little") + b"{]", "damaged header"),
        ((2).to_bytes(8, "little") + b"\xff\xff", "damaged header"),
        ((2).to_bytes(8, "little") + b"[]", "no JSON object"),
        ((21).to_bytes(8, "little") + b'{"a": {}, "a": {}}   ', "names a twice"),
    ],
)
def test_damaged_files(tmp_path, data, message):
    (tmp_path / "model.safetensors").write_bytes(data)
    with pytest.raises(CheckpointError, match=message):
        TensorFolder(tmp_path)


def test_truncated_file(tmp_path):
    write_raw(tmp_path / "model.safetensors", GOOD, cut=7)
    with pytest.raises(CheckpointError, match="ends at byte .* but b.weight reaches to byte .*truncated"):
        TensorFolder(tmp_path)


def test_missing_files(tmp_path):
    with pytest.raises(CheckpointError, match="is not a folder"):
        TensorFolder(tmp_path / "nowhere")
    with pytest.raises(CheckpointError, match=r"holds no \*.safetensors file; kdnb reads"):
        TensorFolder(tmp_path)
    (tmp_path / "pytorch_model.bin").write_bytes(b"x")
    with pytest.raises(CheckpointError, match="file but pytorch_model.bin"):
        TensorFolder(tmp_path)


def test_shards(tmp_path):
    save_file({"a.weight": GOOD["a.weight"]}, tmp_path / "model-1.safetensors")
    save_file({"b.weight": GOOD["b.weight"]}, tmp_path / "model-2.safetensors")
    index = tmp_path / "model.safetensors.index.json"

    def write(weight_map):
        index.write_text(json.dumps({"weight_map": weight_map}))
        return TensorFolder(tmp_path)

    assert set(write({"a.weight": "model-1.safetensors", "b.weight": "model-2.safetensors"})) == set(GOOD)
    with pytest.raises(CheckpointError, match="names 1 of 2 shards that are not in .*: model-9.safetensors"):
        write({"a.weight": "model-1.safetensors", "b.weight": "model-9.safetensors"})
    with pytest.raises(CheckpointError, match="1 tensors that their shards do not hold: b.weight in model-1"):
        write({"a.weight": "model-1.safetensors", "b.weight": "model-1.safetensors"})
    with pytest.raises(CheckpointError, match="shards that are not in"):
        write({"a.weight": "../model-1.safetensors"})
    with pytest.raises(CheckpointError, match="no weight_map"):
        write({})
    index.write_text("{")
    with pytest.raises(CheckpointError, match="is not JSON"):
        TensorFolder(tmp_path)
    index.unlink()
    save_file({"a.weight": GOOD["a.weight"]}, tmp_path / "model-2.safetensors")
    with pytest.raises(
        CheckpointError, match="a.weight is in both model-1.safetensors and model-2.safetensors"
    ):
        TensorFolder(tmp_path)


def test_other_safetensors_beside_the_model_are_left_alone(tmp_path):
    save_file(GOOD, tmp_path / "model.safetensors")
    save_file({"x.weight": GOOD["b.weight"]}, tmp_path / "adapter.safetensors")
    assert set(TensorFolder(tmp_path)) == set(GOOD)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"w.weight_shape": None}, "has weight_packed but no weight_shape"),
        ({"w.weight_scale": None}, "has weight_packed but no weight_scale"),
        ({"w.weight_packed": np.zeros((4, 32), np.uint8)}, r"weight_packed is U8 \[4, 32\] but"),
        ({"w.weight_packed": np.zeros((4, 9), np.int32)}, r"weight_packed is I32 \[4, 9\]"),
        ({"w.weight_scale": np.zeros((3, 2), np.float32)}, "weight_scale is F32 .3, 2."),
        ({"w.weight_scale": np.zeros((4, 3), np.float32)}, "does not divide the 64 columns"),
        ({"w.weight_shape": np.array([4.0, 64.0], np.float32)}, "weight_shape is F32"),
    ],
)
def test_int4_parts_that_do_not_fit(tmp_path, changes, message):
    packed, scale, _ = int4_parts(4, 64, 32)
    parts = {"w.weight_packed": packed, "w.weight_scale": scale, "w.weight_shape": np.array([4, 64])}
    parts = {name: value for name, value in {**parts, **changes}.items() if value is not None}
    save_file(parts, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match=message):
        TensorFolder(tmp_path)


def test_a_wrong_weight_shape_is_found_when_it_is_read(tmp_path):
    packed, scale, _ = int4_parts(4, 64, 32)
    parts = {"w.weight_packed": packed, "w.weight_scale": scale, "w.weight_shape": np.array([8, 32])}
    save_file(parts, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"weight_shape says \[8, 32\]"):
        TensorFolder(tmp_path)["w.weight"].read()


def test_fp8_scales_that_do_not_fit(tmp_path):
    q = np.zeros((130, 4), ml_dtypes.float8_e4m3fn)
    write_raw(
        tmp_path / "model.safetensors", {"w.weight": q, "w.weight_scale_inv": np.ones((1, 1), np.float32)}
    )
    with pytest.raises(CheckpointError, match=r"has shape \[1, 1\] but a weight of \[130, 4\] has \[2, 1\]"):
        TensorFolder(tmp_path)


# --- what a model needs -----------------------------------------------------------------------
def damaged(folder, drop=(), add=None, change=None):
    from safetensors.numpy import load_file

    tensors = load_file(folder / "model.safetensors")
    for name in drop:
        tensors.pop(name)
    save_file({**tensors, **(add or {}), **(change or {})}, folder / "model.safetensors")
    return folder


def test_one_error_lists_missing_extra_misshapen_and_unreadable(tmp_path):
    folder = write_checkpoint(tmp_path / "m")
    damaged(
        folder,
        drop=["model.norm.weight", "model.layers.0.mlp.up_proj.weight"],
        add={"surprise.weight": np.ones(2, np.float32)},
        change={
            "lm_head.weight": np.ones((3, 3), np.float32),
            "model.layers.1.mlp.gate.weight": np.ones((4, 32), np.int64),
        },
    )
    with pytest.raises(CheckpointError) as caught:
        kdnb.load_target(folder)
    message = str(caught.value)
    assert "2 missing: model.norm.weight [32], model.layers.0.mlp.up_proj.weight [48, 32]" in message
    assert "1 extra: surprise.weight" in message
    assert "1 misshapen: lm_head.weight is [3, 3], expected [40, 32]" in message
    assert "1 unreadable: model.layers.1.mlp.gate.weight is I64" in message


def test_long_lists_are_cut(tmp_path):
    folder = write_checkpoint(tmp_path / "m")
    damaged(folder, add={f"extra.{i}.weight": np.ones(1, np.float32) for i in range(50)})
    with pytest.raises(CheckpointError, match="50 extra: .* and 30 more"):
        kdnb.load_target(folder)


@pytest.mark.parametrize(
    "name",
    [
        "model.layers.2.eh_proj.weight",
        "model.layers.61.mlp.experts.0.up_proj.weight",
        "model.layers.2.layers.0.x.weight",
        "vision_tower.a.weight",
        "mm_projector.b.weight",
        "model.layers.0.self_attn.rotary_emb.inv_freq",
    ],
)
def test_what_the_forward_does_not_use_is_ignored(tmp_path, name):
    folder = write_checkpoint(tmp_path / "m")
    damaged(folder, add={name: np.full(2, np.nan, np.float32)})
    assert np.isfinite(kdnb.load_target(folder).logits([1, 2])).all()


def test_tied_embeddings(tmp_path):
    folder = write_checkpoint(tmp_path / "m", tie_word_embeddings=True)
    target = kdnb.load_target(folder)
    before = target.logits([1, 2])
    damaged(folder, add={"lm_head.weight": np.zeros((40, 32), np.float32)})
    np.testing.assert_array_equal(kdnb.load_target(folder).logits([1, 2]), before)


def test_attention_bias_moves_the_logits(tmp_path):
    folder = write_checkpoint(tmp_path / "m", attention_bias=True)
    target = kdnb.load_target(folder)
    name = "model.layers.0.self_attn.o_proj.bias"
    assert name in target.tensors
    before = target.logits([1, 2])
    damaged(folder, change={name: np.full(32, 0.7, np.float32)})
    assert np.abs(kdnb.load_target(folder).logits([1, 2]) - before).max() > 1e-3


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize(
    "name", ["model.layers.1.mlp.experts.0.up_proj.weight", "model.norm.weight", "model.embed_tokens.weight"]
)
def test_weights_that_are_not_finite_are_refused_when_used(tmp_path, value, name):
    from safetensors.numpy import load_file

    folder = write_checkpoint(tmp_path / "m", num_experts_per_tok=4)
    tensor = load_file(folder / "model.safetensors")[name]
    tensor.flat[5] = value
    damaged(folder, change={name: tensor})
    target = kdnb.load_target(folder)
    with pytest.raises(CheckpointError, match=f"{name} holds 1 of .* NaN or infinite"):
        target.logits([0, 1, 2])


def test_non_utf8_path(tmp_path):
    folder = os.fsencode(tmp_path) + b"/caf\xe9"
    try:
        os.mkdir(folder)
    except OSError:
        pytest.skip("this file system refuses names that are no UTF-8")
    path = os.fsdecode(folder)
    write_checkpoint(type(tmp_path)(path))
    assert kdnb.load_target(path).logits([1, 2]).shape == (2, 40)


def test_read_only_folder(tmp_path):
    folder = write_checkpoint(tmp_path / "m")
    for path in (*folder.iterdir(), folder):
        path.chmod(path.stat().st_mode & ~(stat.S_IWUSR | stat.S_IWGRP | stat.S_IWOTH))
    try:
        assert kdnb.load_target(folder).logits([1]).shape == (1, 40)
    finally:
        folder.chmod(0o700)


def test_only_the_whole_shard():
    with pytest.raises(ConfigError, match="shard 1 of 8"):
        Shard(1, 8)


def test_a_sparse_file_of_100_gb_opens_at_once(tmp_path):
    """Opening reads the header alone; reading the file would take minutes, and memory it has not."""
    rows = 100 * 10**9 // 4096
    header = {"w.weight": {"dtype": "BF16", "shape": [rows, 2048], "data_offsets": [0, rows * 4096]}}
    text = json.dumps(header).encode()
    path = tmp_path / "model.safetensors"
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        try:
            file.truncate(8 + len(text) + rows * 4096)
        except OSError:
            pytest.skip("this file system keeps no sparse file of 100 GB")
    tensors = TensorFolder(tmp_path)
    assert tensors.mapped_bytes > 99 * 10**9
    assert tensors["w.weight"].read_rows(np.array([rows - 1])).shape == (1, 2048)
    path.unlink()
