"""Every op as a launch of a kernel of kdnb/cuda_src, on a GPU or on a CPU that plays one."""

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from math import prod
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

from kdnb.arrays import Bool, Float32, HostArray, Int32, pack_visible
from kdnb.backends.base import ExpertTensors
from kdnb.backends.device import Device, DeviceArray, Replay
from kdnb.backends.device_experts import DeviceExperts, upload_experts
from kdnb.backends.weight_store import check_finite
from kdnb.checkpoint import StoredTensor
from kdnb.errors import ConfigError, ShapeError
from kdnb.kernels.source import Constant
from kdnb.reference.router import RouterSpec
from kdnb.rope_config import RopeConfig

DTYPES = ("float32", "bfloat16")
FLOAT32, INT32, UINT64 = np.dtype(np.float32), np.dtype(np.int32), np.dtype(np.uint64)
THREADS = 128
TILE_OUTS, TILE_ROWS = 32, 8  # of gemm_tile.cuh
QUERY_COLUMNS = 64  # of mla_query.cu
HEAD_GROUP, KEY_TILE, KEYS_PER_SPLIT = 8, 16, 64  # of verify_attention.cu
LIBRARY_SIZE = 1 << 17  # of a weight from which on cuBLAS is faster than the plain kernel
PARTIAL_BYTES = 256 << 20  # of splits' results at once: wide prefill goes in parts
MAX_TOP_K = 8192
MAX_EXPERTS = 1024
SMALL_INTEGERS = 64  # in an index array that is kept on the device
NUM_KEPT = 256


class DeviceRope(NamedTuple):
    """Cosines and sines on the device: float32 [rows, dim / 2]."""

    cosines: DeviceArray
    sines: DeviceArray


