// The best-first draft tree of a block's marginals, in the order of the contract.
//
// Inputs   top_ids int32 and top_log_probs float [MAX_DEPTH, K], descending; root_id, prefix_len int32 in device
//          memory
// Outputs  per node, [NODE_BUDGET + 1], the root first: token_ids, parents, depths, positions (prefix_len +
//          depth), ranks int32; scores double; log_probs float; visible uint64 [.., WORDS]; num_nodes int32.
//          Slots behind the last node hold token 0 at the root's position, seeing themselves only
// Grid     (1); block THREADS, a power of two from 32 to 1,024
// Shared   (8 + 4) * SORT_SIZE, plus, where it fits, 14 * MAX_DEPTH * NODE_BUDGET + 16 * NODE_BUDGET + 4 * K;
//          dynamic
// Limits   NODE_BUDGET to 1,024, MAX_DEPTH to 32. Scores that differ exactly but not in float64 (log-probs near
//          1e-12 beside others near -30) may be taken in another order at the very cut of the budget
// Twin     kdnb.reference.tree_build
// Why      A heap pops one node after another. Depth by depth instead: the nodes of a depth are the best sums of
//          a parent (sorted) and a rank (sorted), and the pair (i, r) has (i + 1) (r + 1) - 1 pairs before it, so
//          that about NODE_BUDGET * ln(NODE_BUDGET) pairs can matter; far fewer once all are left out that
//          score below the budget's worth of known nodes: at first the children of the chain of best tokens,
//          then all of the depths before. Few candidates of a depth are put in order by
//          counting, many by a sort; then every node finds its place among all depths by binary search.
#include "common.cuh"

constexpr int WORDS = (NODE_BUDGET + 1 + 63) / 64;
constexpr int COUNTED = 640;  // candidates up to which counting is faster than sorting
constexpr uint32_t NOTHING = 0xffffffffu;
#define WORST __longlong_as_double(0xfff0000000000000ll)  // minus infinity

struct Levels {  // nodes of every depth, sorted; level 0 is depth 1
    double* score;   // [MAX_DEPTH][NODE_BUDGET]
    short* parent;   // index in the level above
    short* rank;
    short* place;    // in the whole tree, the root not counted
    __device__ __forceinline__ static int at(int level, int i) { return level * NODE_BUDGET + i; }

    // Whether the rank tuple of a node comes before that of another.
    __device__ bool tuple_before(int level_a, int a, int level_b, int b) const {
        bool before = level_a < level_b;  // if one continues the other
        while (level_a > level_b) a = parent[at(level_a--, a)];
        while (level_b > level_a) b = parent[at(level_b--, b)];
        for (int level = level_a; level >= 0 && a != b; level--) {
            const int rank_a = rank[at(level, a)], rank_b = rank[at(level, b)];
            if (rank_a != rank_b) before = rank_a < rank_b;
            a = parent[at(level, a)], b = parent[at(level, b)];
        }
        return before;
    }
    __device__ bool before(int level_a, int a, int level_b, int b) const {
        const double sa = score[at(level_a, a)], sb = score[at(level_b, b)];
        return sa != sb ? sa > sb : tuple_before(level_a, a, level_b, b);
    }
};

// Candidates of one level: parent << 16 | rank, or NOTHING, which comes last.
__device__ bool candidate_before(const Levels& levels, int level, double sa, uint32_t a, double sb, uint32_t b) {
    if (a == NOTHING || b == NOTHING) return a < b;
    if (sa != sb) return sa > sb;
    if (a >> 16 == b >> 16) return a < b;
    return levels.tuple_before(level - 1, a >> 16, level - 1, b >> 16);
}

