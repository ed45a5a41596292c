// Attention of the draft block over its context and itself: grouped queries, not causal.
//
// Inputs   query Real [rows, HEADS, HEAD_DIM]; keys, values Real [capacity, KV_HEADS, HEAD_DIM]; context_len
//          int32 in device memory, `extra` keys behind it; visible uint8 [rows, keys] or null
// Output   context Real [rows, HEADS * HEAD_DIM]
// Grid     (HEADS, rows); block 128
// Shared   (HEAD_DIM + 128) floats, static
// Limits   any head_dim; a row sees one key at least
// Twin     kdnb.reference.draft_attention
// Why      a block of eight rows and few heads: one block per row and head is enough work in flight
#include "common.cuh"

constexpr int KEYS_AT_ONCE = 128;
constexpr int COLUMNS = (HEAD_DIM + KEYS_AT_ONCE - 1) / KEYS_AT_ONCE;

extern "C" __global__ void __launch_bounds__(KEYS_AT_ONCE)
    draft_attention(const Real* query, const Real* keys, const Real* values, const int* context_len, int extra,
                    float softmax_scale, const uint8_t* visible, Real* context) {
    __shared__ float q[HEAD_DIM], weights[KEYS_AT_ONCE];
    const int t = threadIdx.x, head = blockIdx.x, row = blockIdx.y;
    const int num_keys = *context_len + extra;
    const int kv_head = head / (HEADS / KV_HEADS);
    const int64_t at = (int64_t(row) * HEADS + head) * HEAD_DIM;
    for (int i = t; i < HEAD_DIM; i += KEYS_AT_ONCE) q[i] = to_float(query[at + i]) * softmax_scale;
    float top = MINUS_INFINITY, sum = 0.0f, value[COLUMNS];
    for (int c = 0; c < COLUMNS; c++) value[c] = 0.0f;
    for (int start = 0; start < num_keys; start += KEYS_AT_ONCE) {
        const int key = start + t;
        __syncthreads();
        float score = MINUS_INFINITY;
        if (key < num_keys && (!visible || visible[int64_t(row) * num_keys + key])) {
            const Real* k = keys + (int64_t(key) * KV_HEADS + kv_head) * HEAD_DIM;
            score = 0.0f;
#pragma unroll 8
            for (int d = 0; d < HEAD_DIM; d++) score += q[d] * to_float(k[d]);
        }
        weights[t] = score;
        __syncthreads();
        const int count = min(KEYS_AT_ONCE, num_keys - start);
        float best = top;
        for (int k = 0; k < count; k++) best = fmaxf(best, weights[k]);
        __syncthreads();
        if (best == MINUS_INFINITY) continue;  // nothing seen so far
        weights[t] = expf(score - best);
        __syncthreads();
        const float shrink = expf(top - best);
        top = best;
        sum *= shrink;
        for (int c = 0; c < COLUMNS; c++) value[c] *= shrink;
        for (int k = 0; k < count; k++) {
            sum += weights[k];
            const Real* v = values + (int64_t(start + k) * KV_HEADS + kv_head) * HEAD_DIM;
            for (int c = 0; c < COLUMNS; c++)
                if (t + c * KEYS_AT_ONCE < HEAD_DIM) value[c] += weights[k] * to_float(v[t + c * KEYS_AT_ONCE]);
        }
    }
    for (int c = 0; c < COLUMNS; c++)
        if (t + c * KEYS_AT_ONCE < HEAD_DIM) store(context + at + t + c * KEYS_AT_ONCE, value[c] / sum);
}
