"""Check that a wheel is what users should get: pure Python, small, and with everything inside.

Use: python tools/check_wheel.py dist/kdnb-*.whl
"""

import sys
import zipfile
from pathlib import Path

MAX_BYTES = 25_000_000
NEEDED = (
    "kdnb/checkpoints/golden/target/model.safetensors",
    "kdnb/checkpoints/golden/target/tokenizer.json",
    "kdnb/checkpoints/golden/drafter/model.safetensors",
    "kdnb/_notebooks/00_quickstart.ipynb",
    "kdnb/cuda_src/README.md",
    "kdnb/py.typed",
)


def main(path: Path) -> int:
    """Print what is wrong; return the number of faults."""
    names = zipfile.ZipFile(path).namelist()
    faults = [f"{name} is not in the wheel" for name in NEEDED if name not in names]
    if not path.name.endswith("py3-none-any.whl"):
        faults.append(f"{path.name} is not py3-none-any")
    size = path.stat().st_size
    if size > MAX_BYTES:
        faults.append(f"the wheel has {size} bytes, {MAX_BYTES} at the most")
    print("\n".join(faults) or f"{path.name}: {size / 1e6:.1f} MB, {len(names)} files")
    return len(faults)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
