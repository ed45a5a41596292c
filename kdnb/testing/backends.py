"""Does a backend compute what kdnb.reference means?"""

from collections.abc import Iterator

import numpy as np

from kdnb.arrays import HostArray
from kdnb.backends import Backend, get_backend
from kdnb.drafters import load_drafter
from kdnb.loop import generate
from kdnb.model import Target, load_target
from kdnb.testing.base import CheckFailed
from kdnb.tree import DraftTree

PROMPT = [100, 101, 102, 32, 114, 101, 97, 100, 40, 115, 101, 108, 102, 41, 58, 10, 9]
TREE = DraftTree.from_parents([9, 114, 105, 101, 102, 102, 32, 116], [-1, 0, 0, 1, 2, 1, 4, 3])


def check_backend(backend: str | Backend, tolerance: float = 1e-4) -> None:
    """Run a backend beside the numpy one, op by op, on the shipped golden pair.

    Args:
        backend: The backend to judge, or its name.
        tolerance: Largest absolute difference of values whose root mean square is about 1 to 10;
            integers and copies must agree exactly.

    Raises:
        CheckFailed: at the first difference; the message names the op or tapped value and where.
    """
    backend = get_backend(backend)
    for name in ("name", "dtype"):
        if not isinstance(getattr(backend, name, None), str):
            raise CheckFailed(f"backend.{name} is missing or not a string.")
    _check_memory(backend)
    _check_top_k(backend)
    ours = load_target("golden")
    theirs = load_target("golden", backend=backend)
    _check_forward(ours, theirs, tolerance)
    _check_compaction(theirs, tolerance)
    _check_loop(ours, theirs)


def _check_memory(backend: Backend) -> None:
    rng = np.random.default_rng(0)
    x = rng.integers(-9, 9, (6, 4)).astype(np.float32)  # exact in every float dtype
    y = rng.integers(-9, 9, (6, 2)).astype(np.float32)
    device_x, device_y = backend.upload(x), backend.upload(y)
    rows = np.array([4, 0, 5])
    written = backend.zeros((8, 4))
    backend.write_rows(written, 1, device_x)
    expected = np.zeros((8, 4), dtype=np.float32)
    expected[1:7] = x
    ids = np.array([[3, 1], [2, 7]], dtype=np.int32)
    for name, got, want in (
        ("download(upload(floats))", backend.download(device_x), x),
        ("download(upload(int32))", backend.download(backend.upload(ids)), ids),
        ("take_rows", backend.download(backend.take_rows(device_x, rows)), x[rows]),
        ("write_rows", backend.download(written), expected),
        (
            "concat",
            backend.download(backend.concat([device_x, device_y])),
            np.concatenate([x, y], axis=-1),
        ),
        ("add", backend.download(backend.add(device_x, device_x)), 2 * x),
        (
            "split_heads",
            backend.download(backend.split_heads(device_x, 2)),
            x.reshape(6, 2, 2),
        ),
    ):
        _compare(name, got, want, 0.0)
    kept = backend.download(backend.upload(ids)).dtype
    if kept != np.int32:
        raise CheckFailed(f"upload turned int32 into {kept}; integers keep their dtype.")
    if backend.download(device_x).dtype not in (np.float32, np.float64):
        raise CheckFailed(f"download gave {backend.download(device_x).dtype}, expected float32.")


def _check_top_k(backend: Backend) -> None:
    logits = np.array([[1, 3, 3, 0, 3], [2, 2, 2, 2, 2], [0, 0, 5, 0, 0]], dtype=np.float32)
    ids, log_probs = backend.top_k_log_probs(backend.upload(logits), 2)
    _compare("top_k_log_probs ids (ties to the lower id)", ids, np.array([[1, 2], [0, 1], [2, 0]]))
    wide = logits.astype(np.float64)
    log_sum = np.log(np.exp(wide).sum(axis=1, keepdims=True))
    want = np.take_along_axis(wide, ids.astype(np.int64), axis=1) - log_sum
    _compare("top_k_log_probs log-probs", log_probs, want, 1e-5)


def _forwards(target: Target) -> Iterator[tuple[str, dict[str, HostArray]]]:
    """Prefill, a tree behind it, and what is left after compaction, with every tap."""
    cache = target.new_cache(8)  # too small on purpose: it has to grow
    taps = target.tap_names
    result = target.forward(PROMPT, cache, taps=taps)
    yield "prefill", {**result.taps, "logits": result.logits}
    cache.commit()
    result = target.forward(
        TREE.token_ids,
        cache,
        positions=cache.prefix_len + TREE.depths,
        visible=TREE.visible,
        taps=taps,
    )
    yield "tree", {**result.taps, "logits": result.logits}
    cache.commit([0, 2, 4, 6])
    rows = {
        f"cache rows of layer {layer}": np.concatenate([cache.latent(layer), cache.rope_key(layer)], axis=1)
        for layer in range(target.config.num_hidden_layers)
    }
    yield "after compaction", rows
    result = target.forward([10], cache, taps=taps, logits="last")
    yield "one row", {**result.taps, "logits": result.logits}


def _check_forward(ours: Target, theirs: Target, tolerance: float) -> None:
    for (step, want), (_, got) in zip(_forwards(ours), _forwards(theirs), strict=True):
        for name, value in want.items():
            exact = np.issubdtype(value.dtype, np.integer)
            _compare(f"{step}: {name}", got[name], value, 0.0 if exact else tolerance)


def _check_compaction(target: Target, tolerance: float) -> None:
    """A compacted path equals the same tokens run plainly."""
    path = [0, 2, 4, 6]
    plain = [*PROMPT, *TREE.token_ids[path].tolist(), 10]
    cache = target.new_cache()
    target.forward(PROMPT, cache)
    cache.commit()
    positions = cache.prefix_len + TREE.depths
    target.forward(TREE.token_ids, cache, positions=positions, visible=TREE.visible)
    cache.commit(path)
    after = target.forward([10], cache).logits
    _compare("logits after compaction, against no tree", after[0], target.logits(plain)[-1], tolerance)


def _check_loop(ours: Target, theirs: Target) -> None:
    runs = [
        generate(
            target,
            PROMPT,
            load_drafter("golden", target),
            max_new_tokens=24,
            node_budget=16,
            stop_ids=(),
        )
        for target in (ours, theirs)
    ]
    _compare("tokens of the whole loop", runs[1].token_ids, runs[0].token_ids)
    for index, (want, got) in enumerate(zip(runs[0].rounds, runs[1].rounds, strict=True)):
        _compare(f"round {index}: parents", got.tree.parents, want.tree.parents)
        _compare(f"round {index}: accepted", got.accepted, want.accepted)


def _compare(name: str, got: HostArray, want: HostArray, tolerance: float = 0.0) -> None:
    got, want = np.asarray(got), np.asarray(want)
    if got.shape != want.shape:
        raise CheckFailed(f"{name} has shape {list(got.shape)}, expected {list(want.shape)}.")
    wrong = ~(np.abs(got.astype(np.float64) - want.astype(np.float64)) <= tolerance)
    if wrong.any():
        at = tuple(int(axis[0]) for axis in np.nonzero(wrong))
        raise CheckFailed(
            f"{name} differs from numpy in {int(wrong.sum())} of {wrong.size} values, first at "
            f"{list(at)}: expected {want[at]}, got {got[at]} (tolerance {tolerance:g})."
        )
