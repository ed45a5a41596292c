// One cache row per token: the normed latent, then the rotated rope key.
//
// Inputs   kv_a Real [rows, KV_LORA_RANK + ROPE_DIM]; weight float [KV_LORA_RANK]; cosines, sines float
//          [rows, ROPE_DIM / 2]; prefix_len int32 in device memory
// Output   cache Real [capacity, KV_LORA_RANK + ROPE_DIM], one layer; rows from prefix_len on
// Grid     (rows); block 128
// Twin     kdnb.reference.append_latent
#include "common.cuh"
#include "rope.cuh"

extern "C" __global__ void append_latent(Real* cache, const int* prefix_len, const Real* kv_a,
                                         const float* weight, float eps, const float* cosines,
                                         const float* sines) {
    constexpr int WIDTH = KV_LORA_RANK + ROPE_DIM, HALF = ROPE_DIM / 2;
    const int row = blockIdx.x;
    const Real* from = kv_a + int64_t(row) * WIDTH;
    Real* to = cache + (int64_t(*prefix_len) + row) * WIDTH;
    float sum = 0.0f;
    for (int i = threadIdx.x; i < KV_LORA_RANK; i += blockDim.x) {
        const float v = to_float(from[i]);
        sum += v * v;
    }
    const float scale = 1.0f / sqrtf(block_sum(sum) / KV_LORA_RANK + eps);
    for (int i = threadIdx.x; i < KV_LORA_RANK; i += blockDim.x)
        store(to + i, to_float(from[i]) * scale * weight[i]);
    for (int pair = threadIdx.x; pair < HALF; pair += blockDim.x)
        rotate_pair(from + KV_LORA_RANK, to + KV_LORA_RANK, pair, HALF, ROPE_INTERLEAVED,
                    cosines + int64_t(row) * HALF, sines + int64_t(row) * HALF);
}
