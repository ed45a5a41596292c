"""Does a verify rule keep its contract, and is a lossless one lossless?"""

from collections.abc import Callable, Iterator

import numpy as np

from kdnb.acceptance import Acceptance
from kdnb.arrays import Float32, Float64, Floats
from kdnb.draft import Draft
from kdnb.errors import KdnbError
from kdnb.noise import Noise
from kdnb.policies import Sampled
from kdnb.reference.transforms import softmax, transform_logits
from kdnb.testing.base import CheckFailed
from kdnb.tree import DraftTree
from kdnb.verify_rules import VerifyRule, check_acceptance

Distribution = Callable[[Floats], Float64]

SHAPES = ((1,), (2,), (4, 1), (3, 2, 1))  # children per node at each depth of the sampled trees
TOY_VOCAB = 4
STRICTNESS = 4.5  # chi-square may lie this many standard deviations out: a right rule fails 1 in 300,000
MIN_EXPECTED = 5.0  # draws that a cell must expect; the rarest cells are counted together


def check_verify_rule(
    rule: VerifyRule,
    distribution: Distribution | None = None,
    seed: int = 0,
    num_samples: int = 1200,
) -> None:
    """Call a rule with small random trees and target logits, and judge what it accepts.

    Every acceptance must be a path of the tree from the root down, the same again for the same noise, and
    leave its inputs as they were. A lossless rule must, besides, emit only tokens that the target can emit
    after the tokens before them, agree with its own next_ids where it returns them, and emit first and
    second tokens as often as the target alone would (chi-square on a toy target, where the distribution is
    known exactly). The trees' children are drawn without replacement from tree.sampled_from.

    Args:
        rule: A VerifyRule.
        distribution: What plain decoding draws from: [rows, vocab_size] target logits -> probabilities.
            By default what the rule's temperature, top_k and top_p attributes say; the argmax for a rule
            without a temperature.
        seed: Of the trees, logits and noise.
        num_samples: Decodings per toy target; more of them see smaller faults.

    Raises:
        CheckFailed: at the first broken property; the message says which, and where.
    """
    if isinstance(rule, type):
        raise CheckFailed(f"rule is the class {rule.__name__}; pass an object: {rule.__name__}().")
    if not isinstance(getattr(rule, "lossless", None), bool):
        raise CheckFailed(f"{rule!r} has no attribute lossless that is True or False.")
    probs_of = distribution or _declared_distribution(rule)
    for name, tree, logits in _cases(np.random.default_rng(seed)):
        for noise_seed in range(3):
            _check_case(rule, tree, logits, Noise(noise_seed, prefix_len=9), probs_of, name)
    if rule.lossless:
        for name, target, draft in _toys(np.random.default_rng(seed)):
            _check_frequencies(rule, target, draft, probs_of, num_samples, name)


def _declared_distribution(rule: VerifyRule) -> Distribution:
    temperature = getattr(rule, "temperature", 0.0)
    top_k, top_p = getattr(rule, "top_k", 0), getattr(rule, "top_p", 1.0)

    def greedy(logits: Floats) -> Float64:
        probs = np.zeros(logits.shape)
        np.put_along_axis(probs, logits.argmax(axis=1)[:, None], 1.0, axis=1)
        return probs

    def sampling(logits: Floats) -> Float64:
        return softmax(transform_logits(logits, temperature, top_k, top_p))

    return sampling if temperature > 0 else greedy


