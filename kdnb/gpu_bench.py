"""Measured speed on a GPU: decoding, rounds by stage, beside transformers where torch is installed."""

import gc
import platform
import time
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import numpy as np

from kdnb.backends.cuda_device import CudaDevice
from kdnb.backends.kernel_backend import KernelBackend
from kdnb.config import TargetConfig
from kdnb.decoding import Decoding
from kdnb.drafter_config import DFlashConfig
from kdnb.drafters import DFlash, load_drafter
from kdnb.kernels.nvrtc import nvrtc_version
from kdnb.loop import generate, start
from kdnb.model import Target, load_target
from kdnb.settings import Settings
from kdnb.testing.random_weights import random_drafter, random_target

REPLAYS = 30
SHAPED = "DeepSeek-V2-Lite's shape, random weights, bfloat16"
V2_LITE: dict[str, Any] = {  # the shape of DeepSeek-V2-Lite
    "architectures": ["DeepseekV2ForCausalLM"],
    "model_type": "deepseek_v2",
    "hidden_size": 2048,
    "intermediate_size": 10944,
    "moe_intermediate_size": 1408,
    "num_hidden_layers": 27,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "q_lora_rank": None,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "n_routed_experts": 64,
    "n_shared_experts": 2,
    "num_experts_per_tok": 6,
    "first_k_dense_replace": 1,
    "moe_layer_freq": 1,
    "n_group": 1,
    "topk_group": 1,
    "topk_method": "greedy",
    "scoring_func": "softmax",
    "norm_topk_prob": False,
    "routed_scaling_factor": 1.0,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "max_position_embeddings": 8192,
    "vocab_size": 102400,
    "bos_token_id": 100000,
    "eos_token_id": 100001,
    "tie_word_embeddings": False,
    "attention_bias": False,
}
DRAFTER: dict[str, Any] = {
    "architectures": ["DFlashDraftModel"],
    "model_type": "qwen3",
    "block_size": 8,
    "dflash_config": {"mask_token_id": 0, "target_layer_ids": [1, 13, 25]},
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "num_hidden_layers": 3,
    "num_target_layers": 27,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "rope_scaling": None,
    "layer_types": ["full_attention"] * 3,
    "sliding_window": None,
    "vocab_size": 102400,
}


def measure_gpu(
    device: CudaDevice,
    *,
    node_budgets: tuple[int, ...] = (16, 64, 256),
    max_new_tokens: int = 128,
    repeat: int = 3,
    peer: bool = True,
    say: Callable[[str], object] = print,
) -> dict[str, Any]:
    """Time the golden pair in float32 and a random model of DeepSeek-V2-Lite's shape in bfloat16.

    Args:
        device: The GPU.
        node_budgets: Of the trees.
        max_new_tokens: Tokens per decoding.
        repeat: Times each decoding is timed; medians count.
        peer: Whether to time transformers too, if torch sees the GPU.
        say: Called with a line per result.

    Returns:
        {"machine", "models", "peers", "ratios"}; per model and budget the microseconds of a round (one graph
        replay, as the host sees it, by stage); tokens per second of the peers, by their names.
    """
    models: dict[str, Any] = {}
    golden = load_target("golden", backend=KernelBackend(device))
    drafter = load_drafter("golden", golden)
    assert isinstance(drafter, DFlash)
    models["golden float32"] = _measure_pair(golden, drafter, node_budgets, max_new_tokens, repeat, say)
    backend = KernelBackend(device, "bfloat16")
    say("filling a model of DeepSeek-V2-Lite's shape with random weights ...")
    target = random_target(TargetConfig.from_dict(V2_LITE), backend)
    shaped = random_drafter(DFlashConfig.from_dict(DRAFTER), target)
    models[SHAPED] = _measure_pair(target, shaped, node_budgets, max_new_tokens, repeat, say)
    del target, shaped
    gc.collect()
    device.pool.trim()
    peers = _measure_transformers(max_new_tokens, repeat, say) if peer else {}
    ours = models[SHAPED]["plain"]["tokens_per_second"]
    ratios = {f"plain / {name}": round(ours / speed, 2) for name, speed in peers.items()}
    return {"machine": machine(device), "models": models, "peers": peers, "ratios": ratios}


def _measure_pair(
    target: Target,
    drafter: DFlash,
    node_budgets: tuple[int, ...],
    max_new_tokens: int,
    repeat: int,
    say: Callable[[str], object],
) -> dict[str, Any]:
    prompt = np.random.default_rng(0).integers(0, target.config.vocab_size, 64).tolist()
    choices: dict[str, Any] = {"max_new_tokens": max_new_tokens, "stop_ids": ()}

    def measured(who: DFlash | None, node_budget: int) -> dict[str, Any]:
        row = measure_rounds(start(target, prompt, who, Settings(node_budget=node_budget, **choices)))
        times, run = [], None
        for _ in range(repeat):
            began = time.perf_counter()
            run = generate(target, prompt, who, node_budget=node_budget, **choices)
            times.append(time.perf_counter() - began)
        assert run is not None
        per_round = max_new_tokens / max(1, len(run.rounds))
        row["tokens_per_second"] = round(per_round * 1e6 / row["replay_us"], 1)
        row["emitted_per_round"] = round(per_round, 2)
        row["generate_seconds"] = round(float(np.median(times)), 4)  # with the prompt and the capture
        say(f"{target.name}, budget {node_budget}: {row}")
        return row

    return {
        "plain": measured(None, 0),
        "budgets": {budget: measured(drafter, budget) for budget in node_budgets},
    }


