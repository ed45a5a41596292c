// Types, conversions and reductions that every kernel uses.
// The generated preamble says REAL_IS_BF16: whether activations, weights and cache are bf16 or float.

#ifndef KDNB_EMULATED
typedef signed char int8_t;
typedef unsigned char uint8_t;
typedef unsigned short uint16_t;
typedef int int32_t;
typedef unsigned int uint32_t;
typedef long long int64_t;
typedef unsigned long long uint64_t;
#define DYNAMIC_SHARED(T, name)                                        \
    extern __shared__ __align__(1024) unsigned char dynamic_shared[]; \
    T* name = reinterpret_cast<T*>(dynamic_shared)
#endif

constexpr unsigned ALL_LANES = 0xffffffffu;
#define MINUS_INFINITY __uint_as_float(0xff800000u)

struct bf16 {
    uint16_t bits;
};

template <bool IS_BF16>
struct RealType {
    using type = float;
};
template <>
struct RealType<true> {
    using type = bf16;
};
using Real = RealType<REAL_IS_BF16>::type;

__device__ __forceinline__ float to_float(float x) { return x; }
__device__ __forceinline__ float to_float(bf16 x) { return __uint_as_float(uint32_t(x.bits) << 16); }

__device__ __forceinline__ void store(float* to, float x) { *to = x; }
// round to nearest, ties to even; a NaN stays one
__device__ __forceinline__ void store(bf16* to, float x) {
    uint32_t u = __float_as_uint(x);
    bool nan = (u & 0x7fffffffu) > 0x7f800000u;
    to->bits = nan ? uint16_t(0x7fff) : uint16_t((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}
// what a stored x reads back as
__device__ __forceinline__ float rounded(float x) {
    Real r;
    store(&r, x);
    return to_float(r);
}

template <class T>
__device__ __forceinline__ T warp_sum(T x) {
    for (int lanes = 16; lanes; lanes >>= 1) x += __shfl_xor_sync(ALL_LANES, x, lanes);
    return x;
}

// Sum over the block (a multiple of 32 threads, 1,024 at most), the same in every thread and run.
template <class T>
__device__ __forceinline__ T block_sum(T x) {
    __shared__ T partial[32];
    x = warp_sum(x);
    __syncthreads();  // an earlier sum may still be read
    if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = x;
    __syncthreads();
    T sum = 0;
    for (unsigned w = 0; w < blockDim.x / 32; w++) sum += partial[w];
    return sum;
}

// Largest value over the block, likewise; a NaN is not seen.
template <class T>
__device__ __forceinline__ T block_max(T x) {
    __shared__ T partial[32];
    for (int lanes = 16; lanes; lanes >>= 1) {
        const T other = __shfl_xor_sync(ALL_LANES, x, lanes);
        x = other > x ? other : x;
    }
    __syncthreads();
    if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = x;
    __syncthreads();
    T top = partial[0];
    for (unsigned w = 1; w < blockDim.x / 32; w++) top = partial[w] > top ? partial[w] : top;
    return top;
}
