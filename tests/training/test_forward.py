"""The training forward is kdnb's own: random weights, exported, loaded by kdnb, compared."""

import warnings

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import kdnb  # noqa: E402
from kdnb.checkpoint import TensorFolder  # noqa: E402
from kdnb.draft import DraftContext  # noqa: E402
from kdnb.noise import Noise  # noqa: E402
from kdnb.training.drafter import DrafterModel, draft_logits  # noqa: E402
from kdnb.training.export import (  # noqa: E402
    export_drafter,
    export_target,
    load_drafter_model,
    load_target_model,
)
from kdnb.training.model import TargetModel  # noqa: E402
from kdnb.training.quantize import dequantize, fake_quantize, pack, quantize  # noqa: E402
from kdnb.training.recipe import SMOKE  # noqa: E402
from kdnb.training.sampling import continue_rows, distinct_share  # noqa: E402

VOCAB = 96
TOLERANCE = 1e-4  # logits of size 1 to 10, float32 sums in another order
ROWS = 200  # beyond the context before YaRN's stretch (128)


@pytest.fixture(scope="module", autouse=True)
def _one_thread():
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def model():
    """A target in which every weight matters: norms and biases are random too."""
    generator = torch.Generator().manual_seed(0)
    model = TargetModel(SMOKE.target_config(VOCAB))
    model.initialize(generator)
    _disturb(model, generator)
    return model.eval()


@pytest.fixture(scope="module")
def drafter(model):
    generator = torch.Generator().manual_seed(1)
    drafter = DrafterModel(SMOKE.drafter_config(model.config))
    drafter.initialize(generator)
    _disturb(drafter, generator)
    return drafter.eval()


def _disturb(module, generator):
    with torch.no_grad():
        for name, value in module.state_dict().items():
            if value.dim() == 1:
                value += 0.3 * torch.randn(value.shape, generator=generator)
            else:
                value *= 10.0 if name == "embed_tokens.weight" else 3.0
            if not name.endswith("e_score_correction_bias"):
                value.copy_(value.bfloat16())


@pytest.fixture(scope="module")
def token_ids():
    return np.random.default_rng(2).integers(0, VOCAB, ROWS)


def ours(model, token_ids, taps=()):
    with torch.no_grad():
        states, features = model(torch.from_numpy(token_ids)[None], taps)
        return model.logits(states)[0].numpy(), [feature[0].numpy() for feature in features]


def worst(a, b):
    assert a.shape == b.shape
    assert np.abs(b).max() > 1  # a comparison of zeros would prove nothing
    return np.abs(a - b).max()


@pytest.mark.parametrize("int4", [False, True])
def test_logits_and_features_are_kdnbs(model, token_ids, tmp_path, int4):
    export_target(model, SMOKE.target_json(VOCAB), None, tmp_path, int4=int4)
    target = kdnb.load_target(tmp_path)
    kinds = {target.tensors[name].kind for name in target.tensors if ".experts." in name}
    assert kinds == {"int4" if int4 else "plain"}
    model.set_quantized(int4)
    logits, features = ours(model, token_ids, taps=(1, 2))
    result = target.forward(token_ids, target.new_cache(), taps=("layers.1.out", "layers.2.out"))
    assert worst(logits, result.logits) < TOLERANCE
    assert worst(features[0], result.taps["layers.1.out"]) < TOLERANCE
    assert worst(features[1], result.taps["layers.2.out"]) < TOLERANCE
    model.set_quantized(False)
    if int4:  # the rounding is not too small to be seen
        assert worst(ours(model, token_ids)[0], result.logits) > 100 * TOLERANCE


def test_transformers_reads_the_folder_and_says_the_same(model, token_ids, tmp_path):
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("compressed_tensors")
    export_target(model, SMOKE.target_json(VOCAB), None, tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # theirs
        theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32).eval()
        prompt = torch.from_numpy(token_ids[:20])[None]
        tokens = theirs.generate(prompt, max_new_tokens=20, min_new_tokens=20, do_sample=False)[0, 20:]
        with torch.no_grad():
            logits = theirs(torch.from_numpy(token_ids)[None]).logits[0].float().numpy()
    target = kdnb.load_target(tmp_path)
    # they round q * scale to bfloat16, kdnb does not
    assert np.abs(logits - target.logits(token_ids)).mean() < 0.02 * np.abs(logits).mean()
    run = kdnb.generate(target, token_ids[:20], max_new_tokens=20, stop_ids=())
    assert run.token_ids.tolist() == tokens.tolist()


