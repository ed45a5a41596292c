// Cosines and sines of the rows' angles.
//
// Inputs   positions int32 [rows]; inv_freq float [half], radians per position
// Outputs  cosines, sines float [rows, half], times `scaling`
// Grid     (rows); block 32
// Limits   an angle is a float32 product, as in the models' own code; cosf is exact to 2 ulp at any size
// Twin     kdnb.reference.rope
#include "common.cuh"

extern "C" __global__ void rope_rows(const int* positions, const float* inv_freq, float scaling, float* cosines,
                                     float* sines, int half) {
    for (int i = threadIdx.x; i < half; i += blockDim.x) {
        const float angle = __fmul_rn(float(positions[blockIdx.x]), inv_freq[i]);
        cosines[int64_t(blockIdx.x) * half + i] = cosf(angle) * scaling;
        sines[int64_t(blockIdx.x) * half + i] = sinf(angle) * scaling;
    }
}
