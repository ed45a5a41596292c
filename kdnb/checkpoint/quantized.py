"""What quantised weights mean: INT4 in packs of eight, and FP8 in blocks of 128 x 128."""

import numpy as np

from kdnb.arrays import Float32, HostArray

INT4_PER_WORD = 8
INT4_GROUP = 32  # columns per scale in Kimi's files
FP8_BLOCK = 128


def dequantize_int4(packed: HostArray, scale: HostArray, columns: int) -> Float32:
    """Unpack symmetric 4-bit weights.

    Args:
        packed: int32 [rows, ceil(columns / 8)]; element k of a row is nibble k % 8 of word k // 8, the
            lowest nibble first, stored as q + 8.
        scale: float [rows, columns / group_size]; one factor per group of columns.
        columns: Columns of the weight.

    Returns:
        float32 [rows, columns], exactly q * scale with q in [-8, 7].
    Source: the compressed-tensors format "pack-quantized".
    """
    rows = packed.shape[0]
    pairs = np.ascontiguousarray(packed).view(np.uint8)
    values = np.empty((rows, pairs.shape[1], 2), dtype=np.int8)
    np.bitwise_and(pairs, 0xF, out=values[:, :, 0], casting="unsafe")
    np.right_shift(pairs, 4, out=values[:, :, 1], casting="unsafe")
    values -= 8
    groups = scale.shape[1]
    kept = values.reshape(rows, -1)[:, :columns].reshape(rows, groups, -1)
    out = kept * np.asarray(scale, dtype=np.float32)[:, :, None]
    return out.reshape(rows, columns)


def dequantize_fp8(quantized: HostArray, scale_inv: HostArray, first_row: int = 0) -> Float32:
    """Scale FP8 weights by their blocks; edge blocks may be smaller.

    Args:
        quantized: float8_e4m3fn [rows, columns].
        scale_inv: [ceil(all rows / 128), ceil(columns / 128)]; despite its name it multiplies.
        first_row: Which row of the whole weight row 0 is.

    Returns:
        float32 [rows, columns].
    Source: DeepSeek-V3's README_WEIGHTS.
    """
    of_row = (first_row + np.arange(len(quantized))) // FP8_BLOCK
    scales = np.asarray(scale_inv, dtype=np.float32)[of_row]
    out = quantized.astype(np.float32)
    for block in range(scale_inv.shape[1]):
        out[:, block * FP8_BLOCK : (block + 1) * FP8_BLOCK] *= scales[:, block, None]
    return out
