"""The models that come with the package."""

from pathlib import Path

from kdnb.errors import ConfigError

SHIPPED = {"golden": "golden", "tiny": "golden"}  # name -> folder; "tiny" is the best pair there is


def shipped_folder(name: str, part: str) -> Path:
    """Return the folder of a shipped model's "target" or "drafter"."""
    if name not in SHIPPED:
        raise ConfigError(f'"{name}" is not shipped; there are {", ".join(sorted(SHIPPED))}.')
    return Path(__file__).parent / "checkpoints" / SHIPPED[name] / part
