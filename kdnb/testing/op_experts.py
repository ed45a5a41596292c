"""Routing and routed experts of a kernel backend."""

from dataclasses import dataclass
from typing import Any, cast

import ml_dtypes
import numpy as np

from kdnb.arrays import Float64, HostArray
from kdnb.backends.base import ExpertTensors
from kdnb.backends.kernel_backend import FLOAT32
from kdnb.checkpoint import StoredTensor
from kdnb.checkpoint.mapped_file import Entry, MappedFile
from kdnb.reference.experts import experts
from kdnb.reference.linear import linear
from kdnb.reference.router import RouterSpec, route
from kdnb.testing.judge import Judge

# scoring, method, experts, groups, groups kept, k, whether weights are normed
SPECS: list[tuple[Any, Any, int, int, int, int, bool]] = [
    ("sigmoid", "noaux_tc", 17, 1, 1, 3, True),
    ("sigmoid", "noaux_tc", 32, 8, 3, 8, True),
    ("softmax", "group_limited_greedy", 24, 4, 2, 5, False),
]
WIDE_SPECS: list[tuple[Any, Any, int, int, int, int, bool]] = [
    ("softmax", "greedy", 64, 1, 1, 6, False),
    ("sigmoid", "noaux_tc", 8, 8, 4, 4, True),
    ("sigmoid", "noaux_tc", 256, 8, 4, 8, True),
    ("sigmoid", "noaux_tc", 384, 1, 1, 8, True),
]


def check_router(judge: Judge) -> None:
    """Scores, groups, biases; exact ties go to the lower id."""
    b, rng = judge.backend, judge.rng
    specs = SPECS + (WIDE_SPECS if judge.wide else [])
    for scoring, method, num_experts, n_group, topk_group, k, norm in specs:
        spec = RouterSpec(scoring, method, k, n_group, topk_group, norm, 2.5)
        case = f"router {scoring} {method} [{num_experts} experts in {n_group} groups, k {k}]"
        for ties in (False, True):
            if ties:  # halves of integers: sums are exact, and many logits are equal
                # no negative ones: s(x) + s(-x) is 1 for every x, but not in every rounding
                x, held_x = judge.real(rng.integers(0, 2, (40, 3)))
                weight, held = judge.real(rng.integers(0, 4, (num_experts, 3)) / 2)
                shift = rng.integers(0, 2, num_experts if n_group == 1 else 1) / 4 + np.zeros(num_experts)
            else:
                x, held_x = judge.floats(13, 40)
                weight, held = judge.floats(num_experts, 40, scale=0.2)
                shift = rng.standard_normal(num_experts) / 4
            has_bias = method == "noaux_tc"  # a softmax router has none
            shift = shift.astype(np.float32)
            bias = b.put(shift, FLOAT32) if has_bias else None
            logits = b.logits(x, weight)
            index, weights = b.route(logits, bias, spec)
            want_logits = linear(held_x, held)
            want = route(want_logits, shift.astype(np.float64) if has_bias else None, spec)
            which = f"{case}{' with ties' if ties else ''}"
            judge.close(f"{which} logits", logits, want_logits)
            judge.exact(f"{which} topk_index", index, want.topk_index)
            judge.close(f"{which} topk_weight", weights, want.topk_weight)


def check_experts(judge: Judge) -> None:
    """Plain and packed weights; experts with no token, with one and with more than a tile."""
    kinds: list[tuple[int, Any]] = [(0, np.float32), (32, ml_dtypes.bfloat16)]
    if judge.wide:
        kinds += [(32, np.float32), (8, ml_dtypes.bfloat16)]
    for group, scale_dtype in kinds:
        shapes = [(6, 64, 96)] if group else [(3, 7, 5), (6, 65, 97)]
        if judge.wide:
            shapes.append((16, 2048, 512))
        for num_experts, hidden, inner in shapes:
            _experts(judge, num_experts, hidden, inner, group, scale_dtype)


def _experts(judge: Judge, num_experts: int, hidden: int, inner: int, group: int, scale_dtype: Any) -> None:
    b, rng = judge.backend, judge.rng
    sizes = {"gate": (inner, hidden), "up": (inner, hidden), "down": (hidden, inner)}
    tensors: list[ExpertTensors] = []
    held: list[dict[str, Float64]] = []
    for _ in range(num_experts):
        made = {part: _stored(judge, part, shape, group, scale_dtype) for part, shape in sizes.items()}
        tensors.append(ExpertTensors(**{part: tensor for part, (tensor, _) in made.items()}))
        held.append({part: values for part, (_, values) in made.items()})
    on_device = b.experts(tensors)
    for rows, k in ((1, 1), (2, 2), (29, min(2, num_experts))):
        index = np.array([rng.permutation(num_experts - 1)[:k] for _ in range(rows)], dtype=np.int32)
        index[: rows // 2, 0] = 0  # one expert with many tokens; the last has none
        for row in index[: rows // 2]:
            row[1:][row[1:] == 0] = num_experts - 2
        share = rng.random((rows, k)).astype(np.float32)
        x, held_x = judge.floats(rows, hidden)
        got = b.run_experts(x, on_device, b.put(index), b.put(share))
        want = experts(held_x, index, share.astype(np.float64), lambda e, part: held[e][part])
        what = f"INT4 in groups of {group}, {np.dtype(scale_dtype)} scales" if group else "plain"
        case = f"experts {what} [{rows} rows, k {k}, {num_experts} experts, {hidden} x {inner}]"
        judge.close(case, got, want, on_the_way=True)


def _stored(
    judge: Judge, part: str, shape: tuple[int, int], group: int, scale_dtype: Any
) -> tuple[StoredTensor, Float64]:
    """One expert's matrix as a checkpoint holds it, and its values as the backend uses them."""
    rows, columns = shape
    if not group:
        values = (judge.rng.standard_normal(shape) * columns**-0.5).astype(np.float32)
        stored = StoredTensor(f"{part}.weight", {"weight": _entry(values)})
        return stored, values.astype(judge.backend.real).astype(np.float64)
    nibbles = judge.rng.integers(0, 16, shape).astype(np.uint32)
    places = np.arange(8, dtype=np.uint32) * 4
    packed = np.bitwise_or.reduce(nibbles.reshape(rows, -1, 8) << places, axis=2).view(np.int32)
    scale = (judge.rng.random((rows, columns // group)) * columns**-0.5 / 4).astype(scale_dtype)
    parts = {"weight_packed": packed, "weight_scale": scale, "weight_shape": np.array(shape, dtype=np.int64)}
    stored = StoredTensor(f"{part}.weight", {name: _entry(array) for name, array in parts.items()})
    wide = scale.astype(np.float64).repeat(group, axis=1)
    return stored, (nibbles.astype(np.float64) - 8) * wide


@dataclass(frozen=True)
class _Held:
    """An array in the place of a mapped file."""

    array: HostArray

    def view(self, entry: Entry) -> HostArray:
        return self.array

    def release(self, start: int, stop: int) -> None:
        """Nothing is mapped."""


def _entry(array: HostArray) -> Entry:
    names = {"float32": "F32", "bfloat16": "BF16", "float16": "F16", "int32": "I32", "int64": "I64"}
    return Entry(cast(MappedFile, _Held(array)), names[array.dtype.name], array.shape, 0, array.nbytes)
