"""The numpy backend: runs anywhere, and defines what every op means."""

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from kdnb.arrays import Bool, Float32, Floats, HostArray, Int32
from kdnb.backends.base import ExpertTensors
from kdnb.backends.weight_store import WeightStore, check_finite
from kdnb.checkpoint import StoredTensor
from kdnb.errors import ConfigError
from kdnb.reference.append_latent import append_latent
from kdnb.reference.cache_compact import compact
from kdnb.reference.draft_attention import draft_attention
from kdnb.reference.experts import experts as run_experts
from kdnb.reference.head_norm_rope import head_norm_rope
from kdnb.reference.linear import linear
from kdnb.reference.mla_query import mla_query
from kdnb.reference.mla_value import mla_value
from kdnb.reference.rms_norm import add_rms_norm, rms_norm
from kdnb.reference.rope import RopeRows, rope_rows
from kdnb.reference.router import RouterSpec, Routing, route
from kdnb.reference.swiglu import swiglu
from kdnb.reference.top_k import top_k_log_probs
from kdnb.reference.verify_attention import verify_attention
from kdnb.rope_config import RopeConfig

DTYPES = ("float32", "float64")


@dataclass(frozen=True)
class NumpyExperts:
    """A layer's experts; weights are fetched from the store when an expert is used."""

    stored: Sequence[ExpertTensors]
    store: WeightStore

    def __call__(self, expert: int, part: str) -> Floats:
        return self.store.matrix(getattr(self.stored[expert], part))


