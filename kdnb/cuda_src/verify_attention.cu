// Tree-verify attention: absorbed MLA over the committed prefix and the visible rows of the append window.
//
// Inputs   query Real [rows, HEADS, KV_LORA_RANK + ROPE_DIM]; cache Real [capacity, KV_LORA_RANK + ROPE_DIM],
//          one layer; prefix_len int32 in device memory; visible uint64 [rows, words], bit j of a row says
//          whether it sees window row j, or null for causal
// Outputs  verify_attention: per split, partial float [rows, HEADS, splits, KV_LORA_RANK] (not divided by
//          the sum) and stats float [rows, HEADS, splits, 2] = (largest score, sum of exponentials)
//          merge_splits: context Real [rows, HEADS, KV_LORA_RANK]
// Grid     verify_attention (splits, ceil(HEADS / 8), rows); merge_splits (HEADS, rows); block 128
// Shared   (8 * WIDTH + 16 * (WIDTH + 1)) floats, dynamic: 55 KB at 512 + 64
// Limits   any number of heads, any dims; 64-bit offsets; splits * KEYS_PER_SPLIT covers the keys
// Twin     kdnb.reference.verify_attention
// Why      a row reads its visible keys gathered in order, as if nothing else had ever been in the window: the
//          prefix needs no mask at all, hidden keys cost nothing, and a node's result has the bits of plain
//          decoding. Splits have a fixed number of keys for the same reason.
#include "common.cuh"

constexpr int WIDTH = KV_LORA_RANK + ROPE_DIM;
constexpr int HEAD_GROUP = 8;
constexpr int KEY_TILE = 16;
constexpr int THREADS = HEAD_GROUP * KEY_TILE;  // one score each
constexpr int COLUMNS = (KV_LORA_RANK + THREADS - 1) / THREADS;
constexpr int KEY_STRIDE = WIDTH + (WIDTH % 2 ? 0 : 1);  // odd: keys side by side fall into different banks

__device__ __forceinline__ int num_visible(const uint64_t* words, int num_words) {
    int count = 0;
    for (int w = 0; w < num_words; w++) count += __popcll(words[w]);
    return count;
}

// Which window row is the n-th visible one.
__device__ __forceinline__ int nth_visible(const uint64_t* words, int n) {
    int w = 0;
    for (int count; n >= (count = __popcll(words[w])); w++) n -= count;
    uint64_t bits = words[w];
    for (; n; n--) bits &= bits - 1;
    return 64 * w + __ffsll(bits) - 1;
}

