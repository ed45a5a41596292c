// Tree-verify attention: absorbed MLA over the committed prefix and the visible rows of the append window.
//
// Inputs   query Real [rows, HEADS, KV_LORA_RANK + ROPE_DIM]; cache Real [capacity, KV_LORA_RANK + ROPE_DIM],
//          one layer; prefix_len int32 in device memory; visible uint64 [rows, words], bit j of a row says
//          whether it sees window row j, or null for causal
// Outputs  verify_attention: per split, partial float [rows, HEADS, splits, KV_LORA_RANK] (not divided by
//          the sum) and stats float [rows, HEADS, splits, 2] = (largest score, sum of exponentials)
//          merge_splits: context Real [rows, HEADS, KV_LORA_RANK]
// Grid     verify_attention (splits, ceil(HEADS / 8), rows); merge_splits (HEADS, rows); block 128
// Shared   24 * KEY_STRIDE floats, dynamic (56 KB at 512 + 64), and 10 KB, static
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
constexpr int QUADS = (WIDTH + 3) / 4;
constexpr int KEY_STRIDE = 4 * (QUADS | 1);  // an odd number of float4: rows side by side fall into other banks
constexpr int QUERY_STRIDE = KEY_STRIDE;
constexpr int SLICES = 16;  // of the columns, in scores
constexpr int COLUMN_GROUPS = (KV_LORA_RANK + 4 * THREADS - 1) / (4 * THREADS);  // of four columns per thread
constexpr int VECTOR = 16 / sizeof(Real);  // values of one load
constexpr bool HAS_VECTORS = WIDTH % VECTOR == 0;

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

// 16 bytes of a cache row as floats in shared memory.
__device__ __forceinline__ void unpack(uint4 v, float* to) {
    const uint32_t words[4] = {v.x, v.y, v.z, v.w};
    if constexpr (sizeof(Real) == 4) {
        *reinterpret_cast<uint4*>(to) = v;
    } else {
        float4* out = reinterpret_cast<float4*>(to);
        for (int j = 0; j < 2; j++)
            out[j] = {__uint_as_float(words[2 * j] << 16), __uint_as_float(words[2 * j] & 0xffff0000u),
                      __uint_as_float(words[2 * j + 1] << 16), __uint_as_float(words[2 * j + 1] & 0xffff0000u)};
    }
}

// Cache rows of a tile into shared memory. Behind the last row its neighbour is read again, as its score is
// minus infinity anyway: so no load depends on a condition, and all are on their way at once.
__device__ __forceinline__ void load_keys(const Real* cache, const int* rows, int count, float* keys) {
    if constexpr (HAS_VECTORS) {
        constexpr int PIECES = WIDTH / VECTOR, TOTAL = KEY_TILE * PIECES, LOADS = 9;
        for (int first = threadIdx.x; first < TOTAL; first += LOADS * THREADS) {
            uint4 values[LOADS];
#pragma unroll
            for (int i = 0; i < LOADS; i++) {
                const int piece = min(first + i * THREADS, TOTAL - 1);
                const int key = min(piece / PIECES, count - 1);
                const Real* from = cache + int64_t(rows[key]) * WIDTH + piece % PIECES * VECTOR;
                values[i] = *reinterpret_cast<const uint4*>(from);
            }
#pragma unroll
            for (int i = 0; i < LOADS; i++) {
                const int piece = first + i * THREADS;
                if (piece < TOTAL) unpack(values[i], keys + piece / PIECES * KEY_STRIDE + piece % PIECES * VECTOR);
            }
        }
    } else {
        for (int i = threadIdx.x; i < KEY_TILE * WIDTH; i += THREADS) {
            const int key = i / WIDTH, d = i % WIDTH;
            keys[key * KEY_STRIDE + d] = to_float(cache[int64_t(rows[min(key, count - 1)]) * WIDTH + d]);
        }
    }
    for (int i = threadIdx.x; i < KEY_TILE * (KEY_STRIDE - WIDTH); i += THREADS)
        keys[i / (KEY_STRIDE - WIDTH) * KEY_STRIDE + WIDTH + i % (KEY_STRIDE - WIDTH)] = 0.0f;
}

