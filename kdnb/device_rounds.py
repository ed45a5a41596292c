"""Rounds that stay on the device: draft, build, verify, accept and compact without a word of the host."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from kdnb.arrays import HostArray, Int32
from kdnb.backends.device import DeviceArray
from kdnb.backends.device_tree import MAX_DEPTH, MAX_NODE_BUDGET, TreeNodes, accept_tree, build_tree
from kdnb.backends.kernel_backend import INT32, KernelBackend
from kdnb.drafters.dflash import DFlash
from kdnb.errors import DrafterError, ShapeError
from kdnb.policies import Chain, DDTree
from kdnb.trace import RoundTrace
from kdnb.tree import DraftTree
from kdnb.verify_rules import Greedy, SampleAndWalk
from kdnb.watch import Watch

if TYPE_CHECKING:
    from kdnb.decoding import Decoding

HEADER = 8  # words of a record before its arrays
INTACT = 0x7FFFFFFF  # in a record: no logit is broken
MAILBOX_IDS = 2  # where the emitted ids begin, behind stop_requested and num_emitted


@dataclass(frozen=True)
class Layout:
    """How a round's record lies in 32-bit words; decode_round.cu writes it.

    Args:
        node_budget: Drafted nodes at the most.
        max_depth: Depths of the draft.
    """

    node_budget: int
    max_depth: int

    @property
    def num_words(self) -> int:
        """Words of one record."""
        return HEADER + self.max_depth + 1 + 7 * (self.node_budget + 1)

    def trace(self, record: Int32) -> RoundTrace:
        """A record as a round's trace.

        Raises:
            DrafterError, ShapeError: if the drafter's or the target's logits were not finite.
        """
        prefix_len, num_nodes, num_kept, bonus_id, num_emitted, _, broken, _ = record[:HEADER].tolist()
        if broken < 0:
            raise DrafterError(
                f"draft logits of depth {-broken} hold NaN or infinity only; the drafter is broken."
            )
        if broken != INTACT:
            raise ShapeError(
                f"logits row {broken} holds NaN or infinity only; the model or drafter is broken."
            )
        rest = record[HEADER:]
        accepted = rest[:num_kept].copy()
        slots = self.node_budget + 1
        columns = rest[self.max_depth + 1 :]
        token_ids, parents, ranks, next_ids, log_probs = columns[: 5 * slots].reshape(5, slots)[:, :num_nodes]
        scores = np.ascontiguousarray(columns[5 * slots :]).view(np.float64)[:num_nodes]
        tree = DraftTree(
            token_ids=token_ids.copy(),
            parents=parents.copy(),
            scores=scores.copy(),
            ranks=ranks.copy(),
            draft_log_probs=log_probs.copy().view(np.float32),
        )
        path = tree.token_ids[accepted[1:]]
        gap = float(record[5:6].view(np.float32)[0])
        return RoundTrace(
            prefix_len=prefix_len,
            tree=tree,
            next_ids=next_ids.copy(),
            accepted=accepted,
            bonus_id=bonus_id,
            emitted=np.append(path, np.int32(bonus_id))[:num_emitted].astype(np.int32),
            min_gap=gap if np.isfinite(gap) else None,
        )


@dataclass(frozen=True)
class _Window:
    """The target's cache seen from the device: its length is a number there."""

    rows: DeviceArray
    prefix_len: DeviceArray


