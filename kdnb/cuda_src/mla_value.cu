// Every head's attended latent times its value up-projection.
//
// Inputs   context Real [rows, HEADS, KV_LORA_RANK]; kv_b Real [HEADS, NOPE_DIM + V_HEAD_DIM, KV_LORA_RANK]
// Output   values Real [rows, HEADS * V_HEAD_DIM]
// Grid     (ceil(V_HEAD_DIM / 32), HEADS, ceil(rows / 8)); block 128
// Shared   21 KB, static
// Twin     kdnb.reference.mla_value
#include "common.cuh"
#include "gemm_tile.cuh"

struct HeadRows {
    const Real* context;  // row 0 of this tile, this head
    __device__ __forceinline__ const Real* operator()(int row) const {
        return context + int64_t(row) * HEADS * KV_LORA_RANK;
    }
};

extern "C" __global__ void __launch_bounds__(TILE_THREADS)
    mla_value(const Real* context, const Real* kv_b, Real* values, int rows) {
    __shared__ TileMemory memory;
    const int head = blockIdx.y, first_row = blockIdx.z * TILE_ROWS, first_out = blockIdx.x * TILE_OUTS;
    const int num_rows = min(TILE_ROWS, rows - first_row);
    const HeadRows from = {context + (int64_t(first_row) * HEADS + head) * KV_LORA_RANK};
    const Real* weight = kv_b + (int64_t(head) * (NOPE_DIM + V_HEAD_DIM) + NOPE_DIM) * KV_LORA_RANK;
    const PlainWeight<Real> w = {weight, KV_LORA_RANK};
    const Pair sum = gemm_tile<Real>(from, num_rows, w, first_out, V_HEAD_DIM, KV_LORA_RANK, memory);
    const int out = first_out + threadIdx.x % 32, row = threadIdx.x / 32;
    if (out >= V_HEAD_DIM) return;
    Real* to = values + (int64_t(first_row) * HEADS + head) * V_HEAD_DIM + out;
    constexpr int64_t STRIDE = int64_t(HEADS) * V_HEAD_DIM;
    if (row < num_rows) store(to + row * STRIDE, sum.low);
    if (row + 4 < num_rows) store(to + (row + 4) * STRIDE, sum.high);
}