__device__ void sort_candidates(const Levels& levels, int level, double* score, uint32_t* who, int size) {
    for (int run = 2; run <= size; run *= 2)
        for (int by = run / 2; by; by /= 2) {
            for (int pair = threadIdx.x; pair < size / 2; pair += THREADS) {
                const int i = (pair & ~(by - 1)) * 2 + (pair & (by - 1)), j = i + by;
                const bool swapped = candidate_before(levels, level, score[j], who[j], score[i], who[i]);
                if (swapped != ((i & run) != 0) && who[i] != who[j]) {
                    const double s = score[i];
                    const uint32_t w = who[i];
                    score[i] = score[j], who[i] = who[j];
                    score[j] = s, who[j] = w;
                }
            }
            // up to 32 apart a warp's pairs are its own 64 values, at this step and at the next
            if (by > 32 || (by == 1 && run >= 64))
                __syncthreads();
            else
                __syncwarp();
        }
    __syncthreads();
}

// How many of `count` descending values are above x; with `or_equal`, also those equal to it.
__device__ int num_above(const double* values, int count, double x, bool or_equal) {
    int low = 0, high = count;
    while (low < high) {
        const int middle = (low + high) / 2;
        if (values[middle] > x || (or_equal && values[middle] == x))
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

// A score that no taken node is below: the NODE_BUDGET-th best among the first children of the chain of best
// tokens. Twice as many children as nodes are enough for a good one.
__device__ void bound_by_chain(const float* top_log_probs, const double* chain, double* bound) {
    constexpr int WANTED = 2 * NODE_BUDGET / MAX_DEPTH + 1, RANKS = K < WANTED ? K : WANTED;
    for (int entry = threadIdx.x; entry < MAX_DEPTH * RANKS; entry += THREADS) {
        const int depth = entry / RANKS, rank = entry % RANKS;
        const double score = chain[depth] + double(top_log_probs[depth * K + rank]);
        int place = rank;
        for (int other = 0; other < MAX_DEPTH; other++) {
            if (other == depth) continue;
            int low = 0, high = RANKS;  // how many of that depth come before; of equal scores the lower depth
            while (low < high) {
                const int middle = (low + high) / 2;
                const double theirs = chain[other] + double(top_log_probs[other * K + middle]);
                if (theirs > score || (theirs == score && other < depth))
                    low = middle + 1;
                else
                    high = middle;
            }
            place += low;
        }
        if (place == NODE_BUDGET - 1) *bound = score;
    }
}

extern "C" __global__ void __launch_bounds__(THREADS)
    tree_build(const int* top_ids, const float* top_log_probs, const int* root_id, const int* prefix_len,
               int* token_ids, int* parents, int* depths, int* positions, int* ranks, double* scores,
               float* log_probs, uint64_t* visible, int* num_nodes, char* workspace) {
    DYNAMIC_SHARED(char, shared);
    double* sort_score = reinterpret_cast<double*>(shared);
    uint32_t* sort_who = reinterpret_cast<uint32_t*>(sort_score + SORT_SIZE);
    char* rest = IN_SHARED ? reinterpret_cast<char*>(sort_who + SORT_SIZE) : workspace;
    constexpr int LEVEL_NODES = MAX_DEPTH * NODE_BUDGET;
    double* known = reinterpret_cast<double*>(rest);  // the best scores of all levels so far, two buffers
    Levels levels;
    levels.score = known + 2 * NODE_BUDGET;
    float* of_rank = reinterpret_cast<float*>(levels.score + LEVEL_NODES);  // log-probs of a level's ranks
    levels.parent = reinterpret_cast<short*>(of_rank + K);  // wide values first: all are aligned
    levels.rank = levels.parent + LEVEL_NODES;
    levels.place = levels.rank + LEVEL_NODES;
    __shared__ double chain[MAX_DEPTH], bound;  // scores of the chain of best tokens, the root's first
    __shared__ int count[MAX_DEPTH];
    __shared__ short first_of[NODE_BUDGET];  // children of every parent, then their running sum
    const int t = threadIdx.x;

    int num_known = min(K, NODE_BUDGET);
    for (int r = t; r < num_known; r += THREADS) {
        levels.score[r] = known[r] = double(top_log_probs[r]);
        levels.parent[r] = -1, levels.rank[r] = short(r);
    }
    if (t < MAX_DEPTH) count[t] = t ? 0 : num_known;
    if (t == 0) {
        bound = WORST;
        chain[0] = 0.0;
        for (int depth = 1; depth < MAX_DEPTH; depth++)
            chain[depth] = chain[depth - 1] + double(top_log_probs[(depth - 1) * K]);
    }
    __syncthreads();
    bound_by_chain(top_log_probs, chain, &bound);
    __syncthreads();
    if (t == 0) count[0] = num_above(levels.score, num_known, bound, true);
    __syncthreads();
    for (int level = 1; level < MAX_DEPTH; level++) {
        const double* parent_score = levels.score + Levels::at(level - 1, 0);
        const double worst = max(bound, num_known == NODE_BUDGET ? known[NODE_BUDGET - 1] : WORST);
        const int num_parents = count[level - 1];
        for (int r = t; r < K; r += THREADS) of_rank[r] = top_log_probs[level * K + r];
        __syncthreads();
        // how many children of every parent can matter
        for (int i = t; i < num_parents; i += THREADS) {
            int low = 0, high = min(K, NODE_BUDGET / (i + 1));
            while (low < high) {
                const int middle = (low + high) / 2;
                if (parent_score[i] + double(of_rank[middle]) >= worst)
                    low = middle + 1;
                else
                    high = middle;
            }
            first_of[i] = short(low);
        }
        __syncthreads();
        for (int by = 1; by < num_parents; by *= 2) {  // running sum, up to and with parent i
            constexpr int EACH = (NODE_BUDGET + THREADS - 1) / THREADS;
            int before[EACH];
#pragma unroll
            for (int m = 0; m < EACH; m++) {
                const int i = t + m * THREADS;
                before[m] = i >= by && i < num_parents ? first_of[i - by] : 0;
            }
            __syncthreads();
#pragma unroll
            for (int m = 0; m < EACH; m++)
                if (t + m * THREADS < num_parents) first_of[t + m * THREADS] += short(before[m]);
            __syncthreads();
        }
        const int num_candidates = num_parents ? first_of[num_parents - 1] : 0;
        if (num_candidates == 0) break;
        for (int j = t; j < num_candidates; j += THREADS) {
            int low = 0, high = num_parents - 1;  // the first parent whose running sum exceeds j
            while (low < high) {
                const int middle = (low + high) / 2;
                if (first_of[middle] > j)
                    high = middle;
                else
                    low = middle + 1;
            }
            const int r = j - (low ? first_of[low - 1] : 0);
            sort_score[j] = parent_score[low] + double(of_rank[r]);
            sort_who[j] = uint32_t(low) << 16 | uint32_t(r);
        }
        __syncthreads();
        const int kept = min(NODE_BUDGET, num_candidates);
        double* level_score = levels.score + Levels::at(level, 0);
        short *level_parent = levels.parent + Levels::at(level, 0), *level_rank = levels.rank + Levels::at(level, 0);
        if (num_candidates <= COUNTED) {  // a candidate's place is the number of candidates before it
            for (int j = t; j < num_candidates; j += THREADS) {
                const double score = sort_score[j];
                const uint32_t who = sort_who[j];
                int place = 0;
#pragma unroll 4
                for (int other = 0; other < num_candidates; other++) {
                    const double theirs = sort_score[other];
                    place += theirs > score;
                    if (theirs == score && other != j)
                        place += candidate_before(levels, level, theirs, sort_who[other], score, who);
                }
                if (place >= NODE_BUDGET) continue;
                level_score[place] = score;
                level_parent[place] = short(who >> 16);
                level_rank[place] = short(who & 0xffffu);
            }
        } else {
            int size = 2;
            while (size < num_candidates) size *= 2;
            for (int i = num_candidates + t; i < size; i += THREADS) sort_score[i] = WORST, sort_who[i] = NOTHING;
            __syncthreads();
            sort_candidates(levels, level, sort_score, sort_who, size);
            for (int i = t; i < kept; i += THREADS) {
                level_score[i] = sort_score[i];
                level_parent[i] = short(sort_who[i] >> 16);
                level_rank[i] = short(sort_who[i] & 0xffffu);
            }
        }
        __syncthreads();
        // merge the scores: the worst of the budget's worth bounds the next level
        double* merged = known == reinterpret_cast<double*>(rest) ? known + NODE_BUDGET : known - NODE_BUDGET;
        for (int i = t; i < num_known + kept; i += THREADS) {
            const bool old = i < num_known;
            const int j = old ? i : i - num_known;
            const double x = old ? known[j] : level_score[j];
            const int place = j + (old ? num_above(level_score, kept, x, false) : num_above(known, num_known, x, true));
            if (place < NODE_BUDGET) merged[place] = x;
        }
        __syncthreads();
        known = merged;
        num_known = min(NODE_BUDGET, num_known + kept);
        if (t == 0)
            count[level] = num_known == NODE_BUDGET ? num_above(level_score, kept, known[NODE_BUDGET - 1], true) : kept;
        __syncthreads();
    }

    // every node's place among all levels
    for (int n = t;; n += THREADS) {
        int level = 0, i = n;  // the n-th entry that counts
        while (level < MAX_DEPTH && i >= count[level]) i -= count[level++];
        if (level == MAX_DEPTH) break;
        const int entry = Levels::at(level, i);
        int place = i;
        for (int other = 0; other < MAX_DEPTH; other++) {
            if (other == level) continue;
            int low = 0, high = count[other];
            while (low < high) {
                const int middle = (low + high) / 2;
                if (levels.before(other, middle, level, i))
                    low = middle + 1;
                else
                    high = middle;
            }
            place += low;
        }
        levels.place[entry] = short(min(place, NODE_BUDGET));
    }
    __syncthreads();
    int* parent_of = reinterpret_cast<int*>(sort_score);  // the sorts are over: their memory serves the masks
    for (int n = t;; n += THREADS) {
        int level = 0, i = n;
        while (level < MAX_DEPTH && i >= count[level]) i -= count[level++];
        if (level == MAX_DEPTH) break;
        const int entry = Levels::at(level, i);
        if (levels.place[entry] >= NODE_BUDGET) continue;
        const int node = levels.place[entry] + 1, rank = levels.rank[entry];
        token_ids[node] = top_ids[level * K + rank];
        parent_of[node] = parents[node] = level ? levels.place[Levels::at(level - 1, levels.parent[entry])] + 1 : 0;
        depths[node] = level + 1;
        positions[node] = *prefix_len + level + 1;
        ranks[node] = rank;
        scores[node] = levels.score[entry];
        log_probs[node] = top_log_probs[level * K + rank];
    }
    const int last = num_known;  // nodes besides the root
    for (int node = t; node <= NODE_BUDGET; node += THREADS)
        if (node == 0 || node > last) {
            token_ids[node] = node ? 0 : *root_id;
            parent_of[node] = parents[node] = -1;
            depths[node] = ranks[node] = 0;
            positions[node] = *prefix_len;
            scores[node] = 0.0, log_probs[node] = 0.0f;
        }
    if (t == 0) *num_nodes = last + 1;
    __syncthreads();
    for (int i = t; i < (NODE_BUDGET + 1) * WORDS; i += THREADS) {
        uint64_t bits = 0;
        for (int node = i / WORDS; node >= 0; node = parent_of[node])
            if (node / 64 == i % WORDS) bits |= uint64_t(1) << (node % 64);
        visible[i] = bits;
    }
}
