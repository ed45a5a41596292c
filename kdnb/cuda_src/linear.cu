// A matrix product with a weight stored [out, in].
//
// Inputs   x Real [rows, columns]; weight Real [outs, columns]; bias float [outs] or null
// Output   y [rows, outs]: Real, or float where OUT_IS_FLOAT (logits)
// Grid     (ceil(outs / 32), ceil(rows / 8)); block 128
// Shared   21 KB, static
// Twin     kdnb.reference.linear
// Why      the plain path: exact float32 without tf32, and a row's bits do not depend on the other rows. A
//          library's product is faster with many rows; see the backend.
#include "common.cuh"
#include "gemm_tile.cuh"

using Out = RealType<REAL_IS_BF16 && !OUT_IS_FLOAT>::type;

struct StridedRows {
    const Real* x;
    int64_t stride;
    __device__ __forceinline__ const Real* operator()(int row) const { return x + row * stride; }
};

extern "C" __global__ void __launch_bounds__(TILE_THREADS)
    linear(const Real* x, const Real* weight, const float* bias, Out* y, int rows, int outs, int columns) {
    __shared__ TileMemory memory;
    const int first_row = blockIdx.y * TILE_ROWS, first_out = blockIdx.x * TILE_OUTS;
    const StridedRows from = {x + int64_t(first_row) * columns, columns};
    const PlainWeight<Real> w = {weight, columns};
    const int num_rows = min(TILE_ROWS, rows - first_row);
    const Pair sum = gemm_tile<Real>(from, num_rows, w, first_out, outs, columns, memory);
    const int out = first_out + threadIdx.x % 32, row = threadIdx.x / 32;
    if (out >= outs) return;
    const float offset = bias ? bias[out] : 0.0f;
    Out* to = y + int64_t(first_row) * outs + out;
    if (row < num_rows) store(to + int64_t(row) * outs, sum.low + offset);
    if (row + 4 < num_rows) store(to + int64_t(row + 4) * outs, sum.high + offset);
}
