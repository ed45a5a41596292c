"""A weight as a checkpoint stores it, dequantized when it is read."""

import math
from typing import Literal

import numpy as np

from kdnb.arrays import Floats, HostArray
from kdnb.checkpoint.mapped_file import FP_NAMES, Entry
from kdnb.checkpoint.quantized import (
    FP8_BLOCK,
    INT4_GROUP,
    INT4_PER_WORD,
    dequantize_fp8,
    dequantize_int4,
)
from kdnb.errors import CheckpointError

INT4_PARTS = {"weight_packed", "weight_scale", "weight_shape"}
PARTS = ({"weight"}, {"weight", "weight_scale_inv"}, INT4_PARTS)


class StoredTensor:
    """One weight: plain floats, INT4 pack-quantized, or FP8 in blocks.

    Args:
        name: The weight's name without the checkpoint's prefix, ending in ".weight" or the like.
        parts: What is stored: {"weight"}, {"weight_packed", "weight_scale", "weight_shape"} or
            {"weight", "weight_scale_inv"}.

    Raises:
        CheckpointError: if the parts do not fit each other; the message gives the shapes.
    """

    def __init__(self, name: str, parts: dict[str, Entry]) -> None:
        self.name = name
        self._parts = parts
        self.kind: Literal["plain", "int4", "fp8"]
        if set(parts) not in PARTS and set(parts) - INT4_PARTS:
            raise CheckpointError(
                f"{name} is stored with {', '.join(sorted(set(parts) - {'weight'}))} beside it, which is no "
                "format that kdnb reads (plain, INT4 pack-quantized, FP8 with weight_scale_inv)."
            )
        if "weight_packed" in parts:
            self.kind, self.shape = "int4", self._int4_shape()
        elif "weight_scale_inv" in parts:
            self.kind, self.shape = "fp8", self._fp8_shape()
        else:
            self.kind, self.shape = "plain", parts["weight"].shape
        self.size = math.prod(self.shape)

    def __repr__(self) -> str:
        return f"StoredTensor({self.name!r}, {list(self.shape)}, {self.kind})"

    @property
    def dtype_name(self) -> str:
        """How the values are stored: a safetensors dtype; that of the packed words for INT4."""
        return self._parts["weight_packed" if self.kind == "int4" else "weight"].dtype_name

    @property
    def is_usable(self) -> bool:
        """Whether it can be read as floats: plain integers and bare FP8 cannot."""
        return self.kind != "plain" or self.dtype_name in FP_NAMES

    @property
    def stored_bytes(self) -> int:
        """Bytes on disk, scales included."""
        return sum(entry.stop - entry.start for entry in self._parts.values())

    def parts(self) -> dict[str, HostArray]:
        """The stored arrays as read-only views, for backends that keep them packed."""
        return {name: entry.array for name, entry in self._parts.items()}

    def read(self, dtype: "np.dtype[np.floating] | type[np.floating]" = np.float32) -> Floats:
        """Return the whole weight, dequantized.

        Args:
            dtype: numpy float dtype of the result.

        Returns:
            A read-only view of the file where it stores just this dtype, otherwise a new array, after
            which the file's pages are let go.
        """
        if self.kind == "plain":
            array = self._parts["weight"].array
            if array.dtype == dtype:
                return array
            copied: Floats = array.astype(dtype)
        else:
            copied = self._dequantize(slice(0, self.shape[0])).astype(dtype, copy=False)
        self.release()
        return copied

    def read_rows(self, rows: HostArray) -> Floats:
        """Return some rows of a matrix, dequantized; the other rows are not touched.

        Args:
            rows: int [count].

        Returns:
            [count, columns]: float64 from a float64 file, otherwise float32.
        """
        if self.kind == "plain":
            array = self._parts["weight"].array
            wide = np.float64 if array.dtype == np.float64 else np.float32
            return array[rows].astype(wide, copy=False)
        out = np.empty((len(rows), self.shape[1]), dtype=np.float32)
        for at, row in enumerate(np.asarray(rows).tolist()):
            out[at] = self._dequantize(slice(row, row + 1))[0]
        return out

    def release(self) -> None:
        """Let go of the resident pages of the mapped file."""
        for entry in self._parts.values():
            entry.release()

    def _dequantize(self, rows: slice) -> Floats:
        if self.kind == "int4":
            if self._stated_shape() != self.shape:
                raise CheckpointError(
                    f"{self.name}: weight_shape says {list(self._stated_shape())} but weight_packed "
                    f"and weight_scale hold {list(self.shape)}."
                )
            packed = self._parts["weight_packed"].array[rows]
            scale = self._parts["weight_scale"].array[rows]
            return dequantize_int4(packed, scale, self.shape[1])
        scale_inv = self._parts["weight_scale_inv"].array
        if scale_inv.dtype == np.uint8:  # E8M0: a power of two
            scale_inv = np.exp2(scale_inv.astype(np.float32) - 127)
        return dequantize_fp8(self._parts["weight"].array[rows], scale_inv, rows.start)

    def _stated_shape(self) -> tuple[int, ...]:
        """weight_shape; read late, so that opening does not touch a page per expert."""
        return tuple(int(size) for size in self._parts["weight_shape"].array)

    def _int4_shape(self) -> tuple[int, ...]:
        missing = {"weight_scale", "weight_shape"} - set(self._parts)
        if missing:
            raise CheckpointError(f"{self.name} has weight_packed but no {' and no '.join(sorted(missing))}.")
        packed, scale = self._parts["weight_packed"], self._parts["weight_scale"]
        shape = self._parts["weight_shape"]
        if shape.dtype_name not in ("I32", "I64") or shape.shape != (2,):
            raise CheckpointError(
                f"{self.name}: weight_shape is {shape.dtype_name} {list(shape.shape)}; "
                "it must be two integers."
            )
        if len(packed.shape) != 2:
            raise CheckpointError(
                f"{self.name}: weight_packed has shape {list(packed.shape)}; it is a matrix."
            )
        rows, columns = packed.shape[0], packed.shape[1] * INT4_PER_WORD
        if len(scale.shape) != 2 or scale.shape[1] * INT4_GROUP != columns:
            rows, columns = self._stated_shape()  # padded columns, or another group size
        words = -(-columns // INT4_PER_WORD)
        if packed.dtype_name != "I32" or packed.shape != (rows, words):
            raise CheckpointError(
                f"{self.name}: weight_packed is {packed.dtype_name} {list(packed.shape)} but "
                f"weight_shape {[rows, columns]} packs into I32 {[rows, words]}."
            )
        scales_fit = len(scale.shape) == 2 and scale.shape[0] == rows and scale.shape[1] > 0
        if not scales_fit or columns % scale.shape[1] or scale.dtype_name not in FP_NAMES:
            raise CheckpointError(
                f"{self.name}: weight_scale is {scale.dtype_name} {list(scale.shape)}, which does not "
                f"divide the {columns} columns of {rows} rows into groups."
            )
        return rows, columns

    def _fp8_shape(self) -> tuple[int, ...]:
        weight, scale = self._parts["weight"], self._parts["weight_scale_inv"]
        if weight.dtype_name != "F8_E4M3" or len(weight.shape) != 2:
            raise CheckpointError(
                f"{self.name} has weight_scale_inv but is {weight.dtype_name} "
                f"{list(weight.shape)}; FP8 block weights are F8_E4M3 matrices."
            )
        blocks = tuple(-(-size // FP8_BLOCK) for size in weight.shape)
        if scale.shape != blocks:
            raise CheckpointError(
                f"{self.name}: weight_scale_inv has shape {list(scale.shape)} but a weight of "
                f"{list(weight.shape)} has {list(blocks)} blocks of {FP8_BLOCK} x {FP8_BLOCK}."
            )
        if scale.dtype_name not in (*FP_NAMES, "F8_E8M0", "U8"):
            raise CheckpointError(
                f"{self.name}: weight_scale_inv is {scale.dtype_name}; it must hold factors."
            )
        return weight.shape
