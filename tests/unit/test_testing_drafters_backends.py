"""The checks for other people's drafters and backends: ours pass, wrong ones fail by message."""

import numpy as np
import pytest

import kdnb
from kdnb.backends.numpy_backend import NumpyBackend
from kdnb.draft import Draft
from kdnb.drafters import NGram, NoisyOracle, Replay
from kdnb.testing import CheckFailed, check_backend, check_drafter
from kdnb.tree import DraftTree
from tests.support.opaque import OpaqueBackend


@pytest.fixture(scope="module")
def target():
    return kdnb.load_target("golden")


def test_a_drafter_without_a_target_is_checked_on_the_shipped_one():
    check_drafter(NGram())


def test_our_drafters_pass(target):
    for drafter in (
        kdnb.load_drafter("golden", target),
        NGram(),
        Replay(list(range(40, 90)), error_rate=0.3),
        NoisyOracle(target, max_depth=3),
    ):
        check_drafter(drafter, target)


class Base:
    """A right but useless drafter; the tests break one thing each."""

    max_depth, tap_names = 2, ()

    def start(self, target):
        self.rows, self.target = 0, target

    def commit(self, token_ids, features):
        self.rows += len(token_ids)

    def draft(self, context):
        return Draft(context.root_id, np.zeros((2, 260), dtype=np.float32))


class KeepsState(Base):
    rows = 0

    def start(self, target):
        pass

    def draft(self, context):
        logits = np.zeros((2, 260), dtype=np.float32)
        logits[:, self.rows % 260] = 5
        return Draft(context.root_id, logits)


class SeesChunksOnly(Base):
    def commit(self, token_ids, features):
        self.rows = len(token_ids)

    draft = KeepsState.draft


class Moves(Base):
    calls = 0

    def draft(self, context):
        self.rows += 1
        return KeepsState.draft(self, context)


class WrongRoot(Base):
    def draft(self, context):
        return Draft(context.root_id + 1, np.zeros((2, 260), dtype=np.float32))


class WrongVocabulary(Base):
    def draft(self, context):
        return Draft(context.root_id, np.zeros((2, 100), dtype=np.float32))


class TooLarge(Base):
    def draft(self, context):
        count = context.node_budget + 1
        return DraftTree.from_parents([context.root_id, *range(count)], [-1, *range(count)])


class Nothing(Base):
    def draft(self, context):
        return None


class Raises(Base):
    def commit(self, token_ids, features):
        raise ZeroDivisionError("oops")


class Meddles(Base):
    """Breaks the target itself."""

    def draft(self, context):
        self.target.backend.all_reduce = lambda x: x * 1.5
        return super().draft(context)


@pytest.mark.parametrize(
    ("drafter", "message"),
    [
        (type("NoDepth", (Base,), {"max_depth": 0})(), "max_depth is 0"),
        (type("NoTap", (Base,), {"tap_names": ("layers.9.out",)})(), "tap_names has 'layers.9.out'"),
        (KeepsState(), "after a restart"),
        (SeesChunksOnly(), "committed in chunks"),
        (Moves(), "asked twice"),
        (WrongRoot(), "the draft's root is token 41, the context's 40"),
        (WrongVocabulary(), "100 tokens per depth, the target 260"),
        (TooLarge(), "drafts 13 nodes but node_budget is 12"),
        (Nothing(), "draft returned NoneType"),
        (Raises(), "commit raised ZeroDivisionError: oops"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Base) else "",
)
def test_wrong_drafters_fail_by_message(target, drafter, message):
    with pytest.raises(CheckFailed, match=message):
        check_drafter(drafter, target)


def test_a_drafter_that_changes_the_target_is_found():
    target = kdnb.load_target("golden")
    with pytest.raises(CheckFailed, match="with the drafter and .* without"):
        check_drafter(Meddles(), target)


def test_our_backends_pass():
    check_backend("numpy")
    check_backend(NumpyBackend(deterministic=True))
    check_backend(OpaqueBackend())


def wrong(op, change):
    """A numpy backend with one op changed."""
    backend = NumpyBackend()
    right = getattr(backend, op)
    setattr(backend, op, lambda *args, **kwargs: change(right, *args, **kwargs))
    return backend


@pytest.mark.parametrize(
    ("op", "change", "message"),
    [
        ("mask", lambda right, visible: None, r"tree: layers\.0\.attn\.context"),
        ("rms_norm", lambda right, x, w, eps: right(x, w, eps) * 1.001, "prefill: layers.0.attn_norm.out"),
        ("compact", lambda right, *args: None, "after compaction: cache rows of layer 0"),
        ("take_rows", lambda right, x, rows: right(x, np.sort(rows)), "take_rows"),
        ("upload", lambda right, x: x.astype(np.float32), "int32"),
        ("add", lambda right, x, y: x, "^add differs"),
        ("route", lambda right, *args: (lambda r: (r[0][:, ::-1], r[1]))(right(*args)), "topk_index"),
        ("run_experts", lambda right, *args: right(*args) * 0, "experts.out"),
        ("mla_query", lambda right, *args, **kw: right(*args, **kw)[:, ::-1], "attn.query"),
        ("draft_attention", lambda right, *args: right(*args) * 0, "round 0|tokens of the whole loop"),
        (
            "top_k_log_probs",
            lambda right, logits, k: (right(logits, k)[0][:, ::-1], right(logits, k)[1]),
            "ties to the lower id",
        ),
        ("cache_rows", lambda right, cache, layer, n: right(cache, layer, n) + 1, "cache rows of layer 0"),
    ],
)
def test_wrong_backends_fail_by_message(op, change, message):
    with pytest.raises(CheckFailed, match=message):
        check_backend(wrong(op, change))
