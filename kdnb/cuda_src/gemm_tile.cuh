// One tile of a matrix product whose weight is stored [out, in]: 8 rows x 32 outputs.
//
// 128 threads; thread t owns output t % 32 of rows t / 32 and t / 32 + 4. Weights and rows pass through shared
// memory in steps of 128 columns, four columns per load, so that a warp reads one weight row's step at once.
// An output's sum runs over the columns in the same order whatever the number of rows: its bits depend on its
// own row only.

constexpr int TILE_ROWS = 8;
constexpr int TILE_OUTS = 32;
constexpr int TILE_STEP = 128;
constexpr int TILE_THREADS = 128;
constexpr int TILE_STRIDE = TILE_STEP + 4;  // of a row in shared memory: float4 reads without bank conflicts

struct Pair {
    float low, high;  // sums of rows t / 32 and t / 32 + 4
};

struct TileMemory {
    float x[TILE_ROWS][TILE_STRIDE];
    float w[TILE_OUTS][TILE_STRIDE];
};

__device__ __forceinline__ void load4(const float* from, int left, float* to) {
    for (int i = 0; i < 4; i++) to[i] = i < left ? from[i] : 0.0f;
}
__device__ __forceinline__ void load4(const bf16* from, int left, float* to) {
    for (int i = 0; i < 4; i++) to[i] = i < left ? to_float(from[i]) : 0.0f;
}
// aligned: whether four columns can be read at once (their number and every row are multiples of four)
template <class T>
__device__ __forceinline__ void load4_aligned(const T* from, int left, bool aligned, float* to) {
    if (!aligned || left < 4) return load4(from, left, to);
    if constexpr (sizeof(T) == 4) {
        float4 v = *reinterpret_cast<const float4*>(from);
        to[0] = v.x, to[1] = v.y, to[2] = v.z, to[3] = v.w;
    } else {
        uint2 v = *reinterpret_cast<const uint2*>(from);
        to[0] = __uint_as_float(v.x << 16), to[1] = __uint_as_float(v.x & 0xffff0000u);
        to[2] = __uint_as_float(v.y << 16), to[3] = __uint_as_float(v.y & 0xffff0000u);
    }
}

// A weight of floats: `out` rows of `columns`, `stride` apart.
template <class T>
struct PlainWeight {
    const T* values;
    int64_t stride;
    int columns;
    __device__ __forceinline__ void load(int out, int column, float* to) const {
        load4_aligned(values + out * stride + column, columns - column, columns % 4 == 0 && stride % 4 == 0, to);
    }
};

// rows(i): where row i of x begins, or null for a row of zeros.
template <class X, class Rows, class Weight>
__device__ __forceinline__ Pair gemm_tile(const Rows& rows, int num_rows, const Weight& weight, int first_out,
                                          int num_outs, int columns, TileMemory& memory) {
    const int t = threadIdx.x, quad = t % 32, group = t / 32;
    const bool aligned = columns % 4 == 0;
    Pair sum = {0.0f, 0.0f};
    for (int start = 0; start < columns; start += TILE_STEP) {
        const int column = start + 4 * quad;
        __syncthreads();
        for (int row = group; row < TILE_ROWS; row += 4) {
            float v[4] = {0.0f, 0.0f, 0.0f, 0.0f};
            if (row < num_rows && column < columns)
                load4_aligned(rows(row) + column, columns - column, aligned, v);
            for (int i = 0; i < 4; i++) memory.x[row][4 * quad + i] = v[i];
        }
#pragma unroll
        for (int out = group; out < TILE_OUTS; out += 4) {
            float v[4] = {0.0f, 0.0f, 0.0f, 0.0f};
            if (first_out + out < num_outs && column < columns) weight.load(first_out + out, column, v);
            for (int i = 0; i < 4; i++) memory.w[out][4 * quad + i] = v[i];
        }
        __syncthreads();
        const float* w = memory.w[quad];
        const float *low = memory.x[group], *high = memory.x[group + 4];
        Pair step = {0.0f, 0.0f};  // summed apart, then added: the rounding of long sums stays small
#pragma unroll 8
        for (int k = 0; k < TILE_STEP; k += 4) {
            for (int i = 0; i < 4; i++) step.low += w[k + i] * low[k + i];
            if (num_rows > 4)
                for (int i = 0; i < 4; i++) step.high += w[k + i] * high[k + i];
        }
        sum.low += step.low;
        sum.high += step.high;
    }
    return sum;
}