class DeviceRounds:
    """The rounds of one decoding on a kernel backend, with fixed shapes, so that a graph can replay them.

    Args:
        decoding: What is decoded; `why_not` gives None for it.
    """

    def __init__(self, decoding: "Decoding") -> None:
        target, settings = decoding.target, decoding.settings
        backend = target.backend
        assert isinstance(backend, KernelBackend)
        self._backend, self._decoding, self._target = backend, decoding, target
        drafter = decoding.drafter if settings.node_budget else None
        self._drafter = drafter if isinstance(drafter, DFlash) else None
        depth = self._drafter.max_depth if self._drafter else 0
        vocab_size = target.config.vocab_size
        if self._drafter is None:
            budget, self._k = 0, 0
        elif isinstance(decoding.policy, Chain):
            budget, self._k = min(settings.node_budget, depth), 1
        else:
            budget, self._k = settings.node_budget, min(settings.node_budget, vocab_size)
        self.layout = Layout(budget, depth)
        self._constants = {"NODE_BUDGET": budget, "MAX_DEPTH": depth}

        def integers(*shape: int) -> DeviceArray:
            return backend.empty(shape, INT32)

        self._state = integers(5)
        self._prefix_len, self._root = self._state.view((1,)), self._state.view((1,), 1)
        self._num_kept, self._bonus = integers(1), integers(1)
        self._tree = TreeNodes.empty(backend, budget, depth)
        self._accepted = integers(depth + 1)
        self._stop_ids = backend.put(np.array(sorted(decoding.stop_ids), dtype=np.int32))
        self._records = integers(settings.max_new_tokens, self.layout.num_words)
        self._mailbox = backend.device.mailbox(MAILBOX_IDS + settings.max_new_tokens)
        if self._drafter is None:  # the root is the whole tree, in every round
            for array, value in zip(self._tree, (0, -1, 0, 0, 0), strict=False):
                backend.device.write(array, np.array([value], dtype=np.int32))
            backend.device.write(self._tree.num_nodes, np.array([1], dtype=np.int32))
        self._read_rounds = 0
        self._caches: list[DeviceArray] = []
        self._draft_tops: DeviceArray | None = None
        self._round_graph: Any = None
        self._decode_graph: Any = None

    @staticmethod
    def why_not(decoding: "Decoding") -> str | None:
        """What keeps a decoding's rounds on the host, or None."""
        settings, backend = decoding.settings, decoding.target.backend
        if not isinstance(backend, KernelBackend):
            return "the backend has no kernels"
        if settings.trace != "light":
            return "a full trace records every logit"
        rule, policy, drafter = decoding.rule, decoding.policy, decoding.drafter
        if isinstance(rule, SampleAndWalk):
            if rule.top_k or rule.top_p < 1 or rule.temperature < 1e-30:
                return "top_k, top_p and tiny temperatures are computed on the host"
        elif not isinstance(rule, Greedy):
            return f"{rule!r} runs on the host"
        if drafter is None or settings.node_budget == 0:
            return None
        if not isinstance(drafter, DFlash):
            return f"{drafter!r} drafts on the host"
        if any(drafter.slides(layer) for layer in range(drafter.config.num_hidden_layers)):
            return "a sliding layer's mask is made on the host"
        if not (isinstance(policy, Chain) or (isinstance(policy, DDTree) and not policy.spine)):
            return f"{policy!r} builds on the host"
        if settings.node_budget > MAX_NODE_BUDGET or drafter.max_depth > MAX_DEPTH:
            return f"trees above {MAX_NODE_BUDGET} nodes or {MAX_DEPTH} levels are built on the host"
        return None

    def reset(self) -> None:
        """Tell the device where the decoding stands; after a prefill, or when the host undid a round."""
        decoding, device = self._decoding, self._backend.device
        self._make_room()
        emitted = np.array(decoding.token_ids, dtype=np.int32)
        state = [decoding.cache.prefix_len, decoding.root_id, len(emitted), 0, 0]
        device.write(self._state, np.array(state, dtype=np.int32))
        self._mailbox.host[: MAILBOX_IDS + len(emitted)] = [0, len(emitted), *emitted]
        self._read_rounds = 0

    def _make_room(self) -> None:
        """Grow the caches to the decoding's end; graphs that write others than these are forgotten."""
        decoding = self._decoding
        length = len(decoding.prompt_ids) + decoding.settings.max_new_tokens
        decoding.cache.reserve(length + self.layout.node_budget + 1)
        caches = [decoding.cache.rows]
        if self._drafter is not None:
            self._drafter.reserve(length + self._drafter.config.block_size)
            caches += self._drafter.context_rows
        if [id(array) for array in caches] != [id(array) for array in self._caches]:
            self._caches = caches
            self._round_graph = self._decode_graph = None

    def _check_drafter(self) -> None:
        drafter, cache = self._drafter, self._decoding.cache
        if drafter is not None and drafter.context_len != cache.prefix_len:
            raise DrafterError(
                f"{drafter!r} has seen {drafter.context_len} committed rows but the cache holds "
                f"{cache.prefix_len}: another decoding uses it; load a drafter for each."
            )

    def round(self) -> RoundTrace:
        """One round, replayed from a graph where the device has them."""
        self._check_drafter()
        if self._round_graph is None:
            self._round_graph = self._graph(repeat=False)
        self._round_graph.launch()
        return self._next_records(1)[0]

    def decode(self) -> Iterator[Sequence[int]]:
        """All rounds in one go, until a stop id or the length; yields new token ids as they come."""
        self._check_drafter()
        if self._decode_graph is None:
            self._decode_graph = self._graph(repeat=True)
        known = len(self._decoding.token_ids)
        self._decode_graph.launch()
        try:
            while True:
                running = not self._decode_graph.is_done()
                count = int(self._mailbox.host[1])  # after asking, so that nothing is missed
                if count > known:
                    ids = self._mailbox.host[MAILBOX_IDS + known : MAILBOX_IDS + count].tolist()
                    known = count
                    yield ids
                elif not running:
                    return
        finally:  # also when the reader stops: the device ends after the round that it is in
            self._mailbox.host[0] = 1
            self._decode_graph.wait()
            self._mailbox.host[0] = 0

    def records(self) -> list[RoundTrace]:
        """The rounds that the device ran and the host has not read."""
        num_rounds = int(self._backend.device.read(self._state)[3])
        return self._next_records(num_rounds - self._read_rounds)

    def _next_records(self, count: int) -> list[RoundTrace]:
        """Read records and follow them: the cache's and the drafter's lengths."""
        words = self.layout.num_words
        part = self._records.view((count, words), self._read_rounds * words)
        records: HostArray = self._backend.device.read(part)
        self._read_rounds += count
        traces = [self.layout.trace(record) for record in records]
        if count:
            prefix_len = int(records[-1][0] + records[-1][2])
            self._decoding.cache.advance_to(prefix_len)
            if self._drafter is not None:
                self._drafter.committed(prefix_len)
        return traces

    def _graph(self, *, repeat: bool) -> Any:
        """Capture `_step`, once or repeated until it is done; where the device has no graphs, call it."""
        backend = self._backend
        return backend.capture(self._step, self.reset, repeat=repeat, done=self._is_done)

    def _is_done(self) -> bool:
        return bool(self._backend.device.read(self._state)[4])

    def _step(self, condition: int = 0) -> None:
        """The launches of one round."""
        for stage in self.stages().values():
            stage()
        self._finish(condition)

    def stages(self) -> dict[str, Callable[[], None]]:
        """The parts of a round, in order, each a call that issues its launches."""
        return {
            "draft": self._draft,
            "build": self._build,
            "verify": self._verify,
            "accept": self._accept,
            "compact": self._compact,
        }

    def kernels(self) -> dict[str, Callable[[], object]]:
        """The kernels of a round's own work, apart from the models', each a call that launches it."""
        b, tree = self._backend, self._tree
        found: dict[str, Callable[[], object]] = {
            "argmax": lambda: self._choose(self._logits),
            "tree_accept": lambda: accept_tree(
                b, tree, self._next_ids, self._accepted, self._num_kept, self._bonus
            ),
        }
        if self._drafter is not None:
            ids, log_probs, _ = b.top_k(self._draft_logits, self._k)
            rows = self._decoding.cache.rows
            found |= {
                "top_k": lambda: b.top_k(self._draft_logits, self._k),
                "tree_build": lambda: build_tree(b, ids, log_probs, self._root, self._prefix_len, tree),
                "cache_compact": lambda: b.compact(rows, self._prefix_len, self._accepted, self._num_kept),
            }
        return found

    def _draft(self) -> None:
        b, drafter = self._backend, self._drafter
        if drafter is None:  # the root is the whole tree: its id and position
            arguments = [self._state, 0, self._tree.token_ids, self._tree.positions]
            b.launch("decode_round", "draft_block", (1,), arguments, self._constants, block=1)
            return
        block = drafter.config.block_size
        token_ids, positions = b.empty((block,), INT32), b.empty((block,), INT32)
        arguments = [self._state, drafter.config.mask_token_id, token_ids, positions]
        b.launch("decode_round", "draft_block", (1,), arguments, self._constants, block=block)
        self._draft_logits = drafter.block_logits(token_ids, positions, self._prefix_len)

    def _build(self) -> None:
        if self._drafter is None:
            return
        b = self._backend
        ids, log_probs, self._draft_tops = b.top_k(self._draft_logits, self._k)
        build_tree(b, ids, log_probs, self._root, self._prefix_len, self._tree)

    def _verify(self) -> None:
        tap_names = () if self._drafter is None else self._drafter.tap_names
        watch = Watch(self._backend, tap_names, self._target.known_taps, None)
        window = _Window(self._decoding.cache.rows, self._prefix_len)
        visible = None if self._drafter is None else self._tree.visible_words
        logits = self._target.run_rows(self._tree.token_ids, window, self._tree.positions, visible, watch)
        self._logits, self._taps = logits, watch.recorded

    def _accept(self) -> None:
        self._next_ids, self._gaps, self._tops = self._choose(self._logits)
        accept_tree(self._backend, self._tree, self._next_ids, self._accepted, self._num_kept, self._bonus)

    def _compact(self) -> None:
        """Gather the kept cache rows, and hand the drafter their features.

        Features behind the last kept row come along: what they write is written over later.
        """
        b, drafter = self._backend, self._drafter
        if drafter is None:
            return
        b.compact(self._decoding.cache.rows, self._prefix_len, self._accepted, self._num_kept)
        rows = self.layout.max_depth + 1
        positions = b.empty((rows,), INT32)
        b.launch(
            "decode_round", "kept_positions", (1,), [self._state, positions], self._constants, block=rows
        )
        taps = [b.take_rows(self._taps[name], self._accepted) for name in drafter.tap_names]
        drafter.extend(taps, positions, self._prefix_len)

    def _finish(self, condition: int) -> None:
        tree, settings = self._tree, self._decoding.settings
        arguments: list[Any] = [self._state, self._stop_ids, len(self._stop_ids), settings.max_new_tokens]
        arguments += [tree.num_nodes, tree.token_ids, tree.parents, tree.ranks, self._next_ids]
        arguments += [self._accepted, self._num_kept, self._bonus, tree.scores, tree.log_probs]
        arguments += [self._gaps, self._tops, self._draft_tops, self.layout.max_depth]
        arguments += [self._mailbox.array, self._records, condition]
        self._backend.launch("decode_round", "finish_round", (1,), arguments, self._constants, block=256)

    def _choose(self, logits: DeviceArray) -> tuple[DeviceArray, DeviceArray, DeviceArray]:
        """The target's token after every node, by how much it won, the largest logit."""
        rule, settings = self._decoding.rule, self._decoding.settings
        if isinstance(rule, SampleAndWalk):
            return self._backend.sample(
                logits, self._tree.depths, self._prefix_len, settings.seed, rule.temperature
            )
        return self._backend.argmax(logits)