def test_what_was_exported_can_be_trained_on(model, token_ids, tmp_path):
    export_target(model, SMOKE.target_json(VOCAB), None, tmp_path)
    back = load_target_model(tmp_path)
    assert worst(ours(back, token_ids)[0], kdnb.load_target(tmp_path).logits(token_ids)) < TOLERANCE


def test_packed_words_are_what_kdnb_reads(tmp_path, model):
    weight = model.layers[1].mlp.experts.down_proj[3].detach()
    export_target(model, SMOKE.target_json(VOCAB), None, tmp_path)
    stored = TensorFolder(tmp_path)["model.layers.1.mlp.experts.3.down_proj.weight"]
    assert np.array_equal(stored.read(), dequantize(*quantize(weight)).numpy())
    assert stored.parts()["weight_packed"].dtype == np.int32
    q = torch.tensor([[-8.0, 7, 0, 1, 2, 3, 4, -1]])
    assert pack(q).tolist() == [[int.from_bytes(bytes([0xF0, 0x98, 0xBA, 0x7C]), "little", signed=True)]]


def test_gradients_pass_through_the_rounding():
    weight = torch.randn(4, 64, generator=torch.Generator().manual_seed(0)).requires_grad_()
    fake_quantize(weight).square().sum().backward()
    assert torch.equal(weight.grad, 2 * fake_quantize(weight).detach())
    assert len(quantize(weight.detach())[0].unique()) <= 16


def test_the_drafter_is_kdnbs(model, drafter, token_ids, tmp_path):
    """One block behind each of several contexts, all at once in training and one by one in kdnb."""
    export_target(model, SMOKE.target_json(VOCAB), None, tmp_path / "target", int4=False)
    export_drafter(drafter, SMOKE.drafter_json(model.config), tmp_path / "drafter")
    back = load_drafter_model(tmp_path / "drafter")
    anchors = [1, 17, 100, ROWS - SMOKE.drafter["block_size"]]
    with torch.no_grad():
        logits, found = draft_logits(back, model, torch.from_numpy(token_ids)[None], torch.tensor([anchors]))
    target = kdnb.load_target(tmp_path / "target")
    theirs = kdnb.load_drafter(tmp_path / "drafter", target)
    for block, anchor in enumerate(anchors):
        theirs.start(target)
        prefix = token_ids[:anchor].astype(np.int32)
        taps = target.forward(prefix, target.new_cache(), taps=theirs.tap_names).taps
        theirs.commit(prefix, taps)
        root = int(token_ids[anchor])
        context = DraftContext(token_ids[: anchor + 1].astype(np.int32), anchor, root, 8, Noise(0))
        expected = theirs.draft(context).log_probs
        assert worst(logits[0, block].log_softmax(-1).numpy(), expected) < TOLERANCE
        assert found[0, block].tolist() == token_ids[anchor + 1 : anchor + len(expected) + 1].tolist()


def test_written_text_is_greedy_decoding(model, token_ids, tmp_path):
    export_target(model, SMOKE.target_json(VOCAB), None, tmp_path, int4=False)
    prompts = torch.from_numpy(token_ids[:60]).view(3, 20)
    rows = continue_rows(model, prompts, 36, torch.zeros(3), torch.Generator().manual_seed(0))
    target = kdnb.load_target(tmp_path)
    for prompt, row in zip(prompts.numpy(), rows.numpy(), strict=True):
        run = kdnb.generate(target, prompt, max_new_tokens=16, stop_ids=())
        assert run.token_ids.tolist() == row[20:].tolist()


def test_sampled_text_follows_the_temperature(model, token_ids):
    prompts = torch.from_numpy(token_ids[:20])[None].expand(5_000, -1)
    rows = continue_rows(model, prompts, 21, torch.ones(5_000), torch.Generator().manual_seed(0))
    share = np.bincount(rows[:, 20].numpy(), minlength=VOCAB) / len(rows)
    logits = ours(model, token_ids[:20])[0][-1]
    expected = np.exp(logits - logits.max())
    expected /= expected.sum()
    assert np.abs(share - expected).max() < 0.035  # five standard deviations at the most


def test_loops_are_seen():
    rows = torch.tensor([[1, 2, 3, 4] * 5, list(range(20))])
    assert distinct_share(rows).tolist() == pytest.approx([4 / 17, 1.0])


def test_the_bias_moves_against_the_load(model):
    router = TargetModel(SMOKE.target_config(VOCAB)).layers[1].mlp.gate
    router.load += torch.tensor([10.0, 0, 5, 5])
    worst_load = router.balance(0.01)
    assert router.e_score_correction_bias.tolist() == pytest.approx([-0.01, 0.01, 0, 0])
    assert float(worst_load) == 2
    assert not router.load.any()
