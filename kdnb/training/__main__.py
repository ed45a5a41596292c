"""Train the shipped pair: one command, from this machine's Python source to two checkpoint folders.

Needs torch (a GPU for anything but --smoke), tokenizers, safetensors, numpy, ml_dtypes; no network.
"""

import argparse
import importlib.util
import json
import platform
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

NEEDED = ("torch", "tokenizers", "safetensors", "numpy", "ml_dtypes")
EVALUATION_SECONDS = 120.0  # about, on 16 cores


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="python -m kdnb.training", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder for everything that is written")
    parser.add_argument("--minutes", type=float, default=25.0, help="for the whole recipe (default 25)")
    parser.add_argument("--resume", type=Path, help="checkpoint to go on from; one that is absent is none")
    parser.add_argument("--pause-after", type=float, metavar="MINUTES", help="save and stop this call then")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--smoke", action="store_true", help="all steps with tiny sizes, on a CPU")
    parser.add_argument("--device", help="default: cuda if there is one")
    parser.add_argument("--no-compile", action="store_true", help="without torch.compile (slower)")
    parser.add_argument("--no-evaluation", action="store_true", help="stop after the two folders are written")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    """Run what is not done yet: corpus, target, drafter, evaluation."""
    began = time.monotonic()
    options = parse(arguments)
    absent = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if absent:
        print(f"missing: {', '.join(absent)}; pip install 'kdnb[train]'", file=sys.stderr)
        return 2
    import torch

    from kdnb.training.data import prepare
    from kdnb.training.recipe import SMOKE, TINY
    from kdnb.training.train import PausedError, Session

    recipe = SMOKE if options.smoke else TINY
    device = torch.device(options.device or ("cuda" if torch.cuda.is_available() else "cpu"))
    options.out.mkdir(parents=True, exist_ok=True)
    trained = options.out / "target" / "tokenizer.json"
    corpus = prepare(options.out / "corpus", recipe, options.seed, trained)
    session = Session(
        recipe=recipe,
        corpus=corpus,
        folder=options.out,
        device=device,
        seed=options.seed,
        compiled=device.type == "cuda" and not options.no_compile,
    )
    if options.pause_after is not None:
        session.pause_at = began + 60 * options.pause_after
    if options.resume is not None and options.resume.exists():
        session.resumed = torch.load(options.resume, map_location=device, weights_only=True)
    try:
        run(session, 60 * options.minutes, evaluation=not options.no_evaluation)
    except PausedError as paused:
        print(f"{paused}; go on with the same command and --resume {session.checkpoint}")
    print(f"this call took {(time.monotonic() - began) / 60:.1f} minutes")
    return 0


def run(session: Any, seconds: float, *, evaluation: bool) -> None:
    """The stages after the corpus; each is left out if its result is there."""
    import torch

    from kdnb.training.export import export_drafter, export_target, folder_bytes
    from kdnb.training.recipe import MAX_TOTAL_BYTES
    from kdnb.training.train import train_drafter, train_target

    recipe, corpus, folder = session.recipe, session.corpus, session.folder
    target, drafter = folder / "target", folder / "drafter"
    for_target, for_texts, for_drafter = (share * seconds for share in recipe.shares)
    if not (target / "model.safetensors").exists():
        model, facts = train_target(session, for_target)
        facts |= {"parameters": sum(p.numel() for p in model.parameters())}
        export_target(model, recipe.target_json(corpus.vocab_size), corpus.tokenizer, target)
        _report(folder, "target", facts | {"history": session.history})
        session.history = []
        del model
    if not (drafter / "model.safetensors").exists():
        model = train_drafter(session, target, for_drafter, for_texts)
        export_drafter(model, recipe.drafter_json(recipe.target_config(corpus.vocab_size)), drafter)
        facts = {"parameters": sum(p.numel() for p in model.parameters()), "history": session.history}
        _report(folder, "drafter", facts)
    size = folder_bytes(target) + folder_bytes(drafter)
    environment = {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "device": torch.cuda.get_device_name() if session.device.type == "cuda" else "cpu",
    }
    recipe_facts = {"recipe": asdict(recipe), "seed": session.seed, "minutes": seconds / 60}
    _report(folder, "run", recipe_facts | {"environment": environment, "bytes": size})
    print(f"target and drafter: {size / 1e6:.2f} MB", flush=True)
    if size > MAX_TOTAL_BYTES:
        raise SystemExit(f"target and drafter have {size} bytes but may have {MAX_TOTAL_BYTES} together")
    if evaluation:
        session.room_for("the evaluation", EVALUATION_SECONDS)
        _evaluate(session)


def _evaluate(session: Any) -> None:
    import numpy as np
    import torch

    from kdnb.training.card import write_card
    from kdnb.training.evaluate import evaluate
    from kdnb.training.export import load_drafter_model, load_target_model
    from kdnb.training.measure import agreement, bits_per_byte
    from kdnb.training.train import on_device

    recipe, corpus, folder, device = session.recipe, session.corpus, session.folder, session.device
    count = max(recipe.prompts, 16)
    texts = corpus.prompts(
        count, recipe.prompt_tokens + recipe.new_tokens, np.random.default_rng(session.seed)
    )
    prompts = [text[: recipe.prompt_tokens] for text in texts]
    follow = [text[recipe.prompt_tokens :] for text in texts]
    chosen = {"prompts": prompts[: recipe.prompts], "texts": follow[: recipe.prompts]}
    (folder / "prompts.json").write_text(json.dumps(chosen) + "\n", encoding="utf-8")
    target = load_target_model(folder / "target").to(device)
    drafter = load_drafter_model(folder / "drafter").to(device)
    sizes = torch.from_numpy(corpus.token_bytes).to(device)
    length = recipe.prompt_tokens + recipe.new_tokens
    with session.autocast():
        report = {
            "bits_per_byte_of_the_folder": bits_per_byte(
                target, on_device(corpus.held_out, device), sizes, recipe.row_tokens * 2
            ),
            "goal_bits_per_byte": recipe.goal_bits_per_byte,
            "top_1_agreement_by_depth": agreement(
                drafter, target, torch.tensor(prompts, device=device), length
            ),
        }
    del target, drafter
    report |= evaluate(folder, recipe)
    _report(folder, "acceptance", report)
    write_card(folder, recipe)
    print(json.dumps({key: report[key] for key in report if key != "texts_differ"}, indent=1))


def _report(folder: Path, name: str, facts: dict[str, Any]) -> None:
    (folder / f"{name}.json").write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
