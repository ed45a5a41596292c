"""DFlash: a small block-diffusion drafter that reads the target's hidden states."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from kdnb.arrays import Bool, HostArray, Int32
from kdnb.backends.base import Array, Rope, Weight
from kdnb.checkpoint import StoredTensor, TensorFolder
from kdnb.draft import Draft, DraftContext
from kdnb.drafter_config import DFlashConfig
from kdnb.drafters.kv_rows import KvRows
from kdnb.errors import ConfigError, DrafterError

if TYPE_CHECKING:
    from kdnb.model import Target


@dataclass(frozen=True)
class DFlashLayer:
    """Weights of one layer: grouped-query attention with per-head norms, and a gated MLP."""

    input_norm: Weight
    q: Weight
    k: Weight
    v: Weight
    o: Weight
    q_norm: Weight
    k_norm: Weight
    post_attention_norm: Weight
    gate: Weight
    up: Weight
    down: Weight


class DFlash:
    """Drafts a whole block at once: the root and mask tokens in, one distribution per depth out.

    The context is the target's own hidden states: features of the committed rows, projected once and
    then turned into keys and values by every layer. The draft cache holds context only; a block's own
    keys and values are written behind it and forgotten. A block is never cut near the end of a text: rows
    stand for depths, whatever of them is still wanted.

    A feature is the raw output of its layer. Hugging Face's last `hidden_states` entry is taken after the
    final norm, so a drafter that reads the last layer may have been trained on "norm.out" instead.

    Args:
        config: The drafter's config.
        tensors: Its weights, z-lab's names.
        target: The target it was trained for.
        name: What to call it in traces.
        attention_factor: Factor on cos and sin to use instead of the config's (YaRN's amplitude). Engines
            disagree on it for published drafters; the accepted length of drafts tells which is right.

    Raises:
        DrafterError: if it does not fit the target; the message gives both numbers.
        ConfigError: if attention_factor is not positive, or the rope type is not "yarn".
        CheckpointError: if tensors are missing or misshapen.
    Source: z-lab's DFlash; the layout and the maths are those of its checkpoints.
    """

    def __init__(
        self,
        config: DFlashConfig,
        tensors: Mapping[str, StoredTensor],
        target: "Target",
        name: str = "dflash",
        *,
        attention_factor: float | None = None,
    ) -> None:
        check_fit(config, target)
        if attention_factor is not None:
            config = _with_amplitude(config, attention_factor)
        self.config = config
        self.name = name
        self.max_depth = config.block_size - 1
        self.tap_names = tuple(f"layers.{layer}.out" for layer in config.target_layer_ids)
        self._backend = target.backend
        self._drafted_rows = np.arange(1, config.block_size)

        def load(key: str) -> Weight:
            return target.backend.weight(tensors[key])

        self._fc = load("fc.weight")
        self._hidden_norm = load("hidden_norm.weight")
        self._norm = load("norm.weight")
        self._layers = tuple(_layer(load, index) for index in range(config.num_hidden_layers))
        self.start(target)

    def __repr__(self) -> str:
        c = self.config
        return (
            f"DFlash({self.name!r}, {c.num_hidden_layers} layers, block_size={c.block_size}, "
            f"target_layer_ids={list(c.target_layer_ids)})"
        )

    @classmethod
    def load(
        cls,
        folder: Path,
        target: "Target",
        name: str | None = None,
        *,
        attention_factor: float | None = None,
    ) -> "DFlash":
        """Open a DFlash folder: config.json and *.safetensors; arguments and errors as the class."""
        config = DFlashConfig.from_folder(folder)
        tensors = TensorFolder(folder)
        tensors.check(expected_tensors(config), lambda key: key.endswith("rotary_emb.inv_freq"))
        return cls(config, tensors, target, name or folder.name, attention_factor=attention_factor)

    def start(self, target: "Target") -> None:
        """Begin a new sequence; see Drafter."""
        check_fit(self.config, target)
        if target.backend is not self._backend:
            raise DrafterError(
                f"{self!r} lives on {self._backend!r} but the target on {target.backend!r}; "
                "load the drafter for this target."
            )
        self._target = target
        heads, head_dim = self.config.num_key_value_heads, self.config.head_dim
        self._cache = [KvRows(self._backend, heads, head_dim, 256) for _ in self._layers]

    def commit(self, token_ids: Int32, features: Mapping[str, Array]) -> None:
        """Turn committed rows' features into context keys and values; see Drafter."""
        rows = len(token_ids)
        taps = [self._feature(features, name, rows) for name in self.tap_names]
        self.extend(taps, np.arange(self.context_len, self.context_len + rows), self.context_len)
        for cache in self._cache:  # last, so that an interrupt leaves no layer ahead of another
            cache.length += rows

    def extend(self, taps: Sequence[Array], positions: HostArray | Array, context_len: int | Array) -> None:
        """Write the context keys and values of features [rows, hidden_size], one array per tap.

        Positions and context_len may live on the backend; the rows' capacity must then be reserved.
        """
        b = self._backend
        context = b.linear(b.concat(taps), self._fc)
        context = b.rms_norm(context, self._hidden_norm, self.config.rms_norm_eps)
        rope = b.rope(self.config.rope, self.config.head_dim, positions)
        for layer, cache in zip(self._layers, self._cache, strict=True):
            cache.write(context_len, *self._keys_values(context, layer, rope))

    def _feature(self, features: Mapping[str, Array], name: str, rows: int) -> Array:
        feature = features.get(name)
        if feature is None:
            raise DrafterError(f"features lack {name!r}; commit all of tap_names: {list(self.tap_names)}.")
        shape = [int(size) for size in feature.shape]
        if shape[:1] != [rows]:
            raise DrafterError(
                f"features of {name!r} have {shape[0] if shape else 'no'} rows but {rows} tokens were "
                "committed; pass one row per token."
            )
        if shape[1:] != [self.config.hidden_size]:
            raise DrafterError(
                f"features of {name!r} have shape {shape}; rows of hidden_size {self.config.hidden_size} "
                "are needed."
            )
        return feature

    @property
    def context_len(self) -> int:
        """Committed rows seen so far."""
        return self._cache[0].length

    def draft(self, context: DraftContext) -> Draft:
        """Run one block behind the context; see Drafter."""
        if not self.context_len:
            raise DrafterError(
                f"draft was called before any commit, with {context.prefix_len} rows in the target's cache; "
                "DFlash reads the features of committed rows: call start, then commit the prompt's."
            )
        if self.context_len != context.prefix_len:
            raise DrafterError(
                f"the drafter has seen {self.context_len} committed rows but the cache holds "
                f"{context.prefix_len}; call start, then commit every committed row."
            )
        block = np.full(self.config.block_size, self.config.mask_token_id, dtype=np.int32)
        block[0] = context.root_id
        positions = np.arange(self.context_len, self.context_len + len(block))
        logits = self.block_logits(block, positions, self.context_len)
        return Draft(context.root_id, logits, self._backend, context.noise)

    def block_logits(
        self, token_ids: Int32 | Array, positions: HostArray | Array, context_len: int | Array
    ) -> Array:
        """Logits [max_depth, vocab_size] of a block behind the context; arguments as `extend`'s."""
        b, config = self._backend, self.config
        rope = b.rope(config.rope, config.head_dim, positions)
        eps = config.rms_norm_eps
        h = self._target.embed(token_ids)
        x = b.rms_norm(h, self._layers[0].input_norm, eps)
        for index, layer in enumerate(self._layers):
            delta = self._attend(x, index, rope, context_len)
            h, x = b.add_rms_norm(h, delta, layer.post_attention_norm, eps)
            last = index + 1 == len(self._layers)
            after = self._norm if last else self._layers[index + 1].input_norm
            h, x = b.add_rms_norm(h, b.mlp(x, layer.gate, layer.up, layer.down), after, eps)
        drafted = b.take_rows(x, self._drafted_rows)  # row 0 is the root's own
        return self._target.lm_head(drafted)

    @property
    def context_rows(self) -> list[Array]:
        """The arrays of keys and values of all layers."""
        return [array for cache in self._cache for array in (cache.keys, cache.values)]

    def reserve(self, rows: int) -> None:
        """Make room for `rows` rows of context and block in all."""
        for cache in self._cache:
            cache.reserve(rows)

    def committed(self, rows: int) -> None:
        """Say how many rows of context there are, after a backend wrote them without the host."""
        for cache in self._cache:
            cache.length = rows

    def _attend(self, x: Array, index: int, rope: Rope, context_len: int | Array) -> Array:
        b, config = self._backend, self.config
        layer, cache = self._layers[index], self._cache[index]
        query = b.head_norm_rope(b.linear(x, layer.q), layer.q_norm, config.rms_norm_eps, rope)
        cache.write(context_len, *self._keys_values(x, layer, rope))
        attended = b.draft_attention(
            query, cache.keys, cache.values, context_len, config.head_dim**-0.5, self._visible(index)
        )
        return b.linear(attended, layer.o)

    def _keys_values(self, x: Array, layer: DFlashLayer, rope: Rope) -> tuple[Array, Array]:
        b, config = self._backend, self.config
        keys = b.head_norm_rope(b.linear(x, layer.k), layer.k_norm, config.rms_norm_eps, rope)
        return keys, b.split_heads(b.linear(x, layer.v), config.head_dim)

    def slides(self, layer: int) -> bool:
        """Whether a layer sees a window of the context only."""
        config = self.config
        return config.layer_types[layer] == "sliding_attention" and config.sliding_window is not None

    def _visible(self, layer: int) -> Bool | None:
        """Which keys the block sees in a sliding layer: those less than a window away, on either side.

        Symmetric, as flash attention treats z-lab's window in a layer that is not causal; it counts inside
        the block too, which matters only where the window is shorter than the block.
        """
        window = self.config.sliding_window
        if not self.slides(layer) or window is None:
            return None
        first, size = self.context_len, self.config.block_size
        queries = np.arange(first, first + size)[:, None]
        near: Bool = np.abs(queries - np.arange(first + size)[None, :]) < window
        return near


