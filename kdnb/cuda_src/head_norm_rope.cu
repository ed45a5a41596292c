// Queries and keys of the draft block: every head normed, then rotated whole in half-split pairs.
//
// Inputs   x Real [rows, heads, head_dim]; weight float [head_dim]; cosines, sines float [rows, head_dim / 2]
// Output   out Real [rows, heads, head_dim]
// Grid     (heads, rows); block a multiple of 32
// Shared   head_dim floats, dynamic
// Twin     kdnb.reference.head_norm_rope
#include "common.cuh"

extern "C" __global__ void head_norm_rope(const Real* x, const float* weight, float eps, const float* cosines,
                                          const float* sines, Real* out, int head_dim) {
    DYNAMIC_SHARED(float, head);
    const int64_t at = (int64_t(blockIdx.y) * gridDim.x + blockIdx.x) * head_dim;
    const int half = head_dim / 2;
    float sum = 0.0f;
    for (int i = threadIdx.x; i < head_dim; i += blockDim.x) {
        head[i] = to_float(x[at + i]);
        sum += head[i] * head[i];
    }
    const float scale = 1.0f / sqrtf(block_sum(sum) / head_dim + eps);
    for (int i = threadIdx.x; i < half; i += blockDim.x) {
        const float c = cosines[int64_t(blockIdx.y) * half + i], s = sines[int64_t(blockIdx.y) * half + i];
        const float first = head[i] * scale * weight[i], second = head[i + half] * scale * weight[i + half];
        store(out + at + i, first * c - second * s);
        store(out + at + i + half, second * c + first * s);
    }
}
