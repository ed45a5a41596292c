"""Tokenizers: exact round trips, special ids, chat form, refusals."""

import base64
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

import kdnb
from kdnb.config import TargetConfig
from kdnb.errors import TokenError
from kdnb.tokenizer import KimiTokenizer, Tokenizer, load_tokenizer, visible_text
from tests.support.models import BASE

BYTES = kdnb.load_target("golden").tokenizer


@given(st.text())
def test_the_golden_tokenizer_is_bytes(text):
    assert BYTES.encode(text) == list(text.encode("utf-8", errors="surrogatepass"))
    assert BYTES.decode(BYTES.encode(text)) == text


def test_visible_forms():
    assert BYTES.token_text(32) == "·"
    assert BYTES.token_text(10) == "⏎"
    assert BYTES.token_text(97) == "a"
    assert BYTES.token_text(0xE9) == "\\xe9"
    assert BYTES.token_text(257) == "<|eos|>"
    assert BYTES.token_text(9999) == "<9999>"
    assert visible_text(b"a b\x00") == "a·b\\x00"
    assert isinstance(BYTES, Tokenizer)


@pytest.fixture(scope="module")
def kimi(tmp_path_factory):
    """A small tiktoken.model: all bytes, then a few merges."""
    folder = tmp_path_factory.mktemp("kimi")
    tokens = [bytes([b]) for b in range(256)] + [b"he", b"ll", b"hell", b"hello", b" w", "你好".encode()]
    tokens += ["你".encode(), "好".encode(), b"\xe4\xbd", b"\xe5\xa5"]
    lines = [f"{base64.b64encode(token).decode()} {rank}" for rank, token in enumerate(tokens)]
    (folder / "tiktoken.model").write_text("\n".join(lines) + "\n")
    return folder, len(tokens)


def test_kimi_round_trip_and_special_places(kimi):
    folder, base = kimi
    tokenizer = KimiTokenizer(folder, base + 256)
    for text in ("hello world", "你好, hello 12345\n\n  x", "don't   stop", "\tif x:\r\n", "日本語 and é"):
        assert tokenizer.decode(tokenizer.encode(text)) == text
    assert tokenizer.encode("hello") == [259]
    # special tokens in a text are text
    assert all(i < base for i in tokenizer.encode("<|im_end|>"))
    names = {0: "[BOS]", 1: "[EOS]", 2: "<|im_end|>", 3: "<|im_user|>", 22: "<think>", 23: "</think>"}
    names |= {254: "[UNK]", 255: "[PAD]", 5: f"<|reserved_token_{base + 5}|>"}
    for place, name in names.items():
        assert tokenizer.token_text(base + place) == name
        assert tokenizer.decode([base + place]) == name
    assert all(isinstance(tokenizer.decode([i]), str) for i in range(base + 256))


def test_kimi_digits_in_threes_and_han_apart(kimi):
    import tiktoken

    from kdnb.tokenizer import KIMI_PATTERN

    one_each = tiktoken.Encoding(
        "t", pat_str=KIMI_PATTERN, mergeable_ranks={bytes([b]): b for b in range(256)}, special_tokens={}
    )
    import regex

    pieces = regex.findall(KIMI_PATTERN, "abc你好123456 Hello")
    assert pieces == ["abc", "你好", "123", "456", " Hello"]
    assert one_each.decode(one_each.encode("abc你好123")) == "abc你好123"


def test_kimi_chat_form(kimi):
    folder, base = kimi
    tokenizer = KimiTokenizer(folder, base + 256)
    ids = tokenizer.chat([{"role": "system", "content": "s"}, {"role": "user", "content": "hello"}])
    assert tokenizer.decode(ids) == (
        "<|im_system|>system<|im_middle|>s<|im_end|><|im_user|>user<|im_middle|>hello<|im_end|>"
        "<|im_assistant|>assistant<|im_middle|>"
    )
    assert ids[0] == base + 10
    with pytest.raises(TokenError, match='role is "tool"'):
        tokenizer.chat([{"role": "tool", "content": ""}])


def test_kimi_names_from_its_config_win(kimi, tmp_path):
    folder, base = kimi
    (tmp_path / "tiktoken.model").write_bytes((folder / "tiktoken.model").read_bytes())
    added = {str(base + 5): {"content": "<|new|>"}}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"added_tokens_decoder": added}))
    assert KimiTokenizer(tmp_path, base + 256).token_text(base + 5) == "<|new|>"


def test_very_long_text_is_encoded_in_pieces(kimi):
    folder, base = kimi
    tokenizer = KimiTokenizer(folder, base + 256)
    for text in (" " * 120_000 + "x", "a" * 60_000, "hello " * 80_000):
        assert tokenizer.decode(tokenizer.encode(text)) == text


def test_damaged_files(kimi, tmp_path):
    folder, base = kimi
    with pytest.raises(TokenError, match=f"has {base} tokens but the model's vocabulary 100"):
        KimiTokenizer(folder, 100)
    (tmp_path / "tiktoken.model").write_text("aGk= 0\n%%% 1\n")
    with pytest.raises(TokenError, match=r"tiktoken.model line 2"):
        KimiTokenizer(tmp_path, 300)
    (tmp_path / "tiktoken.model").write_text("aGk= 0\naG8= 2\n")
    with pytest.raises(TokenError, match="does not number its 2 tokens"):
        KimiTokenizer(tmp_path, 300)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(TokenError, match=r"tokenizer.json cannot be used"):
        load_tokenizer(tmp_path, TargetConfig.from_dict(BASE))


def test_a_folder_without_a_tokenizer(tmp_path):
    assert load_tokenizer(tmp_path, TargetConfig.from_dict(BASE)) is None


def test_text_without_a_tokenizer_is_refused():
    from tests.support.goldens import DATA

    target = kdnb.load_target(DATA / "targets" / "v3")
    with pytest.raises(TokenError, match="has no tokenizer, so the prompt must be token ids"):
        kdnb.generate(target, "hi", max_new_tokens=2)
    assert kdnb.generate(target, [1], max_new_tokens=2).text is None