class NumpyBackend:
    """Every op by its kdnb.reference function.

    Args:
        dtype: "float32", or "float64" as a referee.
        deterministic: Compute every row alone, so that results do not depend on how many rows share a
            call: draft-tree decoding then equals plain decoding bit for bit, at the speed of one row at
            a time.
        expert_cache_bytes: Budget for dequantized weights in memory, least recently used out first;
            None is half of the machine's memory.

    Raises:
        ConfigError: if dtype or expert_cache_bytes cannot be used.
    """

    name = "numpy"

    def __init__(
        self,
        dtype: str = "float32",
        deterministic: bool = False,
        expert_cache_bytes: int | None = None,
    ) -> None:
        if dtype not in DTYPES:
            raise ConfigError(
                f'dtype "{dtype}" is not one the numpy backend computes in; use {" or ".join(DTYPES)}.'
            )
        self.dtype = dtype
        self._always_by_row = deterministic
        self._asked = threading.local()  # decodings in other threads may share the backend
        self._np_dtype: np.dtype[np.floating] = np.dtype(dtype)
        self._store = WeightStore(self._np_dtype, expert_cache_bytes)

    def __repr__(self) -> str:
        mode = ", deterministic=True" if self.deterministic else ""
        return f"NumpyBackend(dtype={self.dtype!r}{mode})"

    @contextmanager
    def row_by_row(self) -> Iterator[None]:
        self._asked.depth = getattr(self._asked, "depth", 0) + 1
        try:
            yield
        finally:
            self._asked.depth -= 1

    @property
    def deterministic(self) -> bool:
        """Whether this thread computes row by row now."""
        return self._always_by_row or getattr(self._asked, "depth", 0) > 0

    # --- memory -------------------------------------------------------------------------------
    def upload(self, array: HostArray) -> HostArray:
        floats = np.issubdtype(array.dtype, np.floating)
        return np.array(array, dtype=self._np_dtype if floats else array.dtype)

    def download(self, x: HostArray) -> HostArray:
        return np.array(x)

    def zeros(self, shape: Sequence[int]) -> Floats:
        return np.zeros(shape, dtype=self._np_dtype)

    def weight(self, stored: StoredTensor) -> StoredTensor:
        return stored

    def experts(self, stored: Sequence[ExpertTensors]) -> NumpyExperts:
        return NumpyExperts(stored, self._store)

    def take_rows(self, x: HostArray, rows: HostArray) -> HostArray:
        return x[rows]

    def write_rows(self, destination: HostArray, offset: int, x: HostArray) -> None:
        destination[offset : offset + len(x)] = x

    def concat(self, arrays: Sequence[HostArray]) -> HostArray:
        return np.concatenate(arrays, axis=-1)

    def new_cache(self, num_layers: int, capacity: int, width: int) -> Floats:
        return self.zeros((num_layers, capacity, width))

    def grow_cache(self, cache: Floats, capacity: int) -> Floats:
        grown = self.zeros((cache.shape[0], capacity, cache.shape[2]))
        grown[:, : cache.shape[1]] = cache
        return grown

    def cache_rows(self, cache: Floats, layer: int, num_rows: int) -> Floats:
        return cache[layer, :num_rows].copy()

    # --- ops of every model -------------------------------------------------------------------
    def embed(self, table: StoredTensor, token_ids: Int32) -> Floats:
        rows = table.read_rows(token_ids)
        check_finite(table, rows)
        return rows.astype(self._np_dtype, copy=False)

    def linear(self, x: Floats, weight: StoredTensor, bias: StoredTensor | None = None) -> Floats:
        offset = None if bias is None else self._store.get(bias)
        if self._store.fits(weight):
            return linear(x, self._store.matrix(weight), offset, by_row=self.deterministic)
        blocks = [linear(x, block, by_row=self.deterministic) for block in self._row_blocks(weight)]
        y = np.concatenate(blocks, axis=1)
        return y if offset is None else y + offset

    def logits(self, x: Floats, weight: StoredTensor) -> Floats:
        return self.linear(x, weight)

    def rms_norm(self, x: Floats, weight: StoredTensor, eps: float) -> Floats:
        return rms_norm(x, self._store.get(weight), eps)

    def add_rms_norm(
        self, x: Floats, delta: Floats, weight: StoredTensor, eps: float
    ) -> tuple[Floats, Floats]:
        return add_rms_norm(x, delta, self._store.get(weight), eps)

    def add(self, x: Floats, y: Floats) -> Floats:
        return x + y

    def mlp(self, x: Floats, gate: StoredTensor, up: StoredTensor, down: StoredTensor) -> Floats:
        return self.linear(swiglu(self.linear(x, gate), self.linear(x, up)), down)

    def rope(self, config: RopeConfig, dim: int, positions: HostArray) -> RopeRows:
        return rope_rows(config.inv_freq(dim), positions, config.attention_scaling, self._np_dtype)

    def top_k_log_probs(self, logits: Floats, k: int) -> tuple[Int32, Float32]:
        return top_k_log_probs(logits, k)

    def all_reduce(self, x: Floats) -> Floats:
        return x

    # --- ops of MLA and MoE -------------------------------------------------------------------
    def mla_query(
        self,
        q: Floats,
        kv_b: StoredTensor,
        rope: RopeRows,
        *,
        heads: int,
        v_head_dim: int,
        interleaved: bool,
    ) -> Floats:
        per_head = self._heads_of(kv_b, heads)
        w_uk = per_head[:, : per_head.shape[1] - v_head_dim]
        return mla_query(q, w_uk, rope, interleaved=interleaved, by_row=self.deterministic)

    def append_latent(
        self,
        cache: Floats,
        layer: int,
        offset: int,
        kv_a: Floats,
        norm: StoredTensor,
        eps: float,
        rope: RopeRows,
        *,
        interleaved: bool,
    ) -> None:
        window = cache[layer, offset : offset + len(kv_a)]
        append_latent(window, kv_a, self._store.get(norm), eps, rope, interleaved=interleaved)

    def mask(self, visible: Bool | None) -> Bool | None:
        return visible

    def verify_attention(
        self,
        query: Floats,
        cache: Floats,
        layer: int,
        prefix_len: int,
        mask: Bool | None,
        softmax_scale: float,
        kv_lora_rank: int,
    ) -> Floats:
        rows = cache[layer, : prefix_len + len(query)]
        return verify_attention(
            query, rows, prefix_len, mask, softmax_scale, kv_lora_rank, by_row=self.deterministic
        )

    def mla_value(self, context: Floats, kv_b: StoredTensor, *, v_head_dim: int) -> Floats:
        per_head = self._heads_of(kv_b, context.shape[1])
        return mla_value(context, per_head[:, -v_head_dim:], by_row=self.deterministic)

    def route(self, logits: Floats, bias: StoredTensor | None, spec: RouterSpec) -> Routing:
        return route(logits, None if bias is None else self._store.get(bias), spec)

    def run_experts(
        self, x: Floats, experts: NumpyExperts, topk_index: HostArray, topk_weight: Floats
    ) -> Floats:
        return run_experts(x, topk_index, topk_weight, experts, by_row=self.deterministic)

    def compact(self, cache: Floats, prefix_len: int, kept_rows: HostArray) -> None:
        compact(cache, prefix_len, kept_rows)

    # --- ops of the draft block ---------------------------------------------------------------
    def head_norm_rope(self, x: Floats, weight: StoredTensor, eps: float, rope: RopeRows) -> Floats:
        return head_norm_rope(x, self._store.get(weight), eps, rope)

    def split_heads(self, x: Floats, head_dim: int) -> Floats:
        return x.reshape(x.shape[0], -1, head_dim)

    def draft_attention(
        self,
        query: Floats,
        keys: Floats,
        values: Floats,
        context_len: int,
        softmax_scale: float,
        visible: Bool | None,
    ) -> Floats:
        num_keys = context_len + len(query)
        return draft_attention(query, keys[:num_keys], values[:num_keys], softmax_scale, visible)

    # --- weights ------------------------------------------------------------------------------
    def _heads_of(self, kv_b: StoredTensor, heads: int) -> Floats:
        weight = self._store.get(kv_b)
        return weight.reshape(heads, -1, weight.shape[1])

    def _row_blocks(self, weight: StoredTensor) -> Iterator[Floats]:
        """A weight too large to hold, a block of rows at a time."""
        rows, columns = weight.shape
        row_bytes = columns * self._np_dtype.itemsize
        step = max(1, self._store.budget_bytes // (2 * row_bytes))
        for start in range(0, rows, step):
            block = weight.read_rows(np.arange(start, min(start + step, rows)))
            check_finite(weight, block)
            yield block.astype(self._np_dtype, copy=False)
            weight.release()