def _cases(rng: np.random.Generator) -> Iterator[tuple[str, DraftTree, Float32]]:
    """Names, trees, and target logits, float32 [num_nodes, vocab_size]."""
    for index in range(24):
        vocab_size, max_depth = int(rng.integers(2, 12)), int(rng.integers(1, 5))
        draft = rng.standard_normal((max_depth, vocab_size)).astype(np.float32)
        policy = Sampled(SHAPES[index % len(SHAPES)])
        tree = policy(Draft(0, draft, noise=Noise(index)), int(rng.integers(0, 40)))
        kind = ("random", "ties", "likes the draft", "tokens that cannot come")[index // 4 % 4]
        logits = rng.standard_normal((tree.num_nodes, vocab_size)).astype(np.float32) * 2
        if kind == "ties":
            logits = np.round(logits / 2)
        elif kind == "likes the draft":
            likes = np.flatnonzero(rng.random(tree.num_nodes) < 0.8)[1:]
            logits[tree.parents[likes], tree.token_ids[likes]] += 6
        elif kind == "tokens that cannot come":
            logits[:, 1::2] = -np.inf
        yield f"case {index} ({kind})", tree, logits


def _check_case(
    rule: VerifyRule, tree: DraftTree, logits: Float32, noise: Noise, probs_of: Distribution, name: str
) -> None:
    before = logits.copy()
    first, again = _call(rule, tree, logits, noise, name), _call(rule, tree, logits, noise, name)
    if not np.array_equal(before, logits):
        raise CheckFailed(f"{name}: the rule changed the target's logits; work on a copy.")
    if _emitted(tree, first) != _emitted(tree, again):
        raise CheckFailed(
            f"{name}: two calls with the same noise emitted {_emitted(tree, first)} and "
            f"{_emitted(tree, again)}; draw from the noise argument only."
        )
    if not rule.lossless:
        return
    emitted = _emitted(tree, first)
    path = [int(node) for node in first.accepted]
    probs = probs_of(logits[path])
    for node, token_id, row in zip(path, emitted, probs, strict=True):
        if not row[token_id] > 0:
            raise CheckFailed(
                f"{name}: the rule emits token {token_id} after node {node}, where the target alone would "
                f"never; its best there is token {int(row.argmax())}."
            )
    if first.next_ids is None:
        return
    choices = np.asarray(first.next_ids)[path].tolist()
    if choices != emitted:
        raise CheckFailed(
            f"{name}: the rule emits {emitted} but its next_ids along the kept path are {choices}; "
            "they must be the same."
        )


def _call(rule: VerifyRule, tree: DraftTree, logits: Float32, noise: Noise, name: str) -> Acceptance:
    try:
        acceptance = rule(tree, logits, noise)
        check_acceptance(tree, acceptance, logits.shape[1])
    except KdnbError as error:
        raise CheckFailed(f"{name}: {error}") from error
    except Exception as error:  # whatever a foreign object raises
        raise CheckFailed(f"{name}: the rule raised {type(error).__name__}: {error}") from error
    return acceptance


def _emitted(tree: DraftTree, acceptance: Acceptance) -> list[int]:
    kept = [int(node) for node in acceptance.accepted[1:]]
    return [*tree.token_ids[kept].tolist(), int(acceptance.bonus_id)]


def _toys(rng: np.random.Generator) -> Iterator[tuple[str, Float32, Float32]]:
    """Names, Markov targets [previous token, next token], and drafts [depth, token] of log-probs."""
    hostile = np.log(np.array([[0.7, 0.2, 0.07, 0.03], [0.05, 0.6, 0.3, 0.05]], dtype=np.float32))
    reverse = np.log(np.array([[0.1, 0.25, 0.3, 0.35]], dtype=np.float32))
    far = reverse + rng.standard_normal((TOY_VOCAB, TOY_VOCAB)).astype(np.float32) * 0.2
    yield "a draft far from the target", far, hostile
    near = rng.standard_normal((TOY_VOCAB, TOY_VOCAB)).astype(np.float32) * 1.5
    yield "a draft near the target", near, near[:2] + np.float32(0.3) * near[1:3]


def _check_frequencies(
    rule: VerifyRule, target: Float32, draft: Float32, probs_of: Distribution, num_samples: int, name: str
) -> None:
    """Decode two tokens after token 0, many times; compare their frequencies with the exact ones."""
    wide, narrow = Sampled((3, 2)), Sampled((1,))  # long paths, and many rounds
    probs = probs_of(target)
    if (probs.max(axis=1) == 1).all():  # no chance is involved
        num_samples = min(num_samples, 30)
    pairs = np.zeros((TOY_VOCAB, TOY_VOCAB))
    for seed in range(num_samples):
        emitted: list[int] = [0]
        while len(emitted) < 3:
            noise = Noise(seed, prefix_len=len(emitted))
            policy = wide if seed % 2 else narrow
            tree = policy(Draft(emitted[-1], draft, noise=noise), 7)
            emitted += _emitted(tree, _call(rule, tree, target[tree.token_ids], noise, name))
        pairs[emitted[1], emitted[2]] += 1
    expected = num_samples * probs[0][:, None] * probs
    _chi_square(pairs.sum(axis=1), expected.sum(axis=1), f"{name}: first tokens")
    _chi_square(pairs, expected, f"{name}: first and second tokens")


def _chi_square(counts: Float64, expected: Float64, what: str) -> None:
    counts, expected = counts.ravel(), expected.ravel()
    if (counts[expected == 0] > 0).any():
        raise CheckFailed(
            f"{what} are some that the target alone never emits: expected {_listed(expected)}, "
            f"got {_listed(counts)}."
        )
    order = np.argsort(expected, kind="stable")
    number = int((np.cumsum(expected[order]) < MIN_EXPECTED).sum()) + 1  # the rarest, counted together
    counts = np.append(counts[order][number:], counts[order][:number].sum())
    expected = np.append(expected[order][number:], expected[order][:number].sum())
    degrees = len(expected) - 1
    if degrees == 0:
        return
    statistic = float(((counts - expected) ** 2 / expected).sum())
    spread = 2 / (9 * degrees)  # Wilson and Hilferty: the cube root is nearly normal
    limit = degrees * (1 - spread + STRICTNESS * spread**0.5) ** 3
    if statistic > limit:
        raise CheckFailed(
            f"{what} do not follow the target's distribution (chi-square {statistic:.1f} with {degrees} "
            f"degrees of freedom, at most {limit:.1f}): expected {_listed(expected)}, got {_listed(counts)}."
        )


def _listed(values: Float64) -> str:
    return "[" + ", ".join(f"{value:.0f}" for value in values) + "]"
