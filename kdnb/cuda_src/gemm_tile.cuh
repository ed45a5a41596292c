// One tile of a matrix product whose weight is stored [out, in]: 8 rows x 32 outputs.
//
// 128 threads; thread t owns output t % 32 of rows t / 32 and t / 32 + 4. Weights and rows pass through shared
// memory in steps of 128 columns, four columns per load, so that a warp reads one weight row's step at once; the
// next step's values are on their way while one is computed. An output's sum runs over the columns in the same
// order whatever the number of rows: its bits depend on its own row only.

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

// Four columns as floats, by one load; `from` is aligned to four values.
__device__ __forceinline__ float4 load4(const float* from) { return *reinterpret_cast<const float4*>(from); }
__device__ __forceinline__ float4 load4(const bf16* from) {
    const uint2 v = *reinterpret_cast<const uint2*>(from);
    return {__uint_as_float(v.x << 16), __uint_as_float(v.x & 0xffff0000u), __uint_as_float(v.y << 16),
            __uint_as_float(v.y & 0xffff0000u)};
}
// The same where rows are no multiple of four: one by one, zeros behind the last column.
template <class T>
__device__ __forceinline__ float4 load4_narrow(const T* from, int left) {
    return {left > 0 ? to_float(from[0]) : 0.0f, left > 1 ? to_float(from[1]) : 0.0f,
            left > 2 ? to_float(from[2]) : 0.0f, left > 3 ? to_float(from[3]) : 0.0f};
}

// A weight of floats: `out` rows of `columns`.
template <class T>
struct PlainWeight {
    const T* values;
    int columns;
    __device__ __forceinline__ float4 load(int out, int column) const {
        return load4(values + int64_t(out) * columns + column);
    }
    __device__ __forceinline__ float4 load_narrow(int out, int column) const {
        return load4_narrow(values + int64_t(out) * columns + column, columns - column);
    }
};

// rows(i): where row i of x begins, or null for a row of zeros.
template <class X, class Rows, class Weight>
__device__ __forceinline__ Pair gemm_tile(const Rows& rows, int num_rows, const Weight& weight, int first_out,
                                          int num_outs, int columns, TileMemory& memory) {
    constexpr int ROW_LOADS = TILE_ROWS / 4, OUT_LOADS = TILE_OUTS / 4;
    const int t = threadIdx.x, quad = t % 32, group = t / 32;
    const bool aligned = columns % 4 == 0;
    float4 next_x[ROW_LOADS], next_w[OUT_LOADS];
    // No load depends on a condition, so that all are on their way at once: what lies outside is read at the
    // border instead, and made zero (columns) or never stored (rows, outputs).
    const auto load = [&](int column) {
        const bool inside = column < columns;
        const int at = inside ? column : 0;
        if (aligned) {
#pragma unroll
            for (int i = 0; i < OUT_LOADS; i++)
                next_w[i] = weight.load(min(first_out + group + 4 * i, num_outs - 1), at);
#pragma unroll
            for (int i = 0; i < ROW_LOADS; i++) next_x[i] = load4(rows(min(group + 4 * i, num_rows - 1)) + at);
        } else {
            for (int i = 0; i < OUT_LOADS; i++)
                next_w[i] = weight.load_narrow(min(first_out + group + 4 * i, num_outs - 1), at);
            for (int i = 0; i < ROW_LOADS; i++)
                next_x[i] = load4_narrow(rows(min(group + 4 * i, num_rows - 1)) + at, columns - at);
        }
        if (!inside)
            for (int i = 0; i < OUT_LOADS; i++) next_w[i] = {0.0f, 0.0f, 0.0f, 0.0f};
    };
    Pair sum = {0.0f, 0.0f};
    load(4 * quad);
    for (int start = 0; start < columns; start += TILE_STEP) {
        __syncthreads();
#pragma unroll
        for (int i = 0; i < OUT_LOADS; i++)
            *reinterpret_cast<float4*>(&memory.w[group + 4 * i][4 * quad]) = next_w[i];
#pragma unroll
        for (int i = 0; i < ROW_LOADS; i++)
            *reinterpret_cast<float4*>(&memory.x[group + 4 * i][4 * quad]) = next_x[i];
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
