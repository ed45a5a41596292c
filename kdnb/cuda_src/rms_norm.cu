// Root-mean-square norm, alone or after adding to the residual stream.
//
// Inputs   x, delta Real [rows, size]; weight float [size]
// Outputs  y Real [rows, size]; total Real [rows, size] = x + delta
// Grid     (rows); block a multiple of 32, 1,024 at most
// Shared   `size` floats, dynamic: each value is read from memory once
// Twin     kdnb.reference.rms_norm
// Why      the sum that is normed is the rounded one, as it is what the next layer adds to
#include "common.cuh"

__device__ __forceinline__ void norm_row(const float* row, const float* weight, Real* y, int size, float eps,
                                         float sum_of_squares) {
    const float scale = 1.0f / sqrtf(sum_of_squares / size + eps);
    for (int i = threadIdx.x; i < size; i += blockDim.x) store(y + i, row[i] * scale * weight[i]);
}

extern "C" __global__ void __launch_bounds__(1024)
    rms_norm(const Real* x, const float* weight, Real* y, int size, float eps) {
    DYNAMIC_SHARED(float, row);
    const int64_t at = int64_t(blockIdx.x) * size;
    float sum = 0.0f;
    for (int i = threadIdx.x; i < size; i += blockDim.x) {
        row[i] = to_float(x[at + i]);
        sum += row[i] * row[i];
    }
    norm_row(row, weight, y + at, size, eps, block_sum(sum));
}

extern "C" __global__ void __launch_bounds__(1024)
    add_rms_norm(const Real* x, const Real* delta, const float* weight, Real* total, Real* y, int size, float eps) {
    DYNAMIC_SHARED(float, row);
    const int64_t at = int64_t(blockIdx.x) * size;
    float sum = 0.0f;
    for (int i = threadIdx.x; i < size; i += blockDim.x) {
        row[i] = rounded(to_float(x[at + i]) + to_float(delta[at + i]));
        store(total + at + i, row[i]);
        sum += row[i] * row[i];
    }
    norm_row(row, weight, y + at, size, eps, block_sum(sum));
}

// x + y, `size` values in all; grid (ceil(size / 256)), block 256.
extern "C" __global__ void add(const Real* x, const Real* y, Real* out, int64_t size) {
    const int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x;
    if (i < size) store(out + i, to_float(x[i]) + to_float(y[i]));
}
