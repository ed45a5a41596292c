// Drawing the token after every node: the argmax of logits / temperature plus Gumbel noise.
//
// Inputs   logits float [rows, vocab_size]; depths int32 [rows]; prefix_len int32 in device memory; seed
// Outputs  ids int32 [rows], equal keys to the lower id; gaps float [rows], by how much the key won; tops float
//          [rows], the largest logit, NaN if the row holds one
// Grid     (rows); block a multiple of 32, 512 at most
// Limits   temperature above 0; no top-k, no top-p
// Twin     kdnb.verify_rules.sample_and_walk (the draw), kdnb.noise (the numbers)
// Why      noise belongs to (seed, position, token id), so that plain decoding and every tree draw the same token
//          at the same place. The generator is numpy's Philox-4x64-10: a token takes the double of its own index
#include "common.cuh"

struct Words {
    uint64_t at[4];
};

// Four 64-bit words of counter (block + 1, 0, 0, position) under key (seed, 0).
__device__ Words philox(uint64_t block, uint64_t position, uint64_t seed) {
    constexpr uint64_t M0 = 0xD2E7470EE14C6C93ull, M1 = 0xCA5A826395121157ull;
    constexpr uint64_t W0 = 0x9E3779B97F4A7C15ull, W1 = 0xBB67AE8584CAA73Bull;
    uint64_t c0 = block + 1, c1 = 0, c2 = 0, c3 = position, k0 = seed, k1 = 0;
#pragma unroll
    for (int round = 0; round < 10; round++, k0 += W0, k1 += W1) {
        const uint64_t high0 = __umul64hi(M0, c0), low0 = M0 * c0;
        const uint64_t high1 = __umul64hi(M1, c2), low1 = M1 * c2;
        c0 = high1 ^ c1 ^ k0, c1 = low1, c2 = high0 ^ c3 ^ k1, c3 = low0;
    }
    return {{c0, c1, c2, c3}};
}

__device__ __forceinline__ float gumbel(uint64_t word) {
    const double uniform = max(double(word >> 11) * 0x1p-53, 0x1p-54);
    return float(-log(-log(uniform)));
}

extern "C" __global__ void __launch_bounds__(512)
    sample_token(const float* logits, const int* depths, const int* prefix_len, int64_t seed, float temperature,
                 int* ids, float* gaps, float* tops, int vocab_size) {
    __shared__ int winner;
    const float* row = logits + int64_t(blockIdx.x) * vocab_size;
    const uint64_t position = uint64_t(*prefix_len) + depths[blockIdx.x] + 1;
    const double lowest = double(MINUS_INFINITY);
    double best = lowest, second = lowest;
    float top = MINUS_INFINITY;
    int best_id = 0x7fffffff, broken = 0;
    if (threadIdx.x == 0) winner = 0x7fffffff;
    for (int block = threadIdx.x; 4 * block < vocab_size; block += blockDim.x) {
        const Words words = philox(block, position, uint64_t(seed));
        for (int i = 0; i < 4 && 4 * block + i < vocab_size; i++) {
            const float logit = row[4 * block + i];
            const double key = double(logit) / double(temperature) + double(gumbel(words.at[i]));
            broken |= logit != logit;
            top = fmaxf(top, logit);
            if (key > best || best_id == 0x7fffffff) {
                second = best;
                best = key;
                best_id = 4 * block + i;
            } else if (key > second) {
                second = key;
            }
        }
    }
    const double of_all = block_max(best);
    if (best == of_all) atomicMin(&winner, best_id);
    __syncthreads();
    const double runner_up = block_max(best_id == winner ? second : best);
    top = block_max(top);
    broken = __syncthreads_or(broken);
    if (threadIdx.x) return;
    ids[blockIdx.x] = winner;
    gaps[blockIdx.x] = float(of_all - runner_up);
    tops[blockIdx.x] = broken ? __uint_as_float(0x7fc00000u) : top;
}
