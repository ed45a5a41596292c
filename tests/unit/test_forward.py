"""Taps, edits and refusals of the forward."""

import numpy as np
import pytest

import kdnb
from kdnb.errors import BackendUnavailable, ConfigError, ShapeError, TokenError


@pytest.fixture(scope="module")
def target():
    return kdnb.load_target("golden")


def logits(target, **arguments):
    return target.forward([100, 101, 102], target.new_cache(), **arguments).logits


def test_every_tap_is_recorded_and_edits_see_them_in_order(target):
    seen = []
    result = target.forward(
        [100, 101],
        target.new_cache(),
        taps=target.tap_names,
        edit=lambda name, x: seen.append(name),
    )
    assert tuple(seen) == target.tap_names
    assert set(result.taps) == set(target.tap_names)
    np.testing.assert_array_equal(result.taps["logits"], result.logits)


@pytest.mark.parametrize("kind", ["float", "index"])
def test_every_edit_takes_effect(target, kind):
    plain = logits(target)
    for name in target.tap_names:
        is_index = name.endswith("topk_index")
        if is_index != (kind == "index"):
            continue

        def change(tap, x, name=name, is_index=is_index):
            if tap != name:
                return None
            return (x + 1) % target.config.n_routed_experts if is_index else x * 1.5 + 0.5

        assert np.abs(logits(target, edit=change) - plain).max() > 1e-3, name


def test_an_edit_cannot_choose_an_expert_that_is_not_there(target):
    def change(name, x):
        return x + 8 if name.endswith("topk_index") else None

    with pytest.raises(ShapeError, match=r'expert \d+ into "layers.1.router.topk_index".*experts 0 to 7'):
        logits(target, edit=change)


def test_an_edit_that_returns_nothing_or_the_same_changes_nothing(target):
    plain = logits(target)
    np.testing.assert_array_equal(plain, logits(target, edit=lambda name, x: None))
    np.testing.assert_array_equal(plain, logits(target, edit=lambda name, x: x))


def test_an_edit_cannot_change_the_forward_by_writing_in_place(target):
    def scribble(name, x):
        x[...] = 0

    np.testing.assert_array_equal(logits(target), logits(target, edit=scribble))


def test_an_edit_of_another_shape_is_refused(target):
    with pytest.raises(ShapeError, match=r'edit returned shape \[1\] for "embed.out".*\[3, 128\]'):
        logits(target, edit=lambda name, x: np.zeros(1))


def test_last_is_the_last_row(target):
    every = logits(target)
    np.testing.assert_allclose(logits(target, logits="last")[0], every[-1], atol=1e-5)
    assert logits(target, logits="last").shape == (1, 260)


def test_default_positions_and_mask_are_written_out(target):
    plain = logits(target)
    written = logits(target, positions=[0, 1, 2], visible=np.tri(3, dtype=bool))
    np.testing.assert_array_equal(plain, written)
    assert np.abs(plain - logits(target, positions=[0, 1, 3])).max() > 1e-3


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"taps": ["layers.9.out"]}, ConfigError, r'taps has "layers.9.out".*did you mean'),
        ({"taps": ["zzz"]}, ConfigError, "target.tap_names"),
        ({"logits": "first"}, ConfigError, 'logits is "first"'),
        ({"positions": [0, 1]}, ShapeError, r"positions has shape \[2\] but there are 3 tokens"),
        ({"positions": [0, 1, -2]}, ShapeError, "positions holds -2"),
        ({"positions": [0.0, 1.0, 2.0]}, ShapeError, "float64"),
        ({"visible": np.ones((3, 4), bool)}, ShapeError, r"visible is bool \[3, 4\]"),
        ({"visible": np.ones((3, 3))}, ShapeError, r"visible is float64 \[3, 3\]"),
        ({"visible": np.zeros((3, 3), bool)}, ShapeError, r"visible\[0, 0\] is False"),
    ],
)
def test_bad_arguments(target, arguments, error, message):
    with pytest.raises(error, match=message):
        logits(target, **arguments)


def test_bad_ids(target):
    with pytest.raises(TokenError, match=r"token_ids\[0\] is 260"):
        target.logits([260])
    with pytest.raises(TokenError, match="token_ids is empty"):
        target.logits([])


def test_backends_by_name():
    with pytest.raises(BackendUnavailable, match='"cuda"'):
        kdnb.load_target("golden", backend="cuda")
    with pytest.raises(ConfigError, match='backend "jax" is unknown; use one of numpy'):
        kdnb.load_target("golden", backend="jax")
    with pytest.raises(ConfigError, match='dtype "float16"'):
        kdnb.load_target("golden", dtype="float16")


def test_reprs_are_one_line_without_addresses(target):
    cache = target.new_cache()
    for thing in (target, cache, target.backend, target.forward([1], cache)):
        assert "\n" not in repr(thing)
        assert " at 0x" not in repr(thing)