extern "C" __global__ void __launch_bounds__(THREADS)
    verify_attention(const Real* query, const Real* cache, const int* prefix_len, const uint64_t* visible,
                     int num_words, float softmax_scale, float* partial, float* stats, int first_row) {
    DYNAMIC_SHARED(float, queries);
    float* keys = queries + HEAD_GROUP * WIDTH;
    __shared__ float scores[HEAD_GROUP][KEY_TILE];
    __shared__ int key_rows[KEY_TILE];
    const int t = threadIdx.x, split = blockIdx.x, first_head = blockIdx.y * HEAD_GROUP;
    const int row = first_row + blockIdx.z;
    const int prefix = *prefix_len;
    const uint64_t* seen = visible ? visible + int64_t(row) * num_words : nullptr;
    const int num_keys = prefix + (visible ? num_visible(seen, num_words) : row + 1);
    const int first_key = split * KEYS_PER_SPLIT, end = min(first_key + KEYS_PER_SPLIT, num_keys);
    const int num_heads = min(HEAD_GROUP, HEADS - first_head);

    const Real* of_row = query + (int64_t(row) * HEADS + first_head) * WIDTH;
    for (int i = t; i < HEAD_GROUP * WIDTH; i += THREADS)
        queries[i] = i < num_heads * WIDTH ? to_float(of_row[i]) * softmax_scale : 0.0f;

    float sum[HEAD_GROUP], top[HEAD_GROUP], context[HEAD_GROUP][COLUMNS];
#pragma unroll
    for (int h = 0; h < HEAD_GROUP; h++) {
        sum[h] = 0.0f, top[h] = MINUS_INFINITY;
        for (int c = 0; c < COLUMNS; c++) context[h][c] = 0.0f;
    }
    for (int start = first_key; start < end; start += KEY_TILE) {
        const int count = min(KEY_TILE, end - start);
        __syncthreads();
        if (t < count) {
            const int key = start + t;
            key_rows[t] = key < prefix || !visible ? key : prefix + nth_visible(seen, key - prefix);
        }
        __syncthreads();
        for (int i = t; i < KEY_TILE * WIDTH; i += THREADS) {
            const int key = i / WIDTH, d = i % WIDTH;
            keys[key * KEY_STRIDE + d] = key < count ? to_float(cache[int64_t(key_rows[key]) * WIDTH + d]) : 0.0f;
        }
        __syncthreads();
        {
            const float *q = queries + (t / KEY_TILE) * WIDTH, *k = keys + (t % KEY_TILE) * KEY_STRIDE;
            float score = 0.0f;
#pragma unroll 8
            for (int d = 0; d < WIDTH; d++) score += q[d] * k[d];
            scores[t / KEY_TILE][t % KEY_TILE] = t % KEY_TILE < count ? score : MINUS_INFINITY;
        }
        __syncthreads();
#pragma unroll
        for (int h = 0; h < HEAD_GROUP; h++) {
            float best = top[h];
            for (int k = 0; k < KEY_TILE; k++) best = fmaxf(best, scores[h][k]);
            const float shrink = expf(top[h] - best);  // the first time exp(-inf) = 0
            top[h] = best;
            sum[h] *= shrink;
            for (int c = 0; c < COLUMNS; c++) context[h][c] *= shrink;
            for (int k = 0; k < KEY_TILE; k++) {
                const float weight = expf(scores[h][k] - best);  // 0 behind the last key
                sum[h] += weight;
                for (int c = 0; c < COLUMNS; c++) {
                    const int column = t + c * THREADS;
                    if (column < KV_LORA_RANK) context[h][c] += weight * keys[k * KEY_STRIDE + column];
                }
            }
        }
    }
    const int num_splits = gridDim.x;
    for (int h = 0; h < num_heads; h++) {
        const int64_t at = (int64_t(blockIdx.z) * HEADS + first_head + h) * num_splits + split;
        if (t == 0) {
            stats[2 * at] = top[h];
            stats[2 * at + 1] = sum[h];
        }
        if (sum[h] == 0.0f) continue;  // an empty split: merge_splits does not read its context
#pragma unroll
        for (int c = 0; c < COLUMNS; c++) {
            const int column = t + c * THREADS;
            if (column < KV_LORA_RANK) partial[at * KV_LORA_RANK + column] = context[h][c];
        }
    }
}

extern "C" __global__ void merge_splits(const float* partial, const float* stats, Real* context, int num_splits,
                                        int first_row) {
    const int64_t from = int64_t(blockIdx.y) * HEADS + blockIdx.x;
    const float *of_splits = stats + 2 * from * num_splits, *values = partial + from * num_splits * KV_LORA_RANK;
    Real* to = context + ((int64_t(first_row) + blockIdx.y) * HEADS + blockIdx.x) * KV_LORA_RANK;
    float top = MINUS_INFINITY;
    for (int s = 0; s < num_splits; s++) top = fmaxf(top, of_splits[2 * s]);
    float sum = 0.0f;
    for (int s = 0; s < num_splits; s++)
        if (of_splits[2 * s + 1] > 0.0f) sum += of_splits[2 * s + 1] * expf(of_splits[2 * s] - top);
    for (int column = threadIdx.x; column < KV_LORA_RANK; column += blockDim.x) {
        float value = 0.0f;
        for (int s = 0; s < num_splits; s++)
            if (of_splits[2 * s + 1] > 0.0f)
                value += values[int64_t(s) * KV_LORA_RANK + column] * expf(of_splits[2 * s] - top);
        store(to + column, value / sum);
    }
}
