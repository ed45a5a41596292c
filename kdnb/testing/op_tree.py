"""Draft trees on a kernel backend: building, accepting, compacting."""

import numpy as np

from kdnb.arrays import Float32, Int32, pack_visible
from kdnb.backends.device import DeviceArray
from kdnb.backends.device_tree import TreeNodes, accept_tree, build_tree
from kdnb.backends.kernel_backend import FLOAT32, INT32
from kdnb.reference.cache_compact import compact
from kdnb.reference.tree_accept import accept
from kdnb.reference.tree_build import tree_build
from kdnb.testing.judge import Judge
from kdnb.tree import DraftTree

# node_budget, depth, k: around the words of the mask, fewer tokens than nodes, a tree that is exhausted
TREES = [(1, 1, 1), (7, 3, 7), (16, 7, 16), (65, 15, 33), (30, 2, 3), (130, 4, 130)]
WIDE_TREES = [(2, 15, 2), (63, 7, 63), (64, 7, 64), (70, 7, 70), (256, 15, 256)]
WIDE_TREES += [(512, 7, 512), (1024, 15, 1024)]
PREFIX_LEN, ROOT_ID = 77, 5


def _marginals(judge: Judge, depth: int, k: int) -> list[tuple[str, Float32]]:
    """Kinds of log-probs, each [depth, k], descending."""
    rng = judge.rng

    def normed(logits: Float32) -> Float32:
        shifted = np.exp(logits - logits.max(axis=1, keepdims=True))
        values = np.log(np.maximum(shifted / shifted.sum(axis=1, keepdims=True), 1e-30))
        return -np.sort(-values, axis=1).astype(np.float32)

    flat = normed(rng.standard_normal((depth, k)).astype(np.float32))
    peaked = normed(rng.standard_normal((depth, k)).astype(np.float32) * 6)
    ties = -np.sort(rng.integers(0, 4, (depth, k)), axis=1).astype(np.float32)
    hidden = flat.copy()
    hidden[:, (k + 1) // 2 :] = -np.inf
    tiny = -np.sort(rng.random((depth, k)) * 1e-12, axis=1).astype(np.float32)
    certain = flat.copy()
    certain[:, 0] = 0.0  # a depth's first token costs nothing: its children tie with their parent
    kinds = {"flat": flat, "peaked": peaked, "ties": ties, "equal": np.zeros((depth, k), dtype=np.float32)}
    return list({**kinds, "minus infinity": hidden, "tiny": tiny, "certain": certain}.items())


def check_tree_build(judge: Judge) -> None:
    """Equal to kdnb.reference.tree_build in every field."""
    b, rng = judge.backend, judge.rng
    for budget, depth, k in TREES + (WIDE_TREES if judge.wide else []):
        for kind, log_probs in _marginals(judge, depth, k):
            ids = np.array([rng.permutation(k + 9)[:k] for _ in range(depth)], dtype=np.int32)
            want = tree_build(ids, log_probs, budget, ROOT_ID)
            nodes = TreeNodes.empty(b, budget, depth)
            root, length = (b.put(np.array([value], dtype=np.int32)) for value in (ROOT_ID, PREFIX_LEN))
            build_tree(b, b.put(ids), b.put(log_probs, FLOAT32), root, length, nodes)
            case = f"tree_build of {kind} [budget {budget}, depth {depth}, k {k}]"
            _compare_tree(judge, case, nodes, want)


def _compare_tree(judge: Judge, case: str, nodes: TreeNodes, want: DraftTree) -> None:
    slots, count = nodes.node_budget + 1, want.num_nodes
    assert want.scores is not None
    assert want.ranks is not None
    assert want.draft_log_probs is not None
    judge.exact(f"{case}: num_nodes", nodes.num_nodes, np.array([count], dtype=np.int32))
    spare = slots - count  # hold token 0 at the root's position
    for name, array, values, behind in (
        ("token_ids", nodes.token_ids, want.token_ids, 0),
        ("parents", nodes.parents, want.parents, -1),
        ("depths", nodes.depths, want.depths, 0),
        ("positions", nodes.positions, PREFIX_LEN + want.depths, PREFIX_LEN),
        ("ranks", nodes.ranks, want.ranks, 0),
        ("scores", nodes.scores, want.scores, 0),
        ("log_probs", nodes.log_probs, want.draft_log_probs, 0),
    ):
        judge.exact(f"{case}: {name}", array, np.append(values, np.full(spare, behind, dtype=values.dtype)))
    visible = np.eye(slots, dtype=np.bool_)  # slots behind the last node see themselves only
    visible[:count, :count] = want.visible
    judge.exact(f"{case}: visible_words", nodes.visible_words, pack_visible(visible))


def check_tree_accept(judge: Judge) -> None:
    """The path of kdnb.reference.tree_accept, in trees that fill their slots or do not."""
    rng = judge.rng
    for budget, depth in [(0, 0), (1, 1), (16, 7), (300, 15)]:
        for _ in range(6):
            num_nodes = int(rng.integers(1, budget + 2))
            parents, depths = [-1], [0]
            for node in range(1, num_nodes):
                parent = int(rng.integers(max(0, node - 3), node))
                while depths[parent] == depth:
                    parent = parents[parent]
                parents.append(parent)
                depths.append(depths[parent] + 1)
            token_ids = rng.permutation(num_nodes + 2)[:num_nodes].astype(np.int32)
            tree = DraftTree.from_parents(token_ids, parents)
            # mostly the token of a child, so that paths are long
            next_ids = np.array(
                [
                    token_ids[rng.choice(children)] if children and rng.random() < 0.9 else num_nodes + 3
                    for children in tree.children
                ],
                dtype=np.int32,
            )
            want = accept(tree, next_ids)
            _accept(judge, tree, next_ids, want.accepted, want.bonus_id, budget, depth)


def _accept(
    judge: Judge,
    tree: DraftTree,
    next_ids: Int32,
    accepted: Int32,
    bonus_id: int,
    budget: int,
    depth: int,
) -> None:
    b = judge.backend
    nodes = TreeNodes.empty(b, budget, depth)

    def padded(values: Int32, fill: int) -> DeviceArray:
        return b.put(np.pad(values, (0, budget + 1 - len(values)), constant_values=fill))

    filled = nodes._replace(
        token_ids=padded(tree.token_ids, 0),
        parents=padded(tree.parents, -1),
        num_nodes=b.put(np.array([tree.num_nodes], dtype=np.int32)),
    )
    got, num_kept, bonus = b.empty((depth + 1,), INT32), b.empty((1,), INT32), b.empty((1,), INT32)
    accept_tree(b, filled, padded(next_ids, 0), got, num_kept, bonus)
    case = f"tree_accept [{tree.num_nodes} nodes of {budget + 1}, depth {depth}]"
    kept = len(accepted)
    judge.exact(f"{case}: num_kept", num_kept, np.array([kept], dtype=np.int32))
    judge.exact(f"{case}: bonus_id", bonus, np.array([bonus_id], dtype=np.int32))
    want = np.append(accepted, np.zeros(depth + 1 - kept, dtype=np.int32))
    judge.exact(f"{case}: accepted", got, want)


def check_cache_compact(judge: Judge) -> None:
    """Kept rows to the front of the window, in every layer, in place."""
    b = judge.backend
    for width in (1, 24, 130):
        for prefix_len, kept in ((0, [0]), (3, [0, 1, 2]), (5, [0, 4, 5, 9]), (2, [1, 2, 3, 10])):
            rows = np.array(kept, dtype=np.int32)
            case = f"cache_compact [3 layers, width {width}, {len(kept)} rows behind {prefix_len}]"
            cache, want = judge.floats(3, 17, width)
            b.compact(cache, prefix_len, rows)
            compact(want, prefix_len, rows)
            judge.exact(case, cache, want)
            cache, want = judge.floats(3, 17, width)
            count = b.put(np.array([len(kept) - 1], dtype=np.int32))
            b.compact(cache, prefix_len, b.put(rows), count)
            compact(want, prefix_len, rows[:-1])
            judge.exact(f"{case}, all but one", cache, want)
