// The absorbed query: every head's query times its key up-projection, and the rotated rope part.
//
// Inputs   q Real [rows, HEADS, NOPE_DIM + ROPE_DIM]; kv_b Real [HEADS, NOPE_DIM + V_HEAD_DIM, KV_LORA_RANK];
//          cosines, sines float [rows, ROPE_DIM / 2]
// Output   query Real [rows, HEADS, KV_LORA_RANK + ROPE_DIM]
// Grid     (ceil(KV_LORA_RANK / 64), HEADS, ceil(rows / 8)); block 128
// Shared   8 * NOPE_DIM floats, static
// Twin     kdnb.reference.mla_query
// Why      a thread owns one latent column of four rows; the weight is read along its rows, coalesced, and every
//          value serves eight query rows
#include "common.cuh"
#include "rope.cuh"

constexpr int QUERY_ROWS = 8;
constexpr int QUERY_COLUMNS = 64;

extern "C" __global__ void __launch_bounds__(128)
    mla_query(const Real* q, const Real* kv_b, const float* cosines, const float* sines, Real* query, int rows) {
    constexpr int Q_DIM = NOPE_DIM + ROPE_DIM, WIDTH = KV_LORA_RANK + ROPE_DIM, HALF = ROPE_DIM / 2;
    __shared__ float nope[QUERY_ROWS][NOPE_DIM];
    const int head = blockIdx.y, first_row = blockIdx.z * QUERY_ROWS;
    const int num_rows = min(QUERY_ROWS, rows - first_row);
#pragma unroll 8
    for (int i = threadIdx.x; i < QUERY_ROWS * NOPE_DIM; i += 128) {
        const int row = i / NOPE_DIM, k = i % NOPE_DIM;
        const int64_t at = (int64_t(first_row + min(row, num_rows - 1)) * HEADS + head) * Q_DIM + k;
        nope[row][k] = to_float(q[at]);  // behind the last row: never stored
    }
    __syncthreads();
    const int column = blockIdx.x * QUERY_COLUMNS + threadIdx.x % QUERY_COLUMNS;
    const int group = threadIdx.x / QUERY_COLUMNS;  // rows group * 4 to group * 4 + 3
    if (column < KV_LORA_RANK) {
        const Real* w = kv_b + int64_t(head) * (NOPE_DIM + V_HEAD_DIM) * KV_LORA_RANK + column;
        float sum[4] = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll 32
        for (int k = 0; k < NOPE_DIM; k++) {
            const float v = to_float(w[int64_t(k) * KV_LORA_RANK]);
            for (int r = 0; r < 4; r++) sum[r] += nope[group * 4 + r][k] * v;
        }
        for (int r = 0; r < 4; r++) {
            const int row = group * 4 + r;
            if (row < num_rows)
                store(query + (int64_t(first_row + row) * HEADS + head) * WIDTH + column, sum[r]);
        }
    }
    if (blockIdx.x) return;
    for (int i = threadIdx.x; i < num_rows * HALF; i += blockDim.x) {
        const int row = first_row + i / HALF;
        const int64_t at = int64_t(row) * HEADS + head;
        rotate_pair(q + at * Q_DIM + NOPE_DIM, query + at * WIDTH + KV_LORA_RANK, i % HALF, HALF,
                    ROPE_INTERLEAVED, cosines + int64_t(row) * HALF, sines + int64_t(row) * HALF);
    }
}
