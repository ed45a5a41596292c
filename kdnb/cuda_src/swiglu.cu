// silu(gate) * up.
//
// Inputs   gate, up Real [size]
// Output   y Real [size]
// Grid     (ceil(size / 256)); block 256
// Twin     kdnb.reference.swiglu
#include "common.cuh"

extern "C" __global__ void swiglu(const Real* gate, const Real* up, Real* y, int64_t size) {
    const int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x;
    if (i >= size) return;
    const float g = to_float(gate[i]);
    store(y + i, g / (1.0f + expf(-g)) * to_float(up[i]));
}
