// Following the target's choices down the tree.
//
// Inputs   token_ids, parents, next_ids int32 per node; num_nodes int32 in device memory
// Outputs  accepted int32 [MAX_DEPTH + 1], nodes root first, 0 behind the last; num_kept, bonus_id int32
// Grid     (1); block a multiple of 32
// Shared   NODE_BUDGET + 1 integers, static
// Twin     kdnb.reference.tree_accept
// Why      all nodes say at once whether they are what their parent wanted; the walk then reads one number a step
#include "common.cuh"

extern "C" __global__ void tree_accept(const int* token_ids, const int* parents, const int* next_ids,
                                       const int* num_nodes, int* accepted, int* num_kept, int* bonus_id) {
    constexpr int NONE = 0x7fffffff;
    __shared__ int wanted_child[NODE_BUDGET + 1];
    for (int node = threadIdx.x; node <= NODE_BUDGET; node += blockDim.x) wanted_child[node] = NONE;
    __syncthreads();
    for (int node = threadIdx.x + 1; node < *num_nodes; node += blockDim.x)
        if (token_ids[node] == next_ids[parents[node]]) atomicMin(&wanted_child[parents[node]], node);
    __syncthreads();
    if (threadIdx.x) return;
    int node = 0, kept = 0;
    while (node != NONE) {
        accepted[kept++] = node;
        *bonus_id = next_ids[node];
        node = wanted_child[node];
    }
    *num_kept = kept;
    for (int i = kept; i <= MAX_DEPTH; i++) accepted[i] = 0;
}
