// Choosing the experts of every token from the router's logits.
//
// Inputs   logits float [rows, NUM_EXPERTS]; bias float [NUM_EXPERTS] or null
// Outputs  topk_index int32 [rows, TOP_K]; topk_weight float [rows, TOP_K]
// Grid     (rows); block 128
// Shared   3 * NUM_EXPERTS floats, static
// Limits   NUM_EXPERTS to 4,096
// Twin     kdnb.reference.router
// Why      an expert's place is the number of experts before it: no sort, no shuffle, ties to the lower id by
//          the comparison itself
#include "common.cuh"

constexpr int GROUP_SIZE = NUM_EXPERTS / N_GROUP;

// How many of `count` values come before value `i`: larger, or equal with a lower index.
__device__ __forceinline__ int place_of(const float* values, int count, int i) {
    const float mine = values[i];
    int place = 0;
    for (int j = 0; j < count; j++) place += values[j] > mine || (values[j] == mine && j < i);
    return place;
}

extern "C" __global__ void router(const float* logits, const float* bias, int* topk_index, float* topk_weight) {
    __shared__ float score[NUM_EXPERTS], choice[NUM_EXPERTS], group_score[N_GROUP], chosen[TOP_K];
    __shared__ bool group_kept[N_GROUP];
    const float* of_row = logits + int64_t(blockIdx.x) * NUM_EXPERTS;
    if (SIGMOID) {
        for (int e = threadIdx.x; e < NUM_EXPERTS; e += blockDim.x) score[e] = 1.0f / (1.0f + expf(-of_row[e]));
    } else {
        float top = MINUS_INFINITY, sum = 0.0f;
        for (int e = 0; e < NUM_EXPERTS; e++) top = fmaxf(top, of_row[e]);
        for (int e = threadIdx.x; e < NUM_EXPERTS; e += blockDim.x) sum += score[e] = expf(of_row[e] - top);
        sum = block_sum(sum);
        for (int e = threadIdx.x; e < NUM_EXPERTS; e += blockDim.x) score[e] /= sum;
    }
    for (int e = threadIdx.x; e < NUM_EXPERTS; e += blockDim.x) choice[e] = score[e] + (bias ? bias[e] : 0.0f);
    __syncthreads();
    if (GROUPED) {
        for (int g = threadIdx.x; g < N_GROUP; g += blockDim.x) {
            float best = MINUS_INFINITY, second = MINUS_INFINITY;
            for (int e = g * GROUP_SIZE; e < (g + 1) * GROUP_SIZE; e++) {
                second = fmaxf(second, fminf(best, choice[e]));
                best = fmaxf(best, choice[e]);
            }
            group_score[g] = NOAUX_TC && GROUP_SIZE > 1 ? best + second : best;
        }
        __syncthreads();
        for (int g = threadIdx.x; g < N_GROUP; g += blockDim.x)
            group_kept[g] = place_of(group_score, N_GROUP, g) < TOPK_GROUP;
        __syncthreads();
        for (int e = threadIdx.x; e < NUM_EXPERTS; e += blockDim.x)
            if (!group_kept[e / GROUP_SIZE]) choice[e] = NOAUX_TC ? MINUS_INFINITY : 0.0f;
        __syncthreads();
    }
    for (int e = threadIdx.x; e < NUM_EXPERTS; e += blockDim.x) {
        const int place = place_of(choice, NUM_EXPERTS, e);
        if (place >= TOP_K) continue;
        topk_index[int64_t(blockIdx.x) * TOP_K + place] = e;
        chosen[place] = score[e];
    }
    __syncthreads();
    float sum = 0.0f;
    for (int k = 0; k < TOP_K; k++) sum += chosen[k];
    for (int k = threadIdx.x; k < TOP_K; k += blockDim.x)
        topk_weight[int64_t(blockIdx.x) * TOP_K + k] =
            (NORM_TOPK_PROB ? chosen[k] / (sum + 1e-20f) : chosen[k]) * ROUTED_SCALING_FACTOR;
}
