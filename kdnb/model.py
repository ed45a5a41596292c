"""The target model: a checkpoint's weights and its forward, one row per token or tree node."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from kdnb.arrays import Bool, Float32, HostArray, Int32, UInt64, as_token_ids, pack_visible
from kdnb.backends import get_backend
from kdnb.backends.base import Array, Backend
from kdnb.cache import LatentCache, Window
from kdnb.checkpoint import StoredTensor, TensorFolder, expected_tensors, is_ignored
from kdnb.config import TargetConfig
from kdnb.errors import ConfigError, ShapeError
from kdnb.layers import Attention, Layer, Mlp, Moe, TargetWeights
from kdnb.reference.router import RouterSpec
from kdnb.shipped import SHIPPED, shipped_folder
from kdnb.tokenizer import Tokenizer, load_tokenizer
from kdnb.watch import Edit, Watch


@dataclass(frozen=True, eq=False)
class ForwardResult:
    """What a forward returns.

    Args:
        logits: float32 [rows, vocab_size] (float64 from a float64 backend); one row for logits="last".
        taps: The values asked for, by name.
        visible_words: uint64 [rows, words]; the packed mask that was used, or None for causal.
    """

    logits: Array
    taps: dict[str, Array]
    visible_words: UInt64 | None

    def __repr__(self) -> str:
        return f"ForwardResult(logits={list(self.logits.shape)}, taps={list(self.taps)})"


class Target:
    """A target model: the verifier of drafts, and on its own a plain decoder.

    Args:
        config: The checkpoint's config.
        weights: Its weights as handles of `backend`.
        backend: Where the forward runs.
        tokenizer: The checkpoint's tokenizer or None.
        name: What to call the model in traces.
        tensors: The checkpoint's tensors, for who wants to look at the weights.
    """

    def __init__(
        self,
        config: TargetConfig,
        weights: TargetWeights,
        backend: Backend,
        tokenizer: Tokenizer | None = None,
        name: str = "target",
        tensors: Mapping[str, StoredTensor] | None = None,
    ) -> None:
        self.config = config
        self.backend = backend
        self.tokenizer = tokenizer
        self.name = name
        self.tensors: Mapping[str, StoredTensor] = {} if tensors is None else tensors
        self._weights = weights
        self._router = RouterSpec(
            scoring_func=config.scoring_func,
            topk_method=config.topk_method,
            num_experts_per_tok=config.num_experts_per_tok,
            n_group=config.n_group,
            topk_group=config.topk_group,
            norm_topk_prob=config.norm_topk_prob,
            routed_scaling_factor=config.routed_scaling_factor,
        )
        self.tap_names = tuple(_tap_names(config))
        self.known_taps = frozenset(self.tap_names)

    def __repr__(self) -> str:
        c = self.config
        return (
            f"Target({self.name!r}, {c.model_type}, {c.num_hidden_layers} layers, "
            f"hidden_size={c.hidden_size}, vocab_size={c.vocab_size}, {self.backend!r})"
        )

    @property
    def mapped_bytes(self) -> int:
        """Bytes of the weights on disk."""
        return sum(stored.stored_bytes for stored in self.tensors.values())

    def new_cache(self, capacity: int = 256, *, grow: bool = True) -> LatentCache:
        """An empty cache for one sequence; see LatentCache."""
        return LatentCache(self.backend, self.config, capacity, grow=grow)

    def logits(self, token_ids: Sequence[int] | HostArray) -> Float32:
        """Logits of every token of a sequence, without keeping a cache.

        Args:
            token_ids: Vocabulary ids.

        Returns:
            float32 [len(token_ids), vocab_size]; row i holds the logits of the token after i.

        Raises:
            TokenError: if an id is not in the vocabulary.
        """
        result = self.forward(token_ids, self.new_cache(max(1, len(token_ids))))
        logits: Float32 = result.logits
        return logits

    def embed(self, token_ids: Int32) -> Array:
        """Embedding rows [rows, hidden_size], a backend array: a drafter's input."""
        return self.backend.embed(self._weights.embed, token_ids)

    def lm_head(self, hidden: Array) -> Array:
        """Logits [rows, vocab_size] of normed hidden rows, a backend array."""
        return self.backend.logits(hidden, self._weights.lm_head)

    def forward(
        self,
        token_ids: Sequence[int] | HostArray,
        cache: LatentCache,
        positions: Sequence[int] | HostArray | None = None,
        visible: Bool | None = None,
        taps: Iterable[str] = (),
        edit: Edit | None = None,
        logits: Literal["all", "last"] = "all",
        host: bool = True,
    ) -> ForwardResult:
        """Run rows of tokens behind the cache's committed prefix.

        Writes cache rows [prefix_len, prefix_len + rows) and leaves prefix_len: call cache.commit next.

        Args:
            token_ids: Vocabulary ids, one per row.
            cache: The sequence's cache, made by this target.
            positions: int [rows]; None is prefix_len + 0, 1, 2, ... A tree passes prefix_len + depths.
            visible: bool [rows, rows]; row i sees row j of this call. None is causal. The committed
                prefix is always visible.
            taps: Names of values to return, from `tap_names`.
            edit: edit(name, host array) -> array or None; called with every tapped point in order,
                its result replaces the value there.
            logits: "all" rows or only the "last".
            host: Whether logits and taps come as numpy arrays or stay the backend's.

        Returns:
            ForwardResult.

        Raises:
            TokenError: if an id is not in the vocabulary.
            ShapeError: if positions or visible do not fit the rows, or a row does not see itself.
            ConfigError: if a tap or the logits mode is unknown, or the cache is another model's.
            CapacityError: if the cache is full and may not grow.
        """
        ids = as_token_ids(token_ids, self.config.vocab_size, "token_ids")
        if logits not in ("all", "last"):
            raise ConfigError(f'logits is "{logits}"; use "all" or "last".')
        if not cache.fits(self.config):
            raise ConfigError(f"{cache!r} was not made for {self!r}; use target.new_cache().")
        rows = _positions(positions, len(ids), cache.prefix_len)
        words = None
        if visible is not None:
            visible = _checked_visible(visible, len(ids))
            words = pack_visible(visible)
        watch = Watch(self.backend, taps, self.known_taps, edit)
        cache.open_window(len(ids))
        out = self.run_rows(ids, cache, rows, visible, watch, logits)
        if not host:
            return ForwardResult(out, watch.recorded, words)
        download = self.backend.download
        recorded = {name: download(x) for name, x in watch.recorded.items()}
        return ForwardResult(download(out), recorded, words)

    def run_rows(
        self,
        token_ids: Int32 | Array,
        cache: Window,
        positions: HostArray | Array,
        visible: Bool | Array | None,
        watch: Watch,
        logits: str = "all",
    ) -> Array:
        """The forward itself, without checks and without opening the window; see `forward`.

        Ids, positions, visibility and the window's prefix_len may live on the backend: then nothing
        crosses to the host, and the launches can be captured in a graph.

        Returns:
            Logits, a backend array.
        """
        b, config, weights = self.backend, self.config, self._weights
        rope = b.rope(config.rope, config.qk_rope_head_dim, positions)
        mask = b.mask(visible)
        h = watch("embed.out", b.embed(weights.embed, token_ids))
        x = b.rms_norm(h, weights.layers[0].input_norm, config.rms_norm_eps)
        for index, layer in enumerate(weights.layers):
            name = f"layers.{index}."
            x = watch(name + "attn_norm.out", x)
            delta = self._attend(x, layer.attention, cache, index, rope, mask, watch)
            h, x = self._add(h, delta, layer.post_attention_norm, name + "attn.residual", watch)
            x = watch(name + "mlp_norm.out", x)
            delta = self._feed_forward(x, layer, name, watch)
            after = weights.layers[index + 1].input_norm if index + 1 < len(weights.layers) else weights.norm
            h, x = self._add(h, delta, after, name + "out", watch)
        x = watch("norm.out", x)
        if logits == "last":
            x = b.take_rows(x, np.array([len(token_ids) - 1]))
        return watch("logits", b.logits(x, weights.lm_head))

    def _add(self, h: Array, delta: Array, norm: Any, name: str, watch: Watch) -> tuple[Array, Array]:
        """Add to the residual stream and norm it for the next block, fused unless it is edited."""
        eps = self.config.rms_norm_eps
        total, normed = self.backend.add_rms_norm(h, delta, norm, eps)
        seen = watch(name, total)
        if seen is total:
            return total, normed
        return seen, self.backend.rms_norm(seen, norm, eps)

    def _attend(
        self,
        x: Array,
        w: Attention,
        cache: Window,
        layer: int,
        rope: Any,
        mask: Any,
        watch: Watch,
    ) -> Array:
        b, config, name = self.backend, self.config, f"layers.{layer}.attn."
        q = x
        if w.q_a is not None:
            q = b.rms_norm(b.linear(x, w.q_a, w.q_a_bias), w.q_norm, config.lora_norm_eps)
        q = watch(name + "q", b.linear(q, w.q_b))
        kv_a = watch(name + "kv_a", b.linear(x, w.kv_a, w.kv_a_bias))
        interleaved = config.rope_interleave
        b.append_latent(
            cache.rows,
            layer,
            cache.prefix_len,
            kv_a,
            w.kv_norm,
            config.lora_norm_eps,
            rope,
            interleaved=interleaved,
        )
        query = b.mla_query(
            q,
            w.kv_b,
            rope,
            heads=config.num_attention_heads,
            v_head_dim=config.v_head_dim,
            interleaved=interleaved,
        )
        query = watch(name + "query", query)
        context = b.verify_attention(
            query,
            cache.rows,
            layer,
            cache.prefix_len,
            mask,
            config.softmax_scale,
            config.kv_lora_rank,
        )
        context = watch(name + "context", context)
        heads = watch(name + "heads", b.mla_value(context, w.kv_b, v_head_dim=config.v_head_dim))
        return watch(name + "out", b.all_reduce(b.linear(heads, w.o, w.o_bias)))

    def _feed_forward(self, x: Array, layer: Layer, name: str, watch: Watch) -> Array:
        b, w = self.backend, layer.mlp
        if isinstance(w, Mlp):
            return watch(name + "mlp.out", b.all_reduce(b.mlp(x, w.gate, w.up, w.down)))
        assert isinstance(w, Moe)
        router_logits = watch(name + "router.logits", b.logits(x, w.router))
        chosen, topk_weight = b.route(router_logits, w.router_bias, self._router)
        topk_index = watch(name + "router.topk_index", chosen)
        if topk_index is not chosen:
            self._check_experts(topk_index, name)
        topk_weight = watch(name + "router.topk_weight", topk_weight)
        y = watch(name + "experts.out", b.run_experts(x, w.experts, topk_index, topk_weight))
        if w.shared is not None:
            shared = b.mlp(x, w.shared.gate, w.shared.up, w.shared.down)
            y = b.add(y, watch(name + "shared_experts.out", shared))
        return watch(name + "mlp.out", b.all_reduce(y))

    def _check_experts(self, topk_index: Array, name: str) -> None:
        """Refuse an edited choice of experts that there are not (ShapeError)."""
        ids, count = self.backend.download(topk_index), self.config.n_routed_experts or 0
        if ids.min() < 0 or ids.max() >= count:
            raise ShapeError(
                f"edit put expert {int(ids.min() if ids.min() < 0 else ids.max())} into "
                f'"{name}router.topk_index" '
                f"but the layer has experts 0 to {count - 1}."
            )