def _layer(load: Callable[[str], Weight], index: int) -> DFlashLayer:
    prefix = f"layers.{index}."
    attention = prefix + "self_attn."
    return DFlashLayer(
        input_norm=load(prefix + "input_layernorm.weight"),
        q=load(attention + "q_proj.weight"),
        k=load(attention + "k_proj.weight"),
        v=load(attention + "v_proj.weight"),
        o=load(attention + "o_proj.weight"),
        q_norm=load(attention + "q_norm.weight"),
        k_norm=load(attention + "k_norm.weight"),
        post_attention_norm=load(prefix + "post_attention_layernorm.weight"),
        gate=load(prefix + "mlp.gate_proj.weight"),
        up=load(prefix + "mlp.up_proj.weight"),
        down=load(prefix + "mlp.down_proj.weight"),
    )


def _with_amplitude(config: DFlashConfig, attention_factor: float) -> DFlashConfig:
    if not 0 < attention_factor < float("inf"):
        raise ConfigError(f"attention_factor is {attention_factor}; use a positive number, or None.")
    if config.rope.rope_type != "yarn":
        raise ConfigError(
            f'attention_factor is {attention_factor} but the rope type is "{config.rope.rope_type}"; '
            'only "yarn" has an amplitude to choose.'
        )
    return replace(config, rope=replace(config.rope, attention_factor=float(attention_factor)))


