// Gathering the accepted rows to the front of the append window, in place, in every layer.
//
// Inputs   cache Real [layers, capacity, width]; prefix_len, num_kept int32 in device memory; kept_rows int32
//          [num_kept], strictly ascending
// Output   cache rows prefix_len + j become rows prefix_len + kept_rows[j]
// Grid     (ceil(width / 128), layers); block 128
// Twin     kdnb.reference.cache_compact
// Why      a thread owns one column and goes through the rows in order, so no row is overwritten before it is
//          read, without a barrier or a second buffer
#include "common.cuh"

extern "C" __global__ void cache_compact(Real* cache, const int* prefix_len, const int* kept_rows,
                                         const int* num_kept, int64_t layer_size, int width) {
    const int column = blockIdx.x * blockDim.x + threadIdx.x;
    if (column >= width) return;
    Real* window = cache + blockIdx.y * layer_size + int64_t(*prefix_len) * width + column;
    for (int j = 0; j < *num_kept; j++)
        if (kept_rows[j] != j) window[int64_t(j) * width] = window[int64_t(kept_rows[j]) * width];
}