def load_target(
    path: str | Path,
    backend: str | Backend = "numpy",
    dtype: str = "float32",
    *,
    deterministic: bool = False,
    expert_cache_bytes: int | None = None,
) -> Target:
    """Open a checkpoint; weights are mapped now and read when they are used.

    Args:
        path: A Hugging Face folder (config.json, *.safetensors, tokenizer), or the name of a shipped
            model: "tiny" (the best one) or "golden".
        backend: "numpy", "cuda", "emulated", or a Backend object (which brings its own dtype and options).
        dtype: Of activations and cache: "float32"; "float64" (the referee) on numpy; else "bfloat16".
        deterministic: See NumpyBackend and KernelBackend.
        expert_cache_bytes: Budget for dequantized weights in memory on numpy; None is half of the memory.

    Returns:
        Target.

    Raises:
        ConfigError: if the config is of another architecture or lacks a key.
        CheckpointError: if files are missing or damaged, or tensors do not fit the config.
        BackendUnavailable: if the backend cannot run here.
    """
    name = str(path)
    folder = shipped_folder(name, "target") if name in SHIPPED else Path(path)
    config = TargetConfig.from_folder(folder)
    if isinstance(backend, str):
        backend = get_backend(
            backend,
            dtype=dtype,
            deterministic=deterministic,
            expert_cache_bytes=expert_cache_bytes,
        )
    tensors = TensorFolder(folder, prefix=config.tensor_prefix)
    tensors.check(expected_tensors(config), lambda tensor: is_ignored(config, tensor))
    return Target(
        config,
        TargetWeights.load(tensors, config, backend),
        backend,
        load_tokenizer(folder, config),
        name=name if name in SHIPPED else folder.name,
        tensors=tensors,
    )


