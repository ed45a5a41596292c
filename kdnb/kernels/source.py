"""Kernel sources: one file of kdnb/cuda_src with its constants and headers resolved into one text."""

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Literal

from kdnb.errors import KernelError

CUDA_SRC = Path(__file__).resolve().parents[1] / "cuda_src"

Constant = bool | int | float

_INCLUDE = re.compile(r'^#include "([\w.]+)"$')
_ENTRY = re.compile(r'extern "C" __global__ void\s+(?:__launch_bounds__\([^)]*\)\s+)?(\w+)\(([^)]*)\)')
Kind = Literal["pointer", "int", "int64", "float"]


@dataclass(frozen=True)
class KernelSource:
    """One `.cu` file specialised by constants.

    Args:
        name: The file's stem.
        constants: Name and value of each `constexpr` that the file expects (its header block says which).
        body: Text to use instead of the file's, for edited kernels.
    """

    name: str
    constants: tuple[tuple[str, Constant], ...] = ()
    body: str | None = field(default=None, repr=False)

    @classmethod
    def of(cls, name: str, constants: Mapping[str, Constant], body: str | None = None) -> "KernelSource":
        """A source; the order of the constants does not matter."""
        return cls(name, tuple(sorted(constants.items())), body)

    @cached_property
    def text(self) -> str:
        """The whole translation unit: constants, then the file with its headers in place.

        Raises:
            KernelError: if there is no such kernel or header.
        """
        preamble = "".join(f"constexpr {_declaration(name, value)};\n" for name, value in self.constants)
        return preamble + "\n".join(self._resolved(f"{self.name}.cu", set())) + "\n"

    @cached_property
    def entries(self) -> dict[str, tuple[Kind, ...]]:
        """The kernels that can be launched, in the order of the file, with the kinds of their parameters."""
        found = _ENTRY.findall(self.lines(f"{self.name}.cu"))
        return {name: tuple(_kind(p) for p in parameters.split(",")) for name, parameters in found}

    @cached_property
    def digest(self) -> str:
        """sha256 of the text."""
        return hashlib.sha256(self.text.encode()).hexdigest()

    def lines(self, file: str) -> str:
        """The text of the kernel's file or of one of its headers."""
        if self.body is not None and file == f"{self.name}.cu":
            return self.body
        path = CUDA_SRC / file
        if not path.is_file():
            known = ", ".join(sorted(p.stem for p in CUDA_SRC.glob("*.cu")))
            raise KernelError(f"{file} is not in kdnb/cuda_src, which has the kernels {known}.")
        return path.read_text(encoding="utf-8")

    def _resolved(self, file: str, seen: set[str]) -> list[str]:
        out = [f'#line 1 "{file}"']
        for number, line in enumerate(self.lines(file).splitlines(), start=1):
            include = _INCLUDE.match(line)
            if include is None:
                out.append(line)
            elif include[1] not in seen:
                seen.add(include[1])
                out += [*self._resolved(include[1], seen), f'#line {number + 1} "{file}"']
        return out


def sources_digest() -> str:
    """sha256 over all of kdnb/cuda_src: what a report of a GPU run is valid for."""
    digest = hashlib.sha256()
    for path in sorted(CUDA_SRC.glob("*.cu*")):
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()


def _kind(parameter: str) -> Kind:
    if "*" in parameter:
        return "pointer"
    if "int64_t" in parameter:
        return "int64"
    return "float" if "float" in parameter else "int"


def _declaration(name: str, value: Constant) -> str:
    if isinstance(value, bool):
        return f"bool {name} = {str(value).lower()}"
    if isinstance(value, int):
        return f"int {name} = {value}"
    return f"float {name} = {float(value)!r}f"
