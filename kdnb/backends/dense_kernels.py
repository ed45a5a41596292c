"""Ops of every model and of the draft block as kernels: products, norms, rotation, choices of tokens."""

from math import prod
from typing import Any, NamedTuple

import numpy as np

from kdnb.arrays import Bool, Float32, HostArray, Int32
from kdnb.backends.device import DeviceArray
from kdnb.backends.kernel_memory import FLOAT32, INT32, THREADS, KernelMemory
from kdnb.errors import ShapeError
from kdnb.rope_config import RopeConfig

TILE_OUTS, TILE_ROWS = 32, 8  # of gemm_tile.cuh
LIBRARY_SIZE = 1 << 17  # of a weight from which on cuBLAS is faster than the plain kernel
MAX_TOP_K = 8192


class DeviceRope(NamedTuple):
    """Cosines and sines on the device: float32 [rows, dim / 2]."""

    cosines: DeviceArray
    sines: DeviceArray


class DenseKernels(KernelMemory):
    """Ops of every model and of the draft block; arguments as KernelBackend."""

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
        self.launch(
            "sample_token", "sample_token", (rows,), arguments, block=_threads_for(vocab_size // 4, 512)
        )
        return ids, gaps, tops

    def all_reduce(self, x: DeviceArray) -> DeviceArray:
        return x

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


def _threads_for(work: int, most: int = 1024) -> int:
    """Threads of a block that goes through a row: a multiple of 32."""
    return min(most, max(32, -(-work // 32) * 32))


def _check_tops(tops: Float32) -> None:
    broken = np.flatnonzero(~np.isfinite(tops))
    if broken.size:
        row = int(broken[0])
        what = {np.inf: "plus infinity", -np.inf: "minus infinity only"}.get(float(tops[row]), "NaN")
        raise ShapeError(f"logits row {row} holds {what}; the model or drafter is broken.")
