"""Rotation and attention of a kernel backend: the target's MLA and the drafter's grouped queries."""

import numpy as np

from kdnb.backends.kernel_backend import DeviceRope
from kdnb.reference.append_latent import append_latent
from kdnb.reference.draft_attention import draft_attention
from kdnb.reference.head_norm_rope import head_norm_rope
from kdnb.reference.mla_query import mla_query
from kdnb.reference.mla_value import mla_value
from kdnb.reference.rope import RopeRows, rope_rows
from kdnb.reference.verify_attention import verify_attention
from kdnb.rope_config import RopeConfig
from kdnb.testing.judge import Judge

EPS = 0.01  # so large that it shows
PLAIN = RopeConfig()
YARN = RopeConfig(
    rope_theta=50_000.0, rope_type="yarn", factor=64.0, mscale=1.0, original_max_position_embeddings=4096
)
# heads, kv_lora_rank, rope dim: groups of heads that are full, cut and alone; odd widths
MLA_SHAPES = [(4, 16, 8), (6, 21, 6), (20, 130, 2)]
WIDE_MLA_SHAPES = [(12, 512, 64), (64, 512, 64), (128, 512, 64)]
# nodes, context: tiles of 16 keys and splits of 512 keys, around their borders
WINDOWS = [(1, 0), (5, 0), (2, 1), (17, 63), (3, 64), (65, 65), (1, 511), (2, 511), (3, 512), (6, 513)]
WIDE_WINDOWS = [(33, 127), (128, 1), (257, 0), (257, 64), (64, 513), (1, 4095), (70, 4095), (257, 4095)]


def _rope(judge: Judge, dim: int, rows: int, config: RopeConfig = PLAIN) -> tuple[DeviceRope, RopeRows]:
    """Rotations of random positions, and what the device holds of them."""
    positions = judge.rng.integers(0, 2000, rows).astype(np.int32)
    rope = judge.backend.rope(config, dim, positions)
    cosines, sines = (judge.backend.device.read(array).astype(np.float64) for array in rope)
    return rope, RopeRows(cosines, sines)


def check_rope(judge: Judge) -> None:
    """Cosines and sines, with YaRN and positions of a million."""
    for config, dim in ((PLAIN, 2), (PLAIN, 64), (YARN, 64), (YARN, 10)):
        positions = np.array([0, 1, 4095, 131_072, 262_143, 1_000_000], dtype=np.int32)
        want = rope_rows(config.inv_freq(dim), positions, config.attention_scaling, np.dtype(np.float64))
        got = judge.backend.rope(config, dim, positions)
        for name, ours, theirs in zip(("cosines", "sines"), got, want, strict=True):
            judge.close(f"rope {name} of {config.rope_type}, dim {dim}", ours, theirs)


def check_mla(judge: Judge) -> None:
    """mla_query, mla_value."""
    b = judge.backend
    shapes = [(3, 6, 21, 6, 5), (2, 70, 130, 2, 33), *([(64, 128, 512, 64, 128)] if judge.wide else [])]
    for index, (heads, nope, rank, rope_dim, v_head_dim) in enumerate(shapes):
        kv_b, held = judge.floats(heads * (nope + v_head_dim), rank, scale=nope**-0.5)
        of_heads = held.reshape(heads, nope + v_head_dim, rank)
        interleaved = index % 2 == 0
        for rows in (1, 8, 13):
            case = f"[{rows} rows, {heads} heads, {nope} + {rope_dim} dims, rank {rank}]"
            q, held_q = judge.floats(rows, heads * (nope + rope_dim))
            rope, held_rope = _rope(judge, rope_dim, rows)
            got = b.mla_query(q, kv_b, rope, heads=heads, v_head_dim=v_head_dim, interleaved=interleaved)
            want = mla_query(held_q, of_heads[:, :nope], held_rope, interleaved=interleaved)
            judge.close(f"mla_query {case}", got, want)
            context, held_context = judge.floats(rows, heads, rank)
            got = b.mla_value(context, kv_b, v_head_dim=v_head_dim)
            judge.close(f"mla_value {case}", got, mla_value(held_context, of_heads[:, nope:]))


def check_append_latent(judge: Judge) -> None:
    """The window's rows change, no others."""
    b = judge.backend
    for interleaved, rank, rope_dim in ((True, 16, 8), (False, 21, 6)):
        for rows, offset in ((1, 0), (9, 4)):
            cache, want = judge.floats(2, 15, rank + rope_dim)
            kv_a, held_kv = judge.floats(rows, rank + rope_dim)
            norm, held_norm = judge.vector(rank)
            rope, held_rope = _rope(judge, rope_dim, rows)
            b.append_latent(cache, 1, offset, kv_a, norm, EPS, rope, interleaved=interleaved)
            window = want[1, offset : offset + rows]
            append_latent(window, held_kv, held_norm, EPS, held_rope, interleaved=interleaved)
            judge.close(f"append_latent [{rows} rows at {offset}, {rank} + {rope_dim}]", cache, want)


