"""Every op as a launch of a kernel of kdnb/cuda_src, on a GPU or on a CPU that plays one."""

from collections.abc import Sequence
from typing import Any

from kdnb.arrays import Bool, HostArray, pack_visible
from kdnb.backends.base import ExpertTensors
from kdnb.backends.dense_kernels import TILE_OUTS, TILE_ROWS, DenseKernels, DeviceRope
from kdnb.backends.device import DeviceArray
from kdnb.backends.device_experts import DeviceExperts, upload_experts
from kdnb.backends.kernel_memory import FLOAT32, INT32, THREADS, UINT64
from kdnb.errors import ConfigError
from kdnb.kernels.source import Constant
from kdnb.reference.router import RouterSpec

__all__ = ["FLOAT32", "INT32", "UINT64", "DeviceRope", "KernelBackend"]

QUERY_COLUMNS = 64  # of mla_query.cu
HEAD_GROUP, KEY_TILE, KEYS_PER_SPLIT = 8, 16, 64  # of verify_attention.cu
PARTIAL_BYTES = 256 << 20  # of splits' results at once: wide prefill goes in parts
MAX_EXPERTS = 1024


class KernelBackend(DenseKernels):
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

    def experts(self, stored: Sequence[ExpertTensors]) -> DeviceExperts:
        if len(stored) > MAX_EXPERTS:
            raise ConfigError(
                f"a layer has {len(stored)} experts; the {self.name} backend runs {MAX_EXPERTS}."
            )
        return upload_experts(self, stored)

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
        self, logits: DeviceArray, bias: DeviceArray | None, spec: RouterSpec
    ) -> tuple[DeviceArray, DeviceArray]:
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
        return topk_index, topk_weight

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
