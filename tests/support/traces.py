"""Rounds and runs made by hand: small enough to know every number of."""

import numpy as np

from kdnb.arrays import pack_visible
from kdnb.run import Run
from kdnb.trace import RoundTrace
from kdnb.tree import DraftTree

#        0 root
#       /      \
#      1 'A'    2 'B'
#     /   \       \
#    3'C'  4'D'    5 'E'      accepted: 0, 1, 4; bonus 9
TREE = DraftTree(
    token_ids=np.array([7, 10, 11, 12, 13, 14]),
    parents=np.array([-1, 0, 0, 1, 1, 2]),
    scores=np.log([1, 0.5, 0.25, 0.125, 0.1, 0.0625]),
    ranks=np.array([0, 0, 1, 0, 1, 0]),
    draft_log_probs=np.log([1, 0.5, 0.25, 0.25, 0.2, 0.25]).astype(np.float32),
)
TEXTS = {7: "root", 9: "bon", 10: "A", 11: "B", 12: "C", 13: "D", 14: "E"}


def token_text(token_id: int) -> str:
    return TEXTS.get(token_id, f"t{token_id}")


class Words:
    """A tokenizer of whole words."""

    def encode(self, text: str) -> list[int]:
        return [token for word in text.split() for token, known in TEXTS.items() if known == word]

    def decode(self, token_ids) -> str:
        return " ".join(token_text(int(token)) for token in token_ids)

    token_text = staticmethod(token_text)


def light_round(**changes) -> RoundTrace:
    fields = {
        "prefix_len": 20,
        "tree": TREE,
        "next_ids": np.array([10, 13, 14, 0, 9, 1], dtype=np.int32),
        "accepted": np.array([0, 1, 4], dtype=np.int32),
        "bonus_id": 9,
        "emitted": np.array([10, 13, 9], dtype=np.int32),
        "times_us": {"draft": 1.5, "build": 2.25, "verify": 100.125, "accept": 0.5, "compact": 3.0},
        "min_gap": 0.75,
    }
    return RoundTrace(**{**fields, **changes})


def full_round(**changes) -> RoundTrace:
    rng = np.random.default_rng(3)
    full = {
        "policy": "DDTree(spine=False)",
        "verify_rule": "Greedy()",
        "target_log_prob": np.log([1, 0.9, 0.1, 0.3, 0.6, 0.2]).astype(np.float32),
        "cache_row": np.arange(20, 26, dtype=np.int32),
        "draft_top_ids": np.array([[10, 11], [12, 13]], dtype=np.int32),
        "draft_top_log_probs": np.log([[0.5, 0.25], [0.25, 0.2]]).astype(np.float32),
        "target_top_ids": rng.integers(0, 15, (6, 3)).astype(np.int32),
        "target_top_log_probs": rng.normal(size=(6, 3)).astype(np.float32),
        "visible_words": pack_visible(TREE.visible),
    }
    return light_round(**{**full, **changes})


def small_run(**changes) -> Run:
    second = light_round(
        prefix_len=23,
        tree=DraftTree.root_only(9),
        next_ids=np.array([7], dtype=np.int32),
        accepted=np.array([0], dtype=np.int32),
        bonus_id=7,
        emitted=np.array([7], dtype=np.int32),
        min_gap=0.5,
    )
    fields = {
        "prompt_ids": np.arange(20, dtype=np.int32),
        "token_ids": np.array([7, 10, 13, 9, 7], dtype=np.int32),
        "rounds": [light_round(), second],
        "stop_reason": "length",
        "settings": {"target": "toy", "node_budget": 5},
        "tokenizer": Words(),
        "prefill_us": 1000.0,
        "prefill_min_gap": 2.0,
        "wall_us": 2500.0,
    }
    return Run(**{**fields, **changes})
