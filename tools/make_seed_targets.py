"""Make the two seed targets and record what transformers computes with them.

    pip install ".[reference]"
    python tools/make_seed_targets.py

The weights come from numpy's seeded generator (tests/support/models.py), so that tests can make them
again without transformers; a digest of the weights file guards that. transformers loads each folder,
and its logits and greedy tokens go to tests/data/seed_targets.safetensors.
"""

import hashlib
import json
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
import transformers
from safetensors.numpy import save_file

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from tests.support.seed_targets import NUM_TOKENS, PROMPT, SHAPES, write_seed_target  # noqa: E402


def main() -> None:
    """Write both targets to a temporary folder, run transformers on them, save its outputs."""
    arrays: dict[str, np.ndarray] = {}
    digests: dict[str, str] = {}
    for name in SHAPES:
        with tempfile.TemporaryDirectory() as scratch:
            folder = write_seed_target(Path(scratch), name)
            weights = folder / "model.safetensors"
            digests[name] = hashlib.sha256(weights.read_bytes()).hexdigest()
            model = transformers.AutoModelForCausalLM.from_pretrained(
                folder, dtype=torch.float32, attn_implementation="eager"
            ).eval()
        ids = list(PROMPT)
        with torch.no_grad():
            for _ in range(NUM_TOKENS):
                logits = model(torch.tensor([ids])).logits[0]
                ids.append(int(logits[-1].argmax()))
            logits = model(torch.tensor([ids])).logits[0].float().numpy()
        arrays[f"{name}.logits"] = logits
        arrays[f"{name}.token_ids"] = np.array(ids[len(PROMPT) :], dtype=np.int64)
        top = np.sort(logits[len(PROMPT) - 1 :], axis=1)
        print(name, "smallest top-2 gap", float((top[:, -1] - top[:, -2]).min()))
    metadata = {
        "digests": json.dumps(digests),
        "transformers": transformers.__version__,
        "torch": torch.__version__,
    }
    save_file(arrays, ROOT / "tests/data/seed_targets.safetensors", metadata=metadata)


if __name__ == "__main__":
    main()
