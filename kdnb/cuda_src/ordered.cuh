// A logit and its token as one integer: larger is better, equal logits go to the lower id.
__device__ __forceinline__ uint64_t ordered(float logit, int id) {
    const uint32_t bits = __float_as_uint(logit + 0.0f);  // -0 equals 0
    const uint32_t key = bits & 0x80000000u ? ~bits : bits | 0x80000000u;
    return uint64_t(key) << 32 | (0xffffffffu - uint32_t(id));
}
__device__ __forceinline__ int id_of(uint64_t value) { return int(0xffffffffu - uint32_t(value)); }
__device__ __forceinline__ float logit_of(uint64_t value) {
    const uint32_t key = uint32_t(value >> 32);
    return __uint_as_float(key & 0x80000000u ? key & 0x7fffffffu : ~key);
}
