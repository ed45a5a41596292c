"""Rows, caches, matrix products, norms and the MLP of a kernel backend."""

import numpy as np

from kdnb.backends.kernel_backend import FLOAT32, INT32
from kdnb.reference.linear import linear
from kdnb.reference.rms_norm import rms_norm
from kdnb.reference.swiglu import swiglu
from kdnb.testing.judge import Judge

EPS = 0.01  # so large that it shows
# rows, columns, outs: one of everything, borders of the tiles of 8 x 32 x 128, odd sizes
PRODUCTS = [(1, 1, 1), (7, 5, 3), (8, 128, 32), (9, 129, 33), (17, 131, 40), (3, 260, 65)]
WIDE_PRODUCTS = [(65, 7168, 2112), (256, 2048, 7168), (1, 7168, 163_840)]


def check_rows(judge: Judge) -> None:
    """Embed, take_rows, write_rows, concat, add: copies and one sum."""
    b, rng = judge.backend, judge.rng
    for rows, width in [(1, 1), (5, 129), (70, 33)]:
        case = f"[{rows}, {width}]"
        table, held = judge.floats(rows + 3, width)
        ids = rng.integers(0, rows + 3, rows).astype(np.int32)
        judge.exact(f"embed {case}", b.embed(table, ids), held[ids])
        judge.exact(f"take_rows {case}", b.take_rows(table, ids), held[ids])
        on_device = b.put(ids, INT32)
        judge.exact(f"take_rows by the device's indices {case}", b.take_rows(table, on_device), held[ids])
        wide = rng.standard_normal((rows + 3, width)).astype(np.float32)
        judge.exact(f"take_rows of float32 {case}", b.take_rows(b.put(wide, FLOAT32), ids), wide[ids])
        counts = rng.integers(0, 99, (rows + 3, 2 * width)).astype(np.int32)
        judge.exact(f"take_rows of int32 {case}", b.take_rows(b.put(counts), ids), counts[ids])

        written = b.zeros((rows + 4, width))
        x, held_x = judge.floats(rows, width)
        b.write_rows(written, 3, x)
        want = np.zeros((rows + 4, width))
        want[3 : 3 + rows] = held_x
        judge.exact(f"write_rows {case}", written, want)
        others = [judge.floats(rows, size) for size in (width, 1, 40)]
        joined = b.concat([array for array, _ in others])
        judge.exact(f"concat {case}", joined, np.concatenate([held for _, held in others], axis=1))
        y, held_y = judge.floats(rows, width)
        judge.close(f"add {case}", b.add(x, y), held_x + held_y)


def check_cache(judge: Judge) -> None:
    """new_cache, grow_cache, cache_rows, split_heads."""
    b = judge.backend
    cache = b.new_cache(3, 5, 7)
    judge.exact("new_cache [3, 5, 7]", cache, np.zeros((3, 5, 7)))
    held, want = judge.floats(3, 5, 7)
    grown = b.grow_cache(held, 9)
    judge.exact("grow_cache [3, 5, 7] to 9", grown, np.pad(want, ((0, 0), (0, 4), (0, 0))))
    judge.exact("cache_rows of layer 2", b.cache_rows(grown, 2, 4), want[2, :4])
    judge.exact("cache_rows of none", b.cache_rows(grown, 1, 0), np.empty((0, 7)))
    x, want = judge.floats(4, 12)
    judge.exact("split_heads [4, 12]", b.split_heads(x, 3), want.reshape(4, 4, 3))


def check_linear(judge: Judge) -> None:
    """Linear with and without bias, logits; a row's bits do not depend on the other rows."""
    b = judge.backend
    for rows, columns, outs in PRODUCTS + (WIDE_PRODUCTS if judge.wide else []):
        case = f"[{rows}, {columns}] x [{outs}, {columns}]"
        x, held_x = judge.floats(rows, columns)
        weight, held = judge.floats(outs, columns, scale=columns**-0.5)
        bias, held_bias = judge.vector(outs)
        want = linear(held_x, held)
        judge.close(f"linear {case}", b.linear(x, weight), want, terms=x.shape[1])
        judge.close(f"linear with bias {case}", b.linear(x, weight, bias), want + held_bias, terms=x.shape[1])
        judge.close(f"logits {case}", b.logits(x, weight), want, terms=x.shape[1])
        with b.row_by_row():
            together = b.download(b.linear(x, weight))
            alone = b.download(b.linear(b.put(b.device.read(x)[-1:]), weight))
        judge.exact(f"linear of the last row alone {case}", alone, together[-1:])


def check_norms(judge: Judge) -> None:
    """rms_norm, add_rms_norm."""
    b = judge.backend
    for rows, size in [(1, 1), (3, 31), (2, 128), (5, 1000)] + ([(257, 7168)] if judge.wide else []):
        for scale in (1.0, 1e-3, 300.0):
            case = f"[{rows}, {size}] of size {scale:g}"
            x, held_x = judge.floats(rows, size, scale=scale)
            delta, held_delta = judge.floats(rows, size, scale=scale)
            weight, held = judge.vector(size)
            judge.close(f"rms_norm {case}", b.rms_norm(x, weight, EPS), rms_norm(held_x, held, EPS))
            total, normed = b.add_rms_norm(x, delta, weight, EPS)
            judge.close(f"add_rms_norm sum {case}", total, held_x + held_delta)
            stored = b.device.read(total).astype(np.float64)  # what is normed is the sum as it is stored
            judge.close(f"add_rms_norm norm {case}", normed, rms_norm(stored, held, EPS))


def check_mlp(judge: Judge) -> None:
    """mlp; with unit matrices it is swiglu alone."""
    b = judge.backend
    for rows, hidden, inner in [(1, 3, 5), (9, 40, 70)] + ([(33, 7168, 2048)] if judge.wide else []):
        x, held_x = judge.floats(rows, hidden)
        (gate, held_gate), (up, held_up) = (judge.floats(inner, hidden, scale=hidden**-0.5) for _ in "gu")
        down, held_down = judge.floats(hidden, inner, scale=inner**-0.5)
        want = linear(swiglu(linear(held_x, held_gate), linear(held_x, held_up)), held_down)
        case = f"mlp [{rows}, {hidden}], {inner} inside"
        judge.close(case, b.mlp(x, gate, up, down), want, on_the_way=True)
    unit, _ = judge.real(np.eye(33))
    for scale in (1.0, 30.0, 200.0):  # exp of the largest overflows, and silu is still right
        x, held_x = judge.floats(11, 33, scale=scale)
        judge.close(f"swiglu of size {scale:g}", b.mlp(x, unit, unit, unit), swiglu(held_x, held_x))