def measure_rounds(decoding: Decoding) -> dict[str, Any]:
    """Microseconds of a round as one graph: replayed back to back, as the host sees it, stage by stage."""
    decoding.prefill()
    rounds = decoding.device_rounds
    backend = decoding.target.backend
    assert rounds is not None
    assert isinstance(backend, KernelBackend)
    rounds.reset()
    seen = []
    for _ in range(min(REPLAYS, decoding.settings.max_new_tokens // 2)):
        began = time.perf_counter()
        trace = rounds.round()
        seen.append((time.perf_counter() - began) * 1e6)
        if trace.emitted.size == 0:
            break
    rounds.reset()
    result: dict[str, Any] = {"host_us": round(float(np.median(seen[1:])), 1)}
    stages = {}
    for name, stage in rounds.stages().items():
        stages[name] = round(_replay_us(backend, stage), 1)
    rounds.reset()

    def whole() -> None:
        for stage in rounds.stages().values():
            stage()

    result["replay_us"] = round(_replay_us(backend, whole), 1)
    result["stages_us"] = stages
    result["kernels_us"] = {
        name: round(_replay_us(backend, kernel), 1) for name, kernel in rounds.kernels().items()
    }
    return result


def _replay_us(backend: KernelBackend, stage: Callable[[], object]) -> float:
    """Microseconds of a stage inside a graph: the difference of many and few repeats."""
    totals = []
    for count in (2, 10):

        def repeated(_: int, count: int = count) -> None:
            for _ in range(count):
                stage()

        graph = backend.capture(repeated, lambda: None, repeat=False, done=lambda: True)
        times = []
        for _ in range(REPLAYS // 3):
            backend.device.sync()
            began = time.perf_counter()
            graph.launch()
            backend.device.sync()
            times.append(time.perf_counter() - began)
        totals.append(float(np.median(times)))
    return (totals[1] - totals[0]) / 8 * 1e6


def _measure_transformers(max_new_tokens: int, repeat: int, say: Callable[[str], object]) -> dict[str, float]:
    try:
        import torch
        import transformers
    except ImportError as error:
        say(f"transformers is left out: {error}")
        return {}
    if not torch.cuda.is_available():
        say("transformers is left out: torch sees no GPU")
        return {}
    transformers.utils.logging.set_verbosity_error()
    config = transformers.DeepseekV2Config(**{k: v for k, v in V2_LITE.items() if k != "architectures"})
    speeds: dict[str, float] = {}
    for attention in ("eager", "sdpa"):
        config._attn_implementation = attention
        torch.set_default_dtype(torch.bfloat16)
        with torch.device("cuda"):
            model = transformers.DeepseekV2ForCausalLM(config).eval()
        torch.set_default_dtype(torch.float32)
        name = f"transformers {transformers.__version__} {attention}"
        speeds[name] = round(_decode_speed(torch, model, max_new_tokens // 2, repeat), 1)
        say(f"{name}: {speeds[name]} tokens/s")
        del model
        gc.collect()
        torch.cuda.empty_cache()
    return speeds


def _decode_speed(torch: Any, model: Any, steps: int, repeat: int) -> float:
    """Tokens per second of greedy decoding behind 64 tokens."""
    prompt = torch.randint(0, 1000, (1, 64), device="cuda")
    speeds = []
    with torch.inference_mode():
        for _ in range(repeat + 1):  # the first warms up
            past = model(prompt, use_cache=True, logits_to_keep=1)
            token = past.logits[:, -1:].argmax(-1)
            torch.cuda.synchronize()
            began = time.perf_counter()
            for _ in range(steps):
                past = model(token, past_key_values=past.past_key_values, use_cache=True)
                token = past.logits[:, -1:].argmax(-1)
            torch.cuda.synchronize()
            speeds.append(steps / (time.perf_counter() - began))
    return float(np.median(speeds[1:]))


def machine(device: CudaDevice) -> dict[str, Any]:
    """The GPU, its driver and the versions that matter."""
    from cuda.bindings import driver

    versions = {}
    for name in ("kdnb", "cuda-core", "cuda-bindings", "nvmath-python", "numpy", "torch", "transformers"):
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            continue
    return {
        "gpu": repr(device),
        "driver": int(driver.cuDriverGetVersion()[1]),
        "nvrtc": ".".join(map(str, nvrtc_version())),
        "python": platform.python_version(),
        "versions": versions,
    }
