// Rotating one pair of a head: into the first and second half of the result, as kdnb.reference.rope does.
__device__ __forceinline__ void rotate_pair(const Real* x, Real* out, int pair, int half, bool interleaved,
                                            const float* cos_row, const float* sin_row) {
    const float first = to_float(x[interleaved ? 2 * pair : pair]);
    const float second = to_float(x[interleaved ? 2 * pair + 1 : pair + half]);
    const float c = cos_row[pair], s = sin_row[pair];
    store(out + pair, first * c - second * s);
    store(out + pair + half, second * c + first * s);
}
