"""The models that come with the package."""

from pathlib import Path

from kdnb.errors import ConfigError

SHIPPED = {"golden": "golden", "tiny": "golden"}  # name -> folder; "tiny" is the best pair there is
PARTS = ("target", "drafter")


def shipped_folder(name: str, part: str) -> Path:
    """Return the folder of a shipped model.

    Args:
        name: One of SHIPPED.
        part: "target" or "drafter".

    Returns:
        Path of a Hugging Face or DFlash folder inside the package.

    Raises:
        ConfigError: if there is no such name or part; the message lists those there are.
    """
    if part not in PARTS:
        raise ConfigError(f'a shipped model has no part "{part}"; use {" or ".join(PARTS)}.')
    if name not in SHIPPED:
        raise ConfigError(f'"{name}" is not shipped; there are {", ".join(sorted(SHIPPED))}.')
    return Path(__file__).parent / "checkpoints" / SHIPPED[name] / part