def check_verify_attention(judge: Judge) -> None:
    """Trees and causal windows behind contexts of every kind."""
    shapes = MLA_SHAPES + (WIDE_MLA_SHAPES if judge.wide else [])
    for heads, rank, rope_dim in shapes:
        windows = WINDOWS if (heads, rank) != (20, 130) else WINDOWS[3:6]
        for index, (rows, prefix_len) in enumerate(windows + (WIDE_WINDOWS if judge.wide else [])):
            _verify(judge, heads, rank, rope_dim, rows, prefix_len, causal=index % 3 == 2)
    _gathered(judge, *MLA_SHAPES[0])


def _verify(
    judge: Judge, heads: int, rank: int, rope_dim: int, rows: int, prefix_len: int, *, causal: bool
) -> None:
    b, width = judge.backend, rank + rope_dim
    cache, held = judge.floats(2, prefix_len + rows + 3, width)
    query, held_query = judge.floats(rows, heads, width)
    visible = None if causal else judge.visible(rows)
    scale = width**-0.5
    got = b.verify_attention(query, cache, 1, prefix_len, b.mask(visible), scale, rank)
    keys = held[1, : prefix_len + rows]
    want = verify_attention(held_query, keys, prefix_len, visible, float(np.float32(scale)), rank)
    case = f"[{rows} nodes, {heads} heads, {rank} + {rope_dim}, context {prefix_len}]"
    judge.close(
        f"verify_attention {'causal' if causal else 'tree'} {case}", got, want, terms=prefix_len + rows
    )


def _gathered(judge: Judge, heads: int, rank: int, rope_dim: int) -> None:
    """A node's result has the bits of its path alone in the window."""
    b, width, rows, prefix_len = judge.backend, rank + rope_dim, 21, 501
    cache, held = judge.floats(1, prefix_len + rows, width)
    query, held_query = judge.floats(rows, heads, width)
    visible = judge.visible(rows)
    got = b.device.read(b.verify_attention(query, cache, 0, prefix_len, b.mask(visible), 0.3, rank))
    seen = np.flatnonzero(visible[-1])
    path = np.concatenate([held[0, :prefix_len], held[0, prefix_len + seen]])[None]
    alone = b.verify_attention(
        judge.real(held_query[seen])[0], judge.real(path)[0], 0, prefix_len, None, 0.3, rank
    )
    judge.exact("verify_attention of the last node's path alone", b.device.read(alone)[-1], got[-1])


def check_head_norm_rope(judge: Judge) -> None:
    """Every head normed and rotated."""
    for rows, heads, head_dim in ((1, 1, 2), (7, 3, 24), (8, 4, 128)):
        x, held = judge.floats(rows, heads * head_dim)
        weight, held_weight = judge.vector(head_dim)
        rope, held_rope = _rope(judge, head_dim, rows)
        got = judge.backend.head_norm_rope(x, weight, EPS, rope)
        want = head_norm_rope(held, held_weight, EPS, held_rope)
        judge.close(f"head_norm_rope [{rows}, {heads}, {head_dim}]", got, want)


def check_draft_attention(judge: Judge) -> None:
    """Grouped queries, contexts on both sides of 128 keys at once, sliding masks."""
    b = judge.backend
    shapes = [(4, 2, 24), (6, 3, 130), *([(32, 8, 128), (64, 4, 128)] if judge.wide else [])]
    for heads, kv_heads, head_dim in shapes:
        for context_len in (0, 1, 120, 127, 300):
            for window in (None, 3, 140):
                rows = 8
                query, held_query = judge.floats(rows, heads, head_dim)
                shape = (context_len + rows + 2, kv_heads, head_dim)
                (keys, held_keys), (values, held_values) = judge.floats(*shape), judge.floats(*shape)
                num_keys = context_len + rows
                visible = None
                if window is not None:  # as a sliding layer: the last rows of the context, the whole block
                    behind = np.arange(rows)[:, None] + context_len - np.arange(num_keys)[None]
                    visible = (behind < window) | (np.arange(num_keys) >= context_len)
                scale = head_dim**-0.5
                got = b.draft_attention(query, keys, values, context_len, scale, visible)
                held = held_query, held_keys[:num_keys], held_values[:num_keys]
                want = draft_attention(*held, float(np.float32(scale)), visible)
                case = f"[{heads} heads on {kv_heads} of {head_dim}, context {context_len}, window {window}]"
                judge.close(f"draft_attention {case}", got, want)
