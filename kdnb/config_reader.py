"""Reading one JSON object of settings, with errors that name the key."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kdnb.errors import ConfigError

REQUIRED: Any = object()
FLOAT32_MAX, FLOAT32_TINY = 3.4e38, 1.2e-38


@dataclass(frozen=True)
class ConfigReader:
    """Typed look-ups in a JSON object; a null counts as absent.

    Args:
        values: The object.
        where: What to call it in errors.
    """

    values: Mapping[str, Any]
    where: str

    def integer(self, key: str, default: Any = REQUIRED, least: int = 0, most: int = 2**31 - 1) -> Any:
        """An integer from `least` to `most`, or the default."""
        value = self._get(key, default)
        if key not in self.values or self.values[key] is None:
            return value
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int):
            raise ConfigError(f"{self.where}: {key} is {value!r}; it must be an integer.")
        if value < least:
            raise ConfigError(f"{self.where}: {key} is {value}; it must be {least} or more.")
        if value > most:
            raise ConfigError(f"{self.where}: {key} is larger than {most}, which no such model has.")
        return value

    def number(self, key: str, default: Any = REQUIRED, above: float | None = None) -> Any:
        """A number that float32 can hold, greater than `above`, or the default."""
        value = self._get(key, default)
        if key not in self.values or self.values[key] is None:
            return value
        usable = isinstance(value, int | float) and not isinstance(value, bool)
        if not usable or not abs(value) <= FLOAT32_MAX or 0 < abs(value) < FLOAT32_TINY:
            raise ConfigError(f"{self.where}: {key} is {_short(value)}; it must be a finite number.")
        if above is not None and not value > above:
            raise ConfigError(f"{self.where}: {key} is {value}; it must be greater than {above}.")
        return float(value)

    def boolean(self, key: str, default: Any = REQUIRED) -> Any:
        """True or false, or the default."""
        value = self._get(key, default)
        if key in self.values and self.values[key] is not None and not isinstance(value, bool):
            raise ConfigError(f"{self.where}: {key} is {value!r}; it must be true or false.")
        return value

    def choice(self, key: str, choices: tuple[str, ...], default: Any = REQUIRED) -> Any:
        """One of some strings, or the default."""
        value = self._get(key, default)
        if value not in choices:
            raise ConfigError(f"{self.where}: {key} is {value!r}; kdnb computes {', '.join(choices)}.")
        return value

    def integers(self, key: str) -> tuple[int, ...]:
        """A list of integers; a single one counts as a list, absent as none."""
        value = self.values.get(key)
        if value is None:
            return ()
        items = value if isinstance(value, list) else [value]
        for item in items:
            if isinstance(item, bool) or not isinstance(item, int):
                raise ConfigError(f"{self.where}: {key} is {value!r}; it must hold integers.")
        return tuple(items)

    def _get(self, key: str, default: Any) -> Any:
        value = self.values.get(key)
        if value is not None:
            return value
        if default is REQUIRED:
            raise ConfigError(f"{self.where} has no {key}; this model cannot be built without it.")
        return default


def is_folder(path: Path) -> bool:
    """Whether a path is a folder; no where the system cannot even ask (a name that is too long)."""
    try:
        return path.is_dir()
    except (OSError, ValueError):
        return False


def _short(value: Any) -> str:
    """repr, cut: Python refuses to print integers of thousands of digits."""
    try:
        return repr(value)[:80]
    except ValueError:
        return "a number of thousands of digits"


def read_json_object(path: Path) -> dict[str, Any]:
    """Read a JSON file that must hold an object.

    Raises:
        ConfigError: if it is missing, not readable, not JSON, or not an object.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError(
            f"{path.name} is not in {str(path.parent)!r}; pass a Hugging Face checkpoint folder."
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{str(path)!r} cannot be read: {error}.") from None
    try:
        data = json.loads(text)
    except json.JSONDecodeError as error:
        raise ConfigError(
            f"{str(path)!r} is not JSON (line {error.lineno}, column {error.colno}: {error.msg}); "
            "fetch it again."
        ) from None
    except (ValueError, RecursionError) as error:  # endless digits, endless brackets
        raise ConfigError(f"{str(path)!r} cannot be used: {error}.") from None
    if not isinstance(data, dict):
        raise ConfigError(f"{str(path)!r} holds a {type(data).__name__}; it must hold an object.")
    return data