class KernelBackend:
    """Ops as kernels; arrays live on the device.

    Args:
        device: Where kernels run.
        dtype: "float32" (exact products, no tf32) or "bfloat16" (weights, activations and cache; sums,
            softmax, router and logits are float32).
        deterministic: Never use a library's matrix product: with kdnb's own kernels a row's bits do not
            depend on the other rows, so that draft-tree decoding equals plain decoding bit for bit.

    Raises:
        ConfigError: if dtype is unknown.
    """

    def __init__(self, device: Device, dtype: str = "float32", deterministic: bool = False) -> None:
        if dtype not in DTYPES:
            raise ConfigError(
                f'dtype "{dtype}" is not one the {device.name} backend computes in; use {" or ".join(DTYPES)}.'
            )
        self.device = device
        self.name = device.name
        self.dtype = dtype
        self.real: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16) if dtype == "bfloat16" else FLOAT32
        self._always_by_row = deterministic
        self._asked = threading.local()
        self._kept_integers: OrderedDict[bytes, DeviceArray] = OrderedDict()
        self.retained: list[DeviceArray] | None = None  # while a graph is captured: what it must keep alive
        self._inv_freq: dict[tuple[RopeConfig, int], DeviceArray] = {}
        self._lock = threading.RLock()

    def __repr__(self) -> str:
        mode = ", deterministic=True" if self._always_by_row else ""
        return f"KernelBackend({self.device!r}, dtype={self.dtype!r}{mode})"

    @contextmanager
    def row_by_row(self) -> Iterator[None]:
        self._asked.depth = getattr(self._asked, "depth", 0) + 1
        try:
            yield
        finally:
            self._asked.depth -= 1

    @property
    def deterministic(self) -> bool:
        """Whether this thread computes without a library's products now."""
        return self._always_by_row or getattr(self._asked, "depth", 0) > 0

    # --- memory -------------------------------------------------------------------------------
    def empty(self, shape: Sequence[int], dtype: "np.dtype[Any] | None" = None) -> DeviceArray:
        """Uninitialised memory of the backend's dtype or another."""
        dtype = self.real if dtype is None else dtype
        sizes = tuple(int(size) for size in shape)
        num_bytes = max(1, prod(sizes)) * dtype.itemsize
        return DeviceArray(
            sizes, dtype, self.device.allocate(num_bytes, f"an array {list(sizes)} of {dtype}")
        )

    def put(self, host: HostArray, dtype: "np.dtype[Any] | None" = None) -> DeviceArray:
        """A host array on the device, in its own dtype or another."""
        host = np.ascontiguousarray(host, dtype=dtype)
        array = self.empty(host.shape, host.dtype)
        if host.size:
            self.device.write(array, host)
        return array

    def upload(self, array: HostArray) -> DeviceArray:
        floats = np.issubdtype(array.dtype, np.floating)
        return self.put(array, self.real if floats else None)

    def download(self, x: DeviceArray) -> HostArray:
        host = self.device.read(x)
        return host.astype(np.float32) if host.dtype == self.real else host

    def zeros(self, shape: Sequence[int]) -> DeviceArray:
        return self.zeros_of(shape, self.real)

    def zeros_of(self, shape: Sequence[int], dtype: "np.dtype[Any]") -> DeviceArray:
        """A cleared array of any dtype."""
        array = self.empty(shape, dtype)
        self.device.clear(array)
        return array

    def weight(self, stored: StoredTensor) -> DeviceArray:
        """Matrices in the backend's dtype, vectors (norms, biases) in float32."""
        dtype = self.real if len(stored.shape) == 2 else FLOAT32
        values = stored.read(dtype)
        check_finite(stored, values)
        array = self.put(values, dtype)
        stored.release()
        return array

    def experts(self, stored: Sequence[ExpertTensors]) -> DeviceExperts:
        if len(stored) > MAX_EXPERTS:
            raise ConfigError(
                f"a layer has {len(stored)} experts; the {self.name} backend runs {MAX_EXPERTS}."
            )
        return upload_experts(self, stored)

    def take_rows(self, x: DeviceArray, rows: HostArray | DeviceArray) -> DeviceArray:
        indices = self._indices(rows)
        out = self.empty((len(indices), *x.shape[1:]), x.dtype)
        values = (
            prod(x.shape[1:]) * x.dtype.itemsize // self.real.itemsize
        )  # float32 rows move as pairs of bf16
        self.launch("rows", "take_rows", (len(indices),), [x, indices, out, values])
        return out

    def write_rows(self, destination: DeviceArray, offset: int | DeviceArray, x: DeviceArray) -> None:
        size = prod(x.shape[1:])
        self.launch("rows", "write_rows", (len(x),), [destination, self._length(offset), x, size])

    def concat(self, arrays: Sequence[DeviceArray]) -> DeviceArray:
        width = sum(x.shape[-1] for x in arrays)
        out = self.empty((*arrays[0].shape[:-1], width))
        column = 0
        for x in arrays:
            rows, size = prod(x.shape[:-1]), x.shape[-1]
            self.launch("rows", "concat", (rows,), [x, out, size, column, width])
            column += size
        return out

    def new_cache(self, num_layers: int, capacity: int, width: int) -> DeviceArray:
        return self.zeros((num_layers, capacity, width))

    def grow_cache(self, cache: DeviceArray, capacity: int) -> DeviceArray:
        layers, held, width = cache.shape
        grown = self.zeros((layers, capacity, width))
        for layer in range(layers):
            rows = cache.view((held, width), layer * held * width)
            self.device.copy(grown.view((held, width), layer * capacity * width), rows)
        return grown

    def cache_rows(self, cache: DeviceArray, layer: int, num_rows: int) -> HostArray:
        if num_rows == 0:
            return np.empty((0, cache.shape[2]), dtype=np.float32)
        return self.download(self._layer(cache, layer).view((num_rows, cache.shape[2])))

    # --- ops of every model -------------------------------------------------------------------
    def embed(self, table: DeviceArray, token_ids: Int32 | DeviceArray) -> DeviceArray:
        ids = self._indices(token_ids)
        out = self.empty((len(ids), table.shape[1]))
        self.launch("embed", "embed", (len(ids),), [table, ids, out, table.shape[1]])
        return out

    def linear(self, x: DeviceArray, weight: DeviceArray, bias: DeviceArray | None = None) -> DeviceArray:
        return self._product(x, weight, bias, self.real)

    def logits(self, x: DeviceArray, weight: DeviceArray) -> DeviceArray:
        return self._product(x, weight, None, FLOAT32)

    def rms_norm(self, x: DeviceArray, weight: DeviceArray, eps: float) -> DeviceArray:
        y = self.empty(x.shape)
        size = x.shape[-1]
        block = _threads_for(size // 2)
        self.launch(
            "rms_norm", "rms_norm", (len(x),), [x, weight, y, size, eps], block=block, shared=4 * size
        )
        return y

    def add_rms_norm(
        self, x: DeviceArray, delta: DeviceArray, weight: DeviceArray, eps: float
    ) -> tuple[DeviceArray, DeviceArray]:
        total, y = self.empty(x.shape), self.empty(x.shape)
        size = x.shape[-1]
        arguments = [x, delta, weight, total, y, size, eps]
        block = _threads_for(size // 2)
        self.launch("rms_norm", "add_rms_norm", (len(x),), arguments, block=block, shared=4 * size)
        return total, y

    def add(self, x: DeviceArray, y: DeviceArray) -> DeviceArray:
        out = self.empty(x.shape)
        size = prod(x.shape)
        self.launch("rms_norm", "add", (-(-size // 256),), [x, y, out, size], block=256)
        return out

    def mlp(self, x: DeviceArray, gate: DeviceArray, up: DeviceArray, down: DeviceArray) -> DeviceArray:
        gated, raised = self.linear(x, gate), self.linear(x, up)
        hidden = self.empty(gated.shape)
        size = prod(hidden.shape)
        self.launch("swiglu", "swiglu", (-(-size // 256),), [gated, raised, hidden, size], block=256)
        return self.linear(hidden, down)

    def rope(self, config: RopeConfig, dim: int, positions: HostArray | DeviceArray) -> DeviceRope:
        key = (config, dim)
        if key not in self._inv_freq:
            self._inv_freq[key] = self.put(config.inv_freq(dim), FLOAT32)
        at = self._indices(positions)
        cosines, sines = (self.empty((len(at), dim // 2), FLOAT32) for _ in range(2))
        arguments = [at, self._inv_freq[key], config.attention_scaling, cosines, sines, dim // 2]
        self.launch("rope", "rope_rows", (len(at),), arguments, block=32)
        return DeviceRope(cosines, sines)

    def top_k_log_probs(self, logits: DeviceArray, k: int) -> tuple[Int32, Float32]:
        ids, log_probs, tops = self.top_k(logits, k)
        _check_tops(self.device.read(tops))
        return self.device.read(ids), self.device.read(log_probs)

    def top_k(self, logits: DeviceArray, k: int) -> tuple[DeviceArray, DeviceArray, DeviceArray]:
        """Ids, log-probs and largest logits on the device: [rows, k], [rows, k], [rows]."""
        rows, vocab_size = logits.shape
        k = min(k, vocab_size)
        if k > MAX_TOP_K:
            raise ShapeError(f"k is {k}; the {self.name} backend finds {MAX_TOP_K} best tokens at most.")
        ids, log_probs = self.empty((rows, k), INT32), self.empty((rows, k), FLOAT32)
        tops = self.empty((rows,), FLOAT32)
        arguments = [self._as_float(logits), ids, log_probs, tops, vocab_size, k]
        threads = _threads_for(max(vocab_size // 4, k))
        self.launch("top_k", "top_k", (rows,), arguments, block=threads, shared=16 * (k // 2 + 1))
        return ids, log_probs, tops

    def argmax(self, logits: DeviceArray) -> tuple[DeviceArray, DeviceArray, DeviceArray]:
        """Per row on the device: the best token, by how much it won, the largest logit."""
        rows, vocab_size = logits.shape
        ids, gaps, tops = (
            self.empty((rows,), INT32),
            self.empty((rows,), FLOAT32),
            self.empty((rows,), FLOAT32),
        )
        arguments = [logits, ids, gaps, tops, vocab_size]
        self.launch("top_k", "argmax", (rows,), arguments, block=_threads_for(vocab_size // 4))
        return ids, gaps, tops

    def sample(
        self,
        logits: DeviceArray,
        depths: DeviceArray,
        prefix_len: DeviceArray,
        seed: int,
        temperature: float,
    ) -> tuple[DeviceArray, DeviceArray, DeviceArray]:
        """As `argmax`, of logits / temperature plus the noise of (seed, position, token id)."""
        rows, vocab_size = logits.shape
        ids, gaps, tops = (
            self.empty((rows,), INT32),
            self.empty((rows,), FLOAT32),
            self.empty((rows,), FLOAT32),
        )
        signed = int(np.uint64(seed).astype(np.int64))
        arguments = [logits, depths, prefix_len, signed, temperature, ids, gaps, tops, vocab_size]
        self.launch("sample_token", "sample_token", (rows,), arguments, block=_threads_for(vocab_size // 4))
        return ids, gaps, tops

    def all_reduce(self, x: DeviceArray) -> DeviceArray:
        return x

    # --- ops of MLA and MoE -------------------------------------------------------------------
    def mla_query(
        self,
        q: DeviceArray,
        kv_b: DeviceArray,
        rope: DeviceRope,
        *,
        heads: int,
        v_head_dim: int,
        interleaved: bool,
    ) -> DeviceArray:
        rows, kv_lora_rank, rope_dim = len(q), kv_b.shape[1], 2 * rope.cosines.shape[1]
        constants = {
            "HEADS": heads,
            "NOPE_DIM": kv_b.shape[0] // heads - v_head_dim,
            "V_HEAD_DIM": v_head_dim,
            "KV_LORA_RANK": kv_lora_rank,
            "ROPE_DIM": rope_dim,
            "ROPE_INTERLEAVED": interleaved,
        }
        query = self.empty((rows, heads, kv_lora_rank + rope_dim))
        grid = (-(-kv_lora_rank // QUERY_COLUMNS), heads, -(-rows // TILE_ROWS))
        self.launch("mla_query", "mla_query", grid, [q, kv_b, *rope, query, rows], constants)
        return query

    def append_latent(
        self,
        cache: DeviceArray,
        layer: int,
        offset: int | DeviceArray,
        kv_a: DeviceArray,
        norm: DeviceArray,
        eps: float,
        rope: DeviceRope,
        *,
        interleaved: bool,
    ) -> None:
        kv_lora_rank = norm.shape[0]
        constants = {
            "KV_LORA_RANK": kv_lora_rank,
            "ROPE_DIM": kv_a.shape[1] - kv_lora_rank,
            "ROPE_INTERLEAVED": interleaved,
        }
        arguments = [self._layer(cache, layer), self._length(offset), kv_a, norm, eps, *rope]
        self.launch("append_latent", "append_latent", (len(kv_a),), arguments, constants)

    def mask(self, visible: Bool | DeviceArray | None) -> DeviceArray | None:
        """Packed words, as `kdnb.arrays.pack_visible` makes them; None is causal."""
        if visible is None or isinstance(visible, DeviceArray):
            return visible
        return self.put(pack_visible(visible))

    def verify_attention(
        self,
        query: DeviceArray,
        cache: DeviceArray,
        layer: int,
        prefix_len: int | DeviceArray,
        mask: DeviceArray | None,
        softmax_scale: float,
        kv_lora_rank: int,
    ) -> DeviceArray:
        rows, heads, width = query.shape
        constants = {
            "HEADS": heads,
            "KV_LORA_RANK": kv_lora_rank,
            "ROPE_DIM": width - kv_lora_rank,
            "KEYS_PER_SPLIT": KEYS_PER_SPLIT,
        }
        # behind a length that only the device knows there may be as many keys as the cache holds
        most_keys = prefix_len + rows if isinstance(prefix_len, int) else cache.shape[1]
        splits = -(-most_keys // KEYS_PER_SPLIT)
        context = self.empty((rows, heads, kv_lora_rank))
        step = min(rows, max(1, PARTIAL_BYTES // (heads * splits * kv_lora_rank * 4)))
        partial = self.empty((step, heads, splits, kv_lora_rank), FLOAT32)
        stats = self.empty((step, heads, splits, 2), FLOAT32)
        keys, length = self._layer(cache, layer), self._length(prefix_len)
        words = 0 if mask is None else mask.shape[1]
        quads = -(-width // 4)
        shared = 16 * (HEAD_GROUP + KEY_TILE) * (quads | 1)
        for first in range(0, rows, step):
            count = min(step, rows - first)
            self.launch(
                "verify_attention",
                "verify_attention",
                (splits, -(-heads // HEAD_GROUP), count),
                [query, keys, length, mask, words, softmax_scale, partial, stats, first],
                constants,
                shared=shared,
            )
            arguments = [partial, stats, context, splits, first]
            self.launch("verify_attention", "merge_splits", (heads, count), arguments, constants)
        return context

    def mla_value(self, context: DeviceArray, kv_b: DeviceArray, *, v_head_dim: int) -> DeviceArray:
        rows, heads, kv_lora_rank = context.shape
        constants = {
            "HEADS": heads,
            "NOPE_DIM": kv_b.shape[0] // heads - v_head_dim,
            "V_HEAD_DIM": v_head_dim,
            "KV_LORA_RANK": kv_lora_rank,
        }
        values = self.empty((rows, heads * v_head_dim))
        grid = (-(-v_head_dim // TILE_OUTS), heads, -(-rows // TILE_ROWS))
        self.launch("mla_value", "mla_value", grid, [context, kv_b, values, rows], constants)
        return values

    def route(
        self, x: DeviceArray, weight: DeviceArray, bias: DeviceArray | None, spec: RouterSpec
    ) -> tuple[DeviceArray, DeviceArray, DeviceArray]:
        logits = self.logits(x, weight)
        rows, experts = logits.shape
        k = spec.num_experts_per_tok
        constants: dict[str, Constant] = {
            "NUM_EXPERTS": experts,
            "TOP_K": k,
            "N_GROUP": spec.n_group,
            "TOPK_GROUP": spec.topk_group,
            "SIGMOID": spec.scoring_func == "sigmoid",
            "GROUPED": spec.topk_method != "greedy" and spec.n_group > 1,
            "NOAUX_TC": spec.topk_method == "noaux_tc",
            "NORM_TOPK_PROB": spec.norm_topk_prob,
            "ROUTED_SCALING_FACTOR": float(spec.routed_scaling_factor),
        }
        topk_index, topk_weight = self.empty((rows, k), INT32), self.empty((rows, k), FLOAT32)
        arguments = [self._as_float(logits), bias, topk_index, topk_weight]
        self.launch("router", "router", (rows,), arguments, constants)
        return logits, topk_index, topk_weight

    def run_experts(
        self, x: DeviceArray, experts: DeviceExperts, topk_index: DeviceArray, topk_weight: DeviceArray
    ) -> DeviceArray:
        rows, k = topk_index.shape
        slots, hidden_size = rows * k, x.shape[1]
        most_items = min(slots, experts.count + slots // TILE_ROWS)
        order, num_items = self.empty((slots,), INT32), self.empty((1,), INT32)
        items = self.empty((most_items, 3), INT32)
        arguments: list[Any] = [topk_index, slots, experts.count, order, items, num_items]
        self.launch("experts", "plan_experts", (1,), arguments, experts.constants, block=MAX_EXPERTS)
        hidden = self.empty((slots, experts.inner))
        plan = [order, items, num_items]
        arguments = [x, *experts.gate, *experts.up, *plan, hidden, k, experts.inner, hidden_size]
        grid = (-(-experts.inner // TILE_OUTS), most_items)
        self.launch("experts", "experts_hidden", grid, arguments, experts.constants)
        of_slots = self.empty((slots, hidden_size), FLOAT32)
        weights = self._as_float(topk_weight)
        arguments = [hidden, *experts.down, *plan, weights, of_slots, hidden_size, experts.inner]
        grid = (-(-hidden_size // TILE_OUTS), most_items)
        self.launch("experts", "experts_down", grid, arguments, experts.constants)
        out = self.empty((rows, hidden_size))
        grid = (-(-hidden_size // THREADS), rows)
        self.launch("experts", "combine_experts", grid, [of_slots, out, k, hidden_size], experts.constants)
        return out

    def compact(
        self,
        cache: DeviceArray,
        prefix_len: int | DeviceArray,
        kept_rows: HostArray | DeviceArray,
        num_kept: DeviceArray | None = None,
    ) -> None:
        """`num_kept` on the device: how many of `kept_rows` count; None is all."""
        layers, capacity, width = cache.shape
        kept = self._indices(kept_rows)
        count = self._length(len(kept)) if num_kept is None else num_kept
        grid = (-(-width // THREADS), layers)
        arguments = [cache, self._length(prefix_len), kept, count, capacity * width, width]
        self.launch("cache_compact", "cache_compact", grid, arguments)

    # --- ops of the draft block ---------------------------------------------------------------
    def head_norm_rope(
        self, x: DeviceArray, weight: DeviceArray, eps: float, rope: DeviceRope
    ) -> DeviceArray:
        rows, head_dim = len(x), weight.shape[0]
        heads = prod(x.shape[1:]) // head_dim
        out = self.empty((rows, heads, head_dim))
        threads = min(THREADS, -(-head_dim // 32) * 32)
        arguments = [x, weight, eps, *rope, out, head_dim]
        self.launch(
            "head_norm_rope", "head_norm_rope", (heads, rows), arguments, block=threads, shared=4 * head_dim
        )
        return out

    def split_heads(self, x: DeviceArray, head_dim: int) -> DeviceArray:
        return x.view((len(x), x.shape[1] // head_dim, head_dim))

    def draft_attention(
        self,
        query: DeviceArray,
        keys: DeviceArray,
        values: DeviceArray,
        context_len: int | DeviceArray,
        softmax_scale: float,
        visible: Bool | None,
    ) -> DeviceArray:
        rows, heads, head_dim = query.shape
        constants = {"HEADS": heads, "KV_HEADS": keys.shape[1], "HEAD_DIM": head_dim}
        length = self._length(context_len)
        mask = None if visible is None else self.put(np.asarray(visible, dtype=np.uint8))
        context = self.empty((rows, heads * head_dim))
        arguments = [query, keys, values, length, rows, softmax_scale, mask, context]
        self.launch("draft_attention", "draft_attention", (heads, rows), arguments, constants)
        return context

    def capture(
        self,
        step: Callable[[int], None],
        reset: Callable[[], None],
        *,
        repeat: bool,
        done: Callable[[], bool],
    ) -> Replay:
        """Make a graph of the launches of `step`, once or until `done`.

        Args:
            step: Issues the launches; its argument is the handle that decides whether to go on.
            reset: Puts back what one run of `step` changes: it is run once before it is captured.
            repeat: Whether to run again until the condition is unset.
            done: Asks the device whether it is; for devices without graphs.
        """
        with self._lock:
            self.retained = []
            try:
                return self.device.capture(step, reset, self.retained, repeat=repeat, done=done)
            finally:
                self.retained = None

    # --- pieces -------------------------------------------------------------------------------
    def launch(
        self,
        name: str,
        entry: str,
        grid: Sequence[int],
        arguments: Sequence[Any],
        constants: "dict[str, Any] | None" = None,
        block: int = THREADS,
        shared: int = 0,
    ) -> None:
        """One launch, specialised for the backend's dtype; see Device.launch."""
        specialised = {"REAL_IS_BF16": self.dtype == "bfloat16", **(constants or {})}
        self.device.launch(name, entry, specialised, grid, block, arguments, shared)

    def _product(
        self, x: DeviceArray, weight: DeviceArray, bias: DeviceArray | None, dtype: "np.dtype[Any]"
    ) -> DeviceArray:
        rows, columns = x.shape
        outs = weight.shape[0]
        y = self.empty((rows, outs), dtype)
        worthwhile = outs * columns >= LIBRARY_SIZE and bias is None and not self.deterministic
        if worthwhile and self.device.linear(x, weight, y):
            return y
        self.launch(
            "linear",
            "linear",
            (-(-outs // TILE_OUTS), -(-rows // TILE_ROWS)),
            [x, weight, bias, y, rows, outs, columns],
            {"OUT_IS_FLOAT": dtype == FLOAT32},
        )
        return y

    def _layer(self, cache: DeviceArray, layer: int) -> DeviceArray:
        _, capacity, width = cache.shape
        return cache.view((capacity, width), layer * capacity * width)

    def _indices(self, values: HostArray | DeviceArray) -> DeviceArray:
        """Integers in device memory; few of them are kept there, for the next layer and the next round."""
        if isinstance(values, DeviceArray):
            return values
        host = np.asarray(values, dtype=np.int32)
        if host.size > SMALL_INTEGERS:
            return self.put(host)
        key = host.tobytes()
        with self._lock:
            kept = self._kept_integers.get(key)
            if kept is None:
                kept = self._kept_integers[key] = self.put(host)
                if len(self._kept_integers) > NUM_KEPT:
                    self._kept_integers.popitem(last=False)
            self._kept_integers.move_to_end(key)
            if self.retained is not None:
                self.retained.append(kept)
            return kept

    def _length(self, value: int | DeviceArray) -> DeviceArray:
        return value if isinstance(value, DeviceArray) else self._indices(np.array([value]))

    def _as_float(self, x: DeviceArray) -> DeviceArray:
        """Values that ops compute in float32; an edit may have brought them in the backend's dtype."""
        return x if x.dtype == FLOAT32 else self.put(self.download(x), FLOAT32)


def _threads_for(work: int) -> int:
    """Threads of a block that goes through a row: a multiple of 32, 1,024 at most."""
    return min(1024, max(32, -(-work // 32) * 32))


def _check_tops(tops: Float32) -> None:
    broken = np.flatnonzero(~np.isfinite(tops))
    if broken.size:
        row = int(broken[0])
        what = {np.inf: "plus infinity", -np.inf: "minus infinity only"}.get(float(tops[row]), "NaN")
        raise ShapeError(f"logits row {row} holds {what}; the model or drafter is broken.")