def _positions(positions: Sequence[int] | HostArray | None, num_rows: int, prefix_len: int) -> HostArray:
    if positions is None:
        return np.arange(prefix_len, prefix_len + num_rows)
    rows = np.asarray(positions)
    if rows.shape != (num_rows,):
        raise ShapeError(
            f"positions has shape {list(rows.shape)} but there are {num_rows} tokens; "
            "pass one position per token."
        )
    if not np.issubdtype(rows.dtype, np.integer) or rows.min() < 0:
        raise ShapeError(
            f"positions holds {rows.min()} of dtype {rows.dtype}; positions are integers from 0 up."
        )
    return rows


def _checked_visible(visible: Bool, num_rows: int) -> Bool:
    visible = np.asarray(visible)
    if visible.shape != (num_rows, num_rows) or visible.dtype != np.bool_:
        raise ShapeError(
            f"visible is {visible.dtype} {list(visible.shape)} but there are {num_rows} tokens; "
            f"pass bool [{num_rows}, {num_rows}], the committed prefix not included."
        )
    blind = np.flatnonzero(~visible.diagonal())
    if blind.size:
        raise ShapeError(f"visible[{blind[0]}, {blind[0]}] is False; every row must see itself.")
    return visible


def _tap_names(config: TargetConfig) -> Iterable[str]:
    """All tapped points, in the order of a forward."""
    yield "embed.out"
    for layer in range(config.num_hidden_layers):
        name = f"layers.{layer}."
        yield name + "attn_norm.out"
        for part in ("q", "kv_a", "query", "context", "heads", "out", "residual"):
            yield f"{name}attn.{part}"
        yield name + "mlp_norm.out"
        if config.is_moe(layer):
            yield from (f"{name}router.{part}" for part in ("logits", "topk_index", "topk_weight"))
            yield name + "experts.out"
            if config.n_shared_experts:
                yield name + "shared_experts.out"
        yield name + "mlp.out"
        yield name + "out"
    yield "norm.out"
    yield "logits"
