"""The model card beside the weights, from what the other steps recorded."""

import json
from pathlib import Path
from typing import Any

from kdnb.training.evaluate import TEMPERATURES, Setting
from kdnb.training.recipe import Recipe


def write_card(folder: Path, recipe: Recipe) -> None:
    """Write README.md of a folder in which the recipe ran to its end."""
    facts = {name: _read(folder / f"{name}.json") for name in ("run", "target", "drafter", "acceptance")}
    manifest = _read(folder / "corpus" / "manifest.json")
    parts = [
        _head(recipe, facts),
        _data(manifest),
        _losses(recipe, facts),
        _acceptance(recipe, facts),
        LIMITS,
    ]
    (folder / "README.md").write_text("\n".join(parts), encoding="utf-8")


def _read(path: Path) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return loaded


def _head(recipe: Recipe, facts: dict[str, Any]) -> str:
    t, d = recipe.target, recipe.drafter
    run = facts["run"]
    return f"""# {recipe.name}: a small MLA/MoE target and its DFlash drafter

A language model of Python source in DeepSeek-V3's architecture, and a drafter trained for it; made by
`python -m kdnb.training` (seed {run["seed"]}, {run["minutes"]:g} minutes, {run["environment"]["device"]}, torch
{run["environment"]["torch"]}). Together {run["bytes"] / 1e6:.2f} MB.

| | target | drafter |
|---|---|---|
| format | Hugging Face, `DeepseekV3ForCausalLM` | z-lab DFlash |
| parameters | {facts["target"]["parameters"]:,} | {facts["drafter"]["parameters"]:,} |
| layers | {t["num_hidden_layers"]}, the first dense | {d["num_hidden_layers"]} |
| hidden size | {t["hidden_size"]} | the same |
| attention | MLA: {t["num_attention_heads"]} heads, q_lora_rank {t["q_lora_rank"]}, kv_lora_rank \
{t["kv_lora_rank"]}, rope {t["qk_rope_head_dim"]} with YaRN | {d["num_attention_heads"]} query and \
{d["num_key_value_heads"]} key-value heads of {d["head_dim"]} |
| experts | {t["n_routed_experts"]}, {t["num_experts_per_tok"]} per token, {t["n_shared_experts"]} shared; \
sigmoid, noaux_tc | |
| context | {t["max_position_embeddings"]} | blocks of {d["block_size"]}, reads target layers \
{", ".join(map(str, d["dflash_config"]["target_layer_ids"]))} |
| weights | routed experts INT4 pack-quantized in groups of 32, the rest bfloat16 | bfloat16 |
"""


def _data(manifest: dict[str, Any]) -> str:
    train, held = manifest["train"], manifest["held_out"]
    names = [f"{p['name']} {p['version']}" for p in manifest["packages"] if p["part"] == "held_out"]
    return f"""## Data

Python source of one machine's environment: CPython's standard library and installed packages under permissive
licences, {train["bytes"] / 1e6:.1f} MB in {train["files"]:,} files, {train["tokens"] / 1e6:.1f} M tokens. Vendored
code, tables and near-duplicates (files most of whose longer lines stood in an earlier file) are left out. Held out
whole, and first in the search for duplicates: {", ".join(names)} ({held["bytes"] / 1e6:.1f} MB). `corpus/manifest.json`
lists packages, versions and licences, `corpus/files.tsv.gz` every file with its SHA-256.
"""


def _losses(recipe: Recipe, facts: dict[str, Any]) -> str:
    bits, accepted = facts["target"], facts["acceptance"]
    before = "".join(
        f"| experts in {kind}, before quantization-aware training | {bits[key]} |\n"
        for kind, key in (("bfloat16", "bf16_before"), ("INT4", "int4_before"))
        if key in bits
    )
    depths = " | ".join(f"{share:.0%}" for share in accepted["top_1_agreement_by_depth"])
    count = len(accepted["top_1_agreement_by_depth"])
    return f"""## Losses

| held-out packages | bits per byte |
|---|---|
{before}| experts unrounded, after it | {bits["bf16_after"]} |
| experts in INT4, after it | {bits["int4_after"]} |
| the shipped folder | {accepted["bits_per_byte_of_the_folder"]} (goal, fixed before training: \
{recipe.goal_bits_per_byte}) |

{bits["steps"]:,} steps, {bits["tokens"] / 1e6:.0f} M tokens; the last {1 - recipe.quantized_from:.0%} of the time with
INT4 experts (straight-through) and rows of {recipe.long_row_tokens} tokens. How often the drafter's best token is the
target's, by depth, on held-out greedy text:

| {" | ".join(str(depth) for depth in range(1, count + 1))} |
|{"---|" * count}
| {depths} |
"""


def _acceptance(recipe: Recipe, facts: dict[str, Any]) -> str:
    report = facts["acceptance"]
    at = report["goals"]["node_budget"]
    ways = [("dflash", "chain", recipe.drafter["block_size"] - 1)]
    ways += [("dflash", "ddtree", budget) for budget in recipe.budgets] + [("ngram", "ddtree", at)]
    rows = []
    for drafter, policy, budget in ways:
        cells = []
        for temperature in TEMPERATURES:
            found = report["emitted_per_round"][str(Setting(drafter, policy, budget, temperature))]
            cells.append(f"{found['mean']:.2f} ({found['low']:.2f} to {found['high']:.2f})")
        rows.append(f"| {drafter} | {policy} | {budget} | {' | '.join(cells)} |")
    bins = [f"| {b['expected']:.2f} | {b['kept']:.2f} | {b['rounds']} |" for b in report["calibration T=0"]]
    quartiles = ", ".join(f"{q['kept'] + 1:.2f}" for q in report["by_entropy_quartile T=0"])
    goals = "; ".join(
        f"{name} {report['goals'][name]['reached']} (goal {report['goals'][name]['goal']})"
        for name in ("tree", "tree_over_chain", "dflash_over_ngram")
    )
    return f"""## Acceptance

Mean tokens emitted per round with 95 % intervals (prompts resampled), {recipe.prompts} held-out prompts of
{recipe.prompt_tokens} tokens, {recipe.new_tokens} new tokens each.

| drafter | policy | budget | greedy | T=1 |
|---|---|---|---|---|
{chr(10).join(rows)}

Greedy, budget {at}: {goals}. By quartile of the target's entropy after the root, from sure to unsure: {quartiles}.
Share of 4-grams that stood earlier in the same text: greedy {report["repeated_4_grams T=0"]:.1%}, T=1
{report["repeated_4_grams T=1"]:.1%}, held-out text {report["repeated_4_grams held_out"]:.1%}.

Calibration, greedy, budget {at}: drafts the tree expected to keep (the sum of its probabilities) and kept.

| expected | kept | rounds |
|---|---|---|
{chr(10).join(bins)}
"""


LIMITS = """## Limits

It continues Python code by habit: names, idioms and layout are plausible, programs are not right. It knows
no other language, follows no instructions, and may repeat lines of its sources.
"""
