// The two ends of a round that stays on the device: the block to draft, and what is emitted, kept and recorded.
//
// Inputs   state int32: prefix_len, root_id, num_emitted, num_rounds, is_done
// Grid     (1)
// Twin     kdnb.decoding
// Why      a round needs no word of the host: lengths, the root and the decision to go on live in device memory.
//          A round's record is one run of 32-bit words, so that the host learns everything by one copy; its
//          layout is kdnb.device_rounds.Layout. The mailbox (stop_requested, num_emitted, the ids) is memory that
//          both sides see while a whole decoding runs
#include "common.cuh"

enum { PREFIX_LEN, ROOT_ID, NUM_EMITTED, NUM_ROUNDS, IS_DONE };

#ifndef KDNB_EMULATED
extern "C" __device__ void cudaGraphSetConditional(unsigned long long handle, unsigned value);
#endif

// The root, then mask tokens, at the positions behind the context; block BLOCK_SIZE threads.
extern "C" __global__ void draft_block(const int* state, int mask_token_id, int* token_ids, int* positions) {
    const int i = threadIdx.x;
    token_ids[i] = i ? mask_token_id : state[ROOT_ID];
    positions[i] = state[PREFIX_LEN] + i;
}

// Positions of the rows that are committed: prefix_len + i.
extern "C" __global__ void kept_positions(const int* state, int* positions) {
    positions[threadIdx.x] = state[PREFIX_LEN] + int(threadIdx.x);
}

extern "C" __global__ void finish_round(int* state, const int* stop_ids, int num_stop_ids, int max_new_tokens,
                                        const int* num_nodes, const int* token_ids, const int* parents,
                                        const int* ranks, const int* next_ids, const int* accepted,
                                        const int* num_kept, const int* bonus_id, const double* scores,
                                        const float* log_probs, const float* gaps, const float* tops,
                                        const float* draft_tops, int num_draft_tops, volatile int* mailbox,
                                        int* records, int64_t condition) {
    constexpr int NODES = NODE_BUDGET + 1, HEADER = 8;
    constexpr int WORDS = HEADER + (MAX_DEPTH + 1) + 4 * NODES + NODES + 2 * NODES;
    __shared__ int broken;
    if (threadIdx.x == 0) broken = 0x7fffffff;
    __syncthreads();
    int* record = records + int64_t(state[NUM_ROUNDS]) * WORDS;
    int* out = record + HEADER;
    for (int i = threadIdx.x; i <= MAX_DEPTH; i += blockDim.x) out[i] = accepted[i];
    out += MAX_DEPTH + 1;
    for (int i = threadIdx.x; i < NODES; i += blockDim.x) {
        out[i] = token_ids[i];
        out[NODES + i] = parents[i];
        out[2 * NODES + i] = ranks[i];
        out[3 * NODES + i] = next_ids[i];
        out[4 * NODES + i] = int(__float_as_uint(log_probs[i]));
        const uint64_t score = uint64_t(__double_as_longlong(scores[i]));
        out[5 * NODES + 2 * i] = int(uint32_t(score));
        out[5 * NODES + 2 * i + 1] = int(uint32_t(score >> 32));
        // finite: the difference with itself is 0, not NaN
        if (i < *num_nodes && !(tops[i] - tops[i] == 0.0f)) atomicMin(&broken, i);
    }
    for (int i = threadIdx.x; i < num_draft_tops; i += blockDim.x)
        if (!(draft_tops[i] - draft_tops[i] == 0.0f)) atomicMin(&broken, -1 - i);
    __syncthreads();
    if (threadIdx.x) return;
    const int kept = *num_kept, first = state[NUM_EMITTED];
    int count = first;
    bool done = broken != 0x7fffffff;
    float gap = __uint_as_float(0x7f800000u);
    for (int i = 0; i < kept; i++) {
        gap = fminf(gap, gaps[accepted[i]]);
        const int token_id = i + 1 < kept ? token_ids[accepted[i + 1]] : *bonus_id;
        if (done) continue;
        mailbox[2 + count++] = token_id;
        done = count == max_new_tokens;
        for (int s = 0; s < num_stop_ids; s++) done |= token_id == stop_ids[s];
    }
    __threadfence_system();  // the ids before their number
    mailbox[1] = count;
    done |= mailbox[0] != 0;
    record[0] = state[PREFIX_LEN], record[1] = *num_nodes, record[2] = kept, record[3] = *bonus_id;
    record[4] = count - first, record[5] = int(__float_as_uint(gap)), record[6] = broken, record[7] = done;
    state[PREFIX_LEN] += kept;
    state[ROOT_ID] = *bonus_id;
    state[NUM_EMITTED] = count;
    state[NUM_ROUNDS] += 1;
    state[IS_DONE] = done;
#ifndef KDNB_EMULATED
    if (condition) cudaGraphSetConditional((unsigned long long)condition, !done);
#endif
}
