// The best tokens of every row of logits and their log-probs over the whole vocabulary.
//
// Inputs   logits float [rows, vocab_size]
// Outputs  ids int32 and log_probs float [rows, k], descending, equal logits to the lower id; tops float [rows],
//          the largest logit, NaN if the row holds one: the caller refuses what is not finite
// Grid     (rows); block a multiple of 32, 1,024 at most
// Shared   8 * k bytes, dynamic, and 8.5 KB, static
// Limits   k to 8,192 and at most vocab_size
// Twin     kdnb.reference.top_k
// Why      radix select: three passes over the row (a row of 163,840 stays in L2) find the k-th best value
//          exactly; more passes only where ties straddle the cut
#include "common.cuh"
#include "ordered.cuh"

constexpr int DIGIT_BITS = 11;
constexpr int BINS = 1 << DIGIT_BITS;
constexpr int COARSE = 64;  // bins are added up 32 at a time before one thread walks them

extern "C" __global__ void __launch_bounds__(1024)
    top_k(const float* logits, int* ids, float* log_probs, float* tops, int vocab_size, int k) {
    DYNAMIC_SHARED(uint64_t, chosen);
    __shared__ int bins[BINS], coarse[COARSE], num_chosen, digit, wanted, in_digit;
    const float* row = logits + int64_t(blockIdx.x) * vocab_size;
    const int t = threadIdx.x;

    float top = MINUS_INFINITY;
    int broken = 0;
    for (int i = t; i < vocab_size; i += blockDim.x) {
        top = fmaxf(top, row[i]);
        broken |= row[i] != row[i];
    }
    top = block_max(top);
    broken = __syncthreads_or(broken);
    double sum = 0.0;
    for (int i = t; i < vocab_size; i += blockDim.x) sum += double(expf(row[i] - top));
    const double log_sum = double(top) + log(block_sum(sum));
    if (t == 0) {
        tops[blockIdx.x] = broken ? __uint_as_float(0x7fc00000u) : top;
        num_chosen = 0;
        wanted = k;
    }

    uint64_t prefix = 0, mask = 0;  // the k-th best value begins with `prefix`
    for (int shift = 64 - DIGIT_BITS, width = DIGIT_BITS;;) {
        for (int i = t; i < BINS; i += blockDim.x) bins[i] = 0;
        __syncthreads();
        for (int i = t; i < vocab_size; i += blockDim.x) {
            const uint64_t value = ordered(row[i], i);
            if ((value & mask) == prefix) atomicAdd(&bins[value >> shift & ((1u << width) - 1)], 1);
        }
        __syncthreads();
        for (int c = t; c < COARSE; c += blockDim.x) {
            coarse[c] = 0;
            for (int i = 0; i < BINS / COARSE; i++) coarse[c] += bins[c * (BINS / COARSE) + i];
        }
        __syncthreads();
        if (t == 0) {
            int left = wanted, c = COARSE - 1;
            while (left > coarse[c]) left -= coarse[c--];
            int bin = (c + 1) * (BINS / COARSE) - 1;
            while (left > bins[bin]) left -= bins[bin--];
            digit = bin, wanted = left, in_digit = bins[bin];
        }
        __syncthreads();
        prefix |= uint64_t(digit) << shift;
        mask |= uint64_t((1u << width) - 1) << shift;
        if (in_digit == wanted || shift == 0) break;  // the whole bin is among the best
        width = min(DIGIT_BITS, shift);
        shift -= width;
        __syncthreads();
    }
    for (int i = t; i < vocab_size; i += blockDim.x) {
        const uint64_t value = ordered(row[i], i);
        if ((value & mask) < prefix) continue;
        const int place = atomicAdd(&num_chosen, 1);
        if (place < k) chosen[place] = value;  // always, unless the row holds NaN
    }
    __syncthreads();
    for (int i = t; i < k; i += blockDim.x) {
        int place = 0;
        for (int j = 0; j < k; j++) place += chosen[j] > chosen[i];
        ids[int64_t(blockIdx.x) * k + place] = id_of(chosen[i]);
        log_probs[int64_t(blockIdx.x) * k + place] = float(double(logit_of(chosen[i])) - log_sum);
    }
}

// The best token of every row, and by how much it won over the second (plus infinity if it is the only one).
extern "C" __global__ void __launch_bounds__(1024)
    argmax(const float* logits, int* ids, float* gaps, float* tops, int vocab_size) {
    const float* row = logits + int64_t(blockIdx.x) * vocab_size;
    uint64_t best = 0;
    int broken = 0;
    for (int i = threadIdx.x; i < vocab_size; i += blockDim.x) {
        best = max(best, ordered(row[i], i));
        broken |= row[i] != row[i];
    }
    best = block_max(best);
    broken = __syncthreads_or(broken);
    float second = MINUS_INFINITY;
    for (int i = threadIdx.x; i < vocab_size; i += blockDim.x)
        if (i != id_of(best)) second = fmaxf(second, row[i]);
    second = block_max(second);
    if (threadIdx.x) return;
    ids[blockIdx.x] = id_of(best);
    gaps[blockIdx.x] = logit_of(best) - second;
    tops[blockIdx.x] = broken ? __uint_as_float(0x7fc00000u) : logit_of(best);
}
