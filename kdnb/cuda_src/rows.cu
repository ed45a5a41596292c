// Moving rows: gathered, written at an offset, side by side.
//
// Inputs   arrays of Real with rows of `size` values; indices int32
// Grid     (rows); block 128
// Limits   indices and offsets were checked by the caller
// Twin     kdnb.backends.numpy_backend
// Why      an offset is read from device memory, so that a captured graph can be replayed at another length
#include "common.cuh"

extern "C" __global__ void take_rows(const Real* x, const int* indices, Real* out, int size) {
    const Real* from = x + int64_t(indices[blockIdx.x]) * size;
    Real* to = out + int64_t(blockIdx.x) * size;
    for (int i = threadIdx.x; i < size; i += blockDim.x) to[i] = from[i];
}

extern "C" __global__ void write_rows(Real* destination, const int* offset, const Real* x, int size) {
    const Real* from = x + int64_t(blockIdx.x) * size;
    Real* to = destination + (int64_t(*offset) + blockIdx.x) * size;
    for (int i = threadIdx.x; i < size; i += blockDim.x) to[i] = from[i];
}

// Columns [column, column + size) of out [rows, width] become x [rows, size].
extern "C" __global__ void concat(const Real* x, Real* out, int size, int column, int width) {
    const Real* from = x + int64_t(blockIdx.x) * size;
    Real* to = out + int64_t(blockIdx.x) * width + column;
    for (int i = threadIdx.x; i < size; i += blockDim.x) to[i] = from[i];
}