// Scores of the tile, each over one sixteenth of the columns: a thread takes four heads and four keys, so that
// a value from shared memory serves four products.
__device__ __forceinline__ void add_up_slices(const float* queries, const float* keys,
                                              float (*partial_scores)[THREADS]) {
    const int slice = threadIdx.x / 8, first_head = threadIdx.x % 8 / 4, first_key = threadIdx.x % 4;
    float score[4][4] = {};
    for (int quad = slice; quad < QUADS; quad += SLICES) {
        float4 q[4], k[4];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            q[i] = *reinterpret_cast<const float4*>(queries + (first_head + 2 * i) * QUERY_STRIDE + 4 * quad);
            k[i] = *reinterpret_cast<const float4*>(keys + (first_key + 4 * i) * KEY_STRIDE + 4 * quad);
        }
#pragma unroll
        for (int h = 0; h < 4; h++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                score[h][i] += q[h].x * k[i].x + q[h].y * k[i].y + q[h].z * k[i].z + q[h].w * k[i].w;
    }
#pragma unroll
    for (int h = 0; h < 4; h++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            partial_scores[slice][(first_head + 2 * h) * KEY_TILE + first_key + 4 * i] = score[h][i];
}

extern "C" __global__ void __launch_bounds__(THREADS)
    verify_attention(const Real* query, const Real* cache, const int* prefix_len, const uint64_t* visible,
                     int num_words, float softmax_scale, float* partial, float* stats, int first_row) {
    DYNAMIC_SHARED(float, queries);
    float* keys = queries + HEAD_GROUP * QUERY_STRIDE;
    __shared__ float partial_scores[SLICES][THREADS], scores[HEAD_GROUP][KEY_TILE], shrink[HEAD_GROUP];
    __shared__ float4 weights[KEY_TILE][HEAD_GROUP / 4];
    __shared__ int key_rows[KEY_TILE];
    const int t = threadIdx.x, split = blockIdx.x, first_head = blockIdx.y * HEAD_GROUP;
    const int my_head = t / KEY_TILE, my_key = t % KEY_TILE;
    const int row = first_row + blockIdx.z, prefix = *prefix_len;
    const uint64_t* seen = visible ? visible + int64_t(row) * num_words : nullptr;
    const int num_keys = prefix + (visible ? num_visible(seen, num_words) : row + 1);
    const int first_key = split * KEYS_PER_SPLIT, end = min(first_key + KEYS_PER_SPLIT, num_keys);
    const int num_heads = min(HEAD_GROUP, HEADS - first_head);
    const int64_t place = (int64_t(blockIdx.z) * HEADS + first_head) * gridDim.x + split;  // of the first head
    if (first_key >= end) {  // an empty split: merge_splits does not read its context
        if (t < num_heads) stats[2 * (place + int64_t(t) * gridDim.x) + 1] = 0.0f;
        if (t < num_heads) stats[2 * (place + int64_t(t) * gridDim.x)] = MINUS_INFINITY;
        return;
    }
    const Real* of_row = query + (int64_t(row) * HEADS + first_head) * WIDTH;
    for (int i = t; i < HEAD_GROUP * QUERY_STRIDE; i += THREADS) {
        const int head = i / QUERY_STRIDE, d = i % QUERY_STRIDE;
        queries[i] = head < num_heads && d < WIDTH ? to_float(of_row[head * WIDTH + d]) * softmax_scale : 0.0f;
    }
    float top = MINUS_INFINITY, sum = 0.0f;  // of my head
    float context[HEAD_GROUP][4 * COLUMN_GROUPS];
#pragma unroll
    for (int h = 0; h < HEAD_GROUP; h++)
        for (int c = 0; c < 4 * COLUMN_GROUPS; c++) context[h][c] = 0.0f;
    for (int start = first_key; start < end; start += KEY_TILE) {
        const int count = min(KEY_TILE, end - start);
        __syncthreads();
        if (t < count) {
            const int key = start + t;
            key_rows[t] = key < prefix || !visible ? key : prefix + nth_visible(seen, key - prefix);
        }
        __syncthreads();
        load_keys(cache, key_rows, count, keys);
        __syncthreads();
        add_up_slices(queries, keys, partial_scores);
        __syncthreads();
        float score = 0.0f;
        for (int slice = 0; slice < SLICES; slice++) score += partial_scores[slice][t];
        if (my_key >= count) score = MINUS_INFINITY;
        scores[my_head][my_key] = score;
        __syncthreads();
        float best = top;
        for (int i = 0; i < KEY_TILE; i++) best = fmaxf(best, scores[my_head][i]);
        reinterpret_cast<float*>(weights[my_key])[my_head] = expf(score - best);
        const float smaller = expf(top - best);  // the first time exp(-inf) = 0
        if (my_key == 0) shrink[my_head] = smaller;
        top = best;
        __syncthreads();
        sum *= smaller;
        for (int i = 0; i < KEY_TILE; i++) sum += reinterpret_cast<const float*>(weights[i])[my_head];
#pragma unroll
        for (int h = 0; h < HEAD_GROUP; h++)
            for (int c = 0; c < 4 * COLUMN_GROUPS; c++) context[h][c] *= shrink[h];
#pragma unroll 2
        for (int i = 0; i < KEY_TILE; i++) {
            const float4 w[2] = {weights[i][0], weights[i][1]};
            const float of_heads[HEAD_GROUP] = {w[0].x, w[0].y, w[0].z, w[0].w, w[1].x, w[1].y, w[1].z, w[1].w};
#pragma unroll
            for (int g = 0; g < COLUMN_GROUPS; g++) {
                const int column = 4 * (t + g * THREADS);
                if (column >= KV_LORA_RANK) break;
                const float4 v = *reinterpret_cast<const float4*>(keys + i * KEY_STRIDE + column);
#pragma unroll
                for (int h = 0; h < HEAD_GROUP; h++) {
                    context[h][4 * g] += of_heads[h] * v.x;
                    context[h][4 * g + 1] += of_heads[h] * v.y;
                    context[h][4 * g + 2] += of_heads[h] * v.z;
                    context[h][4 * g + 3] += of_heads[h] * v.w;
                }
            }
        }
    }
    if (my_key == 0 && my_head < num_heads) {
        stats[2 * (place + int64_t(my_head) * gridDim.x)] = top;
        stats[2 * (place + int64_t(my_head) * gridDim.x) + 1] = sum;
    }
#pragma unroll
    for (int h = 0; h < HEAD_GROUP; h++) {
        if (h >= num_heads) break;
        float* to = partial + (place + int64_t(h) * gridDim.x) * KV_LORA_RANK;
#pragma unroll
        for (int c = 0; c < 4 * COLUMN_GROUPS; c++) {
            const int column = 4 * (t + c / 4 * THREADS) + c % 4;
            if (column < KV_LORA_RANK) to[column] = context[h][c];
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
