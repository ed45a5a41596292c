// One tile of a matrix product whose weight is stored [out, in]: 8 rows x 32 outputs.
//
// 128 threads; thread t owns output t % 32 of rows t / 32 and t / 32 + 4. Weights and rows pass through shared
// memory in steps of 128 columns, four columns per load, so that a warp reads one weight row's step at once.
// The next step's values are on their way while one is computed. An output's sum runs over the columns in the same order whatever the number of rows: its bits depend on its
// own row only.

constexpr int TILE_ROWS = 8;
constexpr int TILE_OUTS = 32;
constexpr int TILE_STEP = 128;
constexpr int TILE_THREADS = 128;
constexpr int TILE_STRIDE = TILE_STEP + 4;  // of a row in shared memory: float4 reads without bank conflicts

struct Pair {
    float low, high;  // sums of rows t / 32 and t / 32 + 4
};

struct __align__(16) TileMemory {
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
    constexpr int ROW_LOADS = TILE_ROWS / 4, OUT_LOADS = TILE_OUTS / 4;
    const int t = threadIdx.x, quad = t % 32, group = t / 32;
    const bool aligned = columns % 4 == 0;
    float next_x[ROW_LOADS][4], next_w[OUT_LOADS][4];
    const auto load = [&](int column) {
#pragma unroll
        for (int i = 0; i < OUT_LOADS; i++) {
            const int out = first_out + group + 4 * i;
            for (int j = 0; j < 4; j++) next_w[i][j] = 0.0f;
            if (out < num_outs && column < columns) weight.load(out, column, next_w[i]);
        }
#pragma unroll
        for (int i = 0; i < ROW_LOADS; i++) {
            const int row = group + 4 * i;
            for (int j = 0; j < 4; j++) next_x[i][j] = 0.0f;
            if (row < num_rows && column < columns)
                load4_aligned(rows(row) + column, columns - column, aligned, next_x[i]);
        }
    };
    Pair sum = {0.0f, 0.0f};
    load(4 * quad);
    for (int start = 0; start < columns; start += TILE_STEP) {
        __syncthreads();
#pragma unroll
        for (int i = 0; i < OUT_LOADS; i++)
            for (int j = 0; j < 4; j++) memory.w[group + 4 * i][4 * quad + j] = next_w[i][j];
#pragma unroll
        for (int i = 0; i < ROW_LOADS; i++)
            for (int j = 0; j < 4; j++) memory.x[group + 4 * i][4 * quad + j] = next_x[i][j];
        __syncthreads();
        load(start + TILE_STEP + 4 * quad);  // on its way while this step is computed
        const float4* w = reinterpret_cast<const float4*>(memory.w[quad]);
        const float4* low = reinterpret_cast<const float4*>(memory.x[group]);
        const float4* high = reinterpret_cast<const float4*>(memory.x[group + 4]);
        Pair step = {0.0f, 0.0f};  // summed apart, then added: the rounding of long sums stays small
#pragma unroll 8
        for (int k = 0; k < TILE_STEP / 4; k++) {
            const float4 a = w[k], b = low[k];
            step.low += a.x * b.x + a.y * b.y + a.z * b.z + a.w * b.w;
            if (num_rows > 4) {
                const float4 c = high[k];
                step.high += a.x * c.x + a.y * c.y + a.z * c.z + a.w * c.w;
            }
        }
        sum.low += step.low;
        sum.high += step.high;
    }
    return sum;
}
