"""The seam between what is computed and how: one protocol of coarse ops.

Above the seam arrays are opaque: they have `shape` and nothing else that may be relied on. Every op
is named and defined by a function of kdnb.reference; shapes are written as there. Host arrays (numpy)
cross the seam only where an argument or a result says `host`.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, Protocol, TypeAlias, runtime_checkable

from kdnb.arrays import Bool, Float32, HostArray, Int32
from kdnb.checkpoint import StoredTensor
from kdnb.reference.router import RouterSpec
from kdnb.rope_config import RopeConfig

Array: TypeAlias = Any  # a backend's array; only its `shape` is public
Weight: TypeAlias = Any  # a backend's handle of one stored tensor
Experts: TypeAlias = Any  # a backend's handle of one layer's routed experts
Rope: TypeAlias = Any  # a backend's cosines and sines of some rows
Mask: TypeAlias = Any  # a backend's form of a visibility mask, shared by all layers of one forward


class ExpertTensors(NamedTuple):
    """One routed expert as stored."""

    gate: StoredTensor
    up: StoredTensor
    down: StoredTensor


@runtime_checkable
class Backend(Protocol):
    """Memory verbs and ops; see kdnb.reference for the meaning of each op."""

    name: str
    dtype: str  # of activations and cache: "float32", "float64", "bfloat16"

    def row_by_row(self) -> AbstractContextManager[None]:
        """Inside it every row is computed alone: its bits do not depend on the other rows of a call."""

    # --- memory -------------------------------------------------------------------------------
    def upload(self, array: HostArray) -> Array:
        """Copy a host array; floats take the backend's dtype, integers keep theirs."""

    def download(self, x: Array) -> HostArray:
        """Copy to the host: floats as float32 (float64 from a float64 backend), integers as they are."""

    def zeros(self, shape: Sequence[int]) -> Array:
        """A new array of the backend's dtype."""

    def weight(self, stored: StoredTensor) -> Weight:
        """Take charge of a stored tensor; it may be read now or at first use."""

    def experts(self, stored: Sequence[ExpertTensors]) -> Experts:
        """Take charge of a layer's routed experts."""

    def take_rows(self, x: Array, rows: HostArray) -> Array:
        """Rows of x [rows, ...] by host indices, as a new array."""

    def write_rows(self, destination: Array, offset: "int | Array", x: Array) -> None:
        """Copy x [rows, ...] over destination[offset : offset + rows], in place."""

    def concat(self, arrays: Sequence[Array]) -> Array:
        """Join arrays [rows, size_i] along the last axis."""

    def new_cache(self, num_layers: int, capacity: int, width: int) -> Array:
        """Latent cache rows [num_layers, capacity, width]."""

    def grow_cache(self, cache: Array, capacity: int) -> Array:
        """The same rows with room for `capacity`."""

    def cache_rows(self, cache: Array, layer: int, num_rows: int) -> HostArray:
        """Host copy of one layer's first rows [num_rows, width]."""

    # --- ops of every model -------------------------------------------------------------------
    def embed(self, table: Weight, token_ids: Int32) -> Array:
        """Rows of the embedding table: [rows, hidden_size]."""

    def linear(self, x: Array, weight: Weight, bias: Weight | None = None) -> Array:
        """kdnb.reference.linear."""

    def logits(self, x: Array, weight: Weight) -> Array:
        """kdnb.reference.linear in float32, whatever the backend's dtype."""

    def rms_norm(self, x: Array, weight: Weight, eps: float) -> Array:
        """kdnb.reference.rms_norm."""

    def add_rms_norm(self, x: Array, delta: Array, weight: Weight, eps: float) -> tuple[Array, Array]:
        """kdnb.reference.rms_norm.add_rms_norm: (x + delta, its norm)."""

    def add(self, x: Array, y: Array) -> Array:
        """X + y, a new array."""

    def mlp(self, x: Array, gate: Weight, up: Weight, down: Weight) -> Array:
        """down(swiglu(gate(x), up(x))), kdnb.reference.swiglu."""

    def rope(self, config: RopeConfig, dim: int, positions: HostArray) -> Rope:
        """kdnb.reference.rope.rope_rows for a head of `dim` at host positions [rows]."""

    def top_k_log_probs(self, logits: Array, k: int) -> tuple[Int32, Float32]:
        """kdnb.reference.top_k: host ids and log-probs, each [rows, k]."""

    def all_reduce(self, x: Array) -> Array:
        """Sum over ranks after an op that splits heads or experts; the identity on one rank."""

    # --- ops of MLA and MoE -------------------------------------------------------------------
    def mla_query(
        self, q: Array, kv_b: Weight, rope: Rope, *, heads: int, v_head_dim: int, interleaved: bool
    ) -> Array:
        """kdnb.reference.mla_query; kv_b is kv_b_proj [heads * (nope + v), kv_lora_rank]."""

    def append_latent(
        self,
        cache: Array,
        layer: int,
        offset: int,
        kv_a: Array,
        norm: Weight,
        eps: float,
        rope: Rope,
        *,
        interleaved: bool,
    ) -> None:
        """kdnb.reference.append_latent into rows [offset, offset + rows) of one layer."""

    def mask(self, visible: Bool | None) -> Mask:
        """Prepare a visibility mask (host bool [rows, rows], None = causal) for verify_attention."""

    def verify_attention(
        self,
        query: Array,
        cache: Array,
        layer: int,
        prefix_len: int,
        mask: Mask,
        softmax_scale: float,
        kv_lora_rank: int,
    ) -> Array:
        """kdnb.reference.verify_attention: [rows, heads, kv_lora_rank]."""

    def mla_value(self, context: Array, kv_b: Weight, *, v_head_dim: int) -> Array:
        """kdnb.reference.mla_value: [rows, heads * v_head_dim]."""

    def route(self, logits: Array, bias: Weight | None, spec: RouterSpec) -> tuple[Array, Array]:
        """kdnb.reference.router: topk_index, topk_weight."""

    def run_experts(self, x: Array, experts: Experts, topk_index: Array, topk_weight: Array) -> Array:
        """kdnb.reference.experts: [rows, hidden_size]."""

    def compact(self, cache: Array, prefix_len: int, kept_rows: HostArray) -> None:
        """kdnb.reference.cache_compact, in place, every layer."""

    # --- ops of the draft block ---------------------------------------------------------------
    def head_norm_rope(self, x: Array, weight: Weight, eps: float, rope: Rope) -> Array:
        """kdnb.reference.head_norm_rope: [rows, heads, head_dim]."""

    def split_heads(self, x: Array, head_dim: int) -> Array:
        """View [rows, heads * head_dim] as [rows, heads, head_dim]."""

    def draft_attention(
        self,
        query: Array,
        keys: Array,
        values: Array,
        context_len: int,
        softmax_scale: float,
        visible: Bool | None,
    ) -> Array:
        """kdnb.reference.draft_attention over `context_len` rows of keys and values and one per query."""
