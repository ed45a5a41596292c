// Rows of the embedding table.
//
// Inputs   table Real [vocab_size, hidden_size]; token_ids int32 [rows]
// Output   out Real [rows, hidden_size]
// Grid     (rows); block 128
// Limits   ids were checked against the vocabulary by the caller
// Twin     kdnb.backends.numpy_backend
#include "common.cuh"

extern "C" __global__ void embed(const Real* table, const int* token_ids, Real* out, int hidden_size) {
    const Real* from = table + int64_t(token_ids[blockIdx.x]) * hidden_size;
    Real* to = out + int64_t(blockIdx.x) * hidden_size;
    for (int i = threadIdx.x; i < hidden_size; i += blockDim.x) to[i] = from[i];
}