def expected_tensors(config: DFlashConfig) -> dict[str, tuple[int, ...]]:
    """Names and shapes of a DFlash checkpoint."""
    hidden, inner = config.hidden_size, config.intermediate_size
    queries = config.num_attention_heads * config.head_dim
    keys = config.num_key_value_heads * config.head_dim
    shapes: dict[str, tuple[int, ...]] = {
        "fc.weight": (hidden, hidden * len(config.target_layer_ids)),
        "hidden_norm.weight": (hidden,),
        "norm.weight": (hidden,),
    }
    for index in range(config.num_hidden_layers):
        for name, shape in {
            "input_layernorm": (hidden,),
            "post_attention_layernorm": (hidden,),
            "self_attn.q_proj": (queries, hidden),
            "self_attn.k_proj": (keys, hidden),
            "self_attn.v_proj": (keys, hidden),
            "self_attn.o_proj": (hidden, queries),
            "self_attn.q_norm": (config.head_dim,),
            "self_attn.k_norm": (config.head_dim,),
            "mlp.gate_proj": (inner, hidden),
            "mlp.up_proj": (inner, hidden),
            "mlp.down_proj": (hidden, inner),
        }.items():
            shapes[f"layers.{index}.{name}.weight"] = shape
    return shapes


def check_fit(config: DFlashConfig, target: "Target") -> None:
    """Refuse a drafter that was made for another target (DrafterError, with both numbers)."""
    theirs = target.config
    if config.block_size < 2:
        raise DrafterError(
            f"block_size is {config.block_size}; a block holds the root and one mask token at least, so 2."
        )
    for name, ours, wanted in (
        ("vocab_size", config.vocab_size, theirs.vocab_size),
        ("hidden_size", config.hidden_size, theirs.hidden_size),
        ("num_target_layers", config.num_target_layers, theirs.num_hidden_layers),
    ):
        if ours != wanted:
            raise DrafterError(
                f"the drafter's {name} is {ours} but the target has {wanted}; "
                "it was trained for another model."
            )
    for layer in config.target_layer_ids:
        if not 0 <= layer < theirs.num_hidden_layers:
            raise DrafterError(
                f"target_layer_ids holds {layer} but the target has layers 0 to "
                f"{theirs.num_hidden_layers - 1}."
            )
    if not 0 <= config.mask_token_id < theirs.vocab_size:
        raise DrafterError(
            f"mask_token_id is {config.mask_token_id} but ids of the target go from 0 to "
            f"{theirs.vocab_size - 1}."
        )
