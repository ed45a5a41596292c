// The routed experts of one layer as a grouped matrix product.
//
// Inputs   x Real [rows, hidden]; topk_index int32 and topk_weight float [rows, top_k]; of every part (gate, up
//          [experts, inner, hidden], down [experts, hidden, inner]): values, and scales where packed
// Output   out Real [rows, hidden]
// Stages   plan_experts     one block of 1,024: which slots (row, k) each expert has, cut into items of 8
//          experts_hidden   (ceil(inner / 32), items): swiglu(gate x, up x) of every slot
//          experts_down     (ceil(hidden / 32), items): down, times the slot's weight
//          combine_experts  (ceil(hidden / 128), rows): the sum over k, in routing order
// Shared   21 KB, static
// Limits   experts to 1,024; packed: columns a multiple of 8, GROUP a multiple of 4
// Twin     kdnb.reference.experts
// Why      packed INT4 weights (eight nibbles a word, q + 8, a scale per GROUP columns) stay packed in memory and
//          are unpacked between memory and the product, exactly as q * scale
#include "common.cuh"
#include "gemm_tile.cuh"

using Scale = RealType<SCALE_IS_BF16>::type;

struct PackedWeight {
    const uint32_t* words;
    const Scale* scales;
    int columns;
    __device__ __forceinline__ float4 load(int out, int column) const {
        const uint32_t nibbles = words[int64_t(out) * (columns / 8) + column / 8] >> (column % 8 * 4);
        const float scale = to_float(scales[int64_t(out) * (columns / GROUP) + column / GROUP]);
        return {value(nibbles, scale), value(nibbles >> 4, scale), value(nibbles >> 8, scale),
                value(nibbles >> 12, scale)};
    }
    __device__ __forceinline__ float4 load_narrow(int out, int column) const { return load(out, column); }
    __device__ __forceinline__ static float value(uint32_t nibble, float scale) {
        return float(int(nibble & 15u) - 8) * scale;
    }
};

// The weight of one expert; `part` is its values' address.
template <bool PACKED>
struct ExpertWeight;
template <>
struct ExpertWeight<false> {
    using type = PlainWeight<Real>;
    __device__ __forceinline__ static type of(const void* part, const Scale*, int expert, int outs, int columns) {
        return {static_cast<const Real*>(part) + int64_t(expert) * outs * columns, columns};
    }
};
template <>
struct ExpertWeight<true> {
    using type = PackedWeight;
    __device__ __forceinline__ static type of(const void* part, const Scale* scales, int expert, int outs,
                                              int columns) {
        const int64_t first = int64_t(expert) * outs;
        return {static_cast<const uint32_t*>(part) + first * (columns / 8), scales + first * (columns / GROUP),
                columns};
    }
};
using Stored = ExpertWeight<IS_PACKED>;

struct Item {
    int expert, first, count;  // `count` entries of `order` from `first` on
};

extern "C" __global__ void __launch_bounds__(1024)
    plan_experts(const int* topk_index, int num_slots, int num_experts, int* order, Item* items, int* num_items) {
    __shared__ int count[1024], slots_before[1024], items_before[1024];
    const int expert = threadIdx.x;
    count[expert] = 0;
    __syncthreads();
    for (int slot = threadIdx.x; slot < num_slots; slot += blockDim.x) atomicAdd(&count[topk_index[slot]], 1);
    __syncthreads();
    const int mine = count[expert], pieces = (mine + TILE_ROWS - 1) / TILE_ROWS;
    slots_before[expert] = mine;
    items_before[expert] = pieces;
    __syncthreads();
    for (int by = 1; by < num_experts; by *= 2) {  // running sums
        const int slots = expert >= by ? slots_before[expert - by] : 0;
        const int items_of = expert >= by ? items_before[expert - by] : 0;
        __syncthreads();
        slots_before[expert] += slots;
        items_before[expert] += items_of;
        __syncthreads();
    }
    const int first = slots_before[expert] - mine, item = items_before[expert] - pieces;
    if (expert == num_experts - 1) *num_items = items_before[expert];
    for (int i = 0; i < pieces; i++)
        items[item + i] = {expert, first + i * TILE_ROWS, min(TILE_ROWS, mine - i * TILE_ROWS)};
    count[expert] = first;  // from here on: where the next slot goes
    __syncthreads();
    // slots of one expert stand in any order: no result depends on who shares an item
    for (int slot = threadIdx.x; slot < num_slots; slot += blockDim.x)
        order[atomicAdd(&count[topk_index[slot]], 1)] = slot;
}

struct SlotRows {  // the token's row of every slot
    const Real* x;
    const int* slots;
    int top_k, columns;
    __device__ __forceinline__ const Real* operator()(int i) const {
        return x + int64_t(slots[i] / top_k) * columns;
    }
};

extern "C" __global__ void __launch_bounds__(TILE_THREADS)
    experts_hidden(const Real* x, const void* gate, const Scale* gate_scales, const void* up,
                   const Scale* up_scales, const int* order, const Item* items, const int* num_items,
                   Real* hidden, int top_k, int inner, int columns) {
    __shared__ TileMemory memory;
    if (int(blockIdx.y) >= *num_items) return;
    const Item item = items[blockIdx.y];
    const int first_out = blockIdx.x * TILE_OUTS;
    const SlotRows rows = {x, order + item.first, top_k, columns};
    const auto g = Stored::of(gate, gate_scales, item.expert, inner, columns);
    const auto u = Stored::of(up, up_scales, item.expert, inner, columns);
    const Pair a = gemm_tile<Real>(rows, item.count, g, first_out, inner, columns, memory);
    const Pair b = gemm_tile<Real>(rows, item.count, u, first_out, inner, columns, memory);
    const int out = first_out + threadIdx.x % 32, row = threadIdx.x / 32;
    if (out >= inner) return;
    Real* to = hidden + int64_t(item.first) * inner + out;
    if (row < item.count) store(to + int64_t(row) * inner, a.low / (1.0f + expf(-a.low)) * b.low);
    if (row + 4 < item.count) store(to + int64_t(row + 4) * inner, a.high / (1.0f + expf(-a.high)) * b.high);
}

struct HiddenRows {
    const Real* hidden;
    int columns;
    __device__ __forceinline__ const Real* operator()(int i) const { return hidden + int64_t(i) * columns; }
};

extern "C" __global__ void __launch_bounds__(TILE_THREADS)
    experts_down(const Real* hidden, const void* down, const Scale* down_scales, const int* order,
                 const Item* items, const int* num_items, const float* topk_weight, float* of_slots, int outs,
                 int columns) {
    __shared__ TileMemory memory;
    if (int(blockIdx.y) >= *num_items) return;
    const Item item = items[blockIdx.y];
    const int first_out = blockIdx.x * TILE_OUTS;
    const HiddenRows rows = {hidden + int64_t(item.first) * columns, columns};
    const auto w = Stored::of(down, down_scales, item.expert, outs, columns);
    const Pair sum = gemm_tile<Real>(rows, item.count, w, first_out, outs, columns, memory);
    const int out = first_out + threadIdx.x % 32, row = threadIdx.x / 32;
    if (out >= outs) return;
    const int* slots = order + item.first;
    if (row < item.count) of_slots[int64_t(slots[row]) * outs + out] = sum.low * topk_weight[slots[row]];
    if (row + 4 < item.count)
        of_slots[int64_t(slots[row + 4]) * outs + out] = sum.high * topk_weight[slots[row + 4]];
}

extern "C" __global__ void combine_experts(const float* of_slots, Real* out, int top_k, int size) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= size) return;
    float sum = 0.0f;
    for (int k = 0; k < top_k; k++) sum += of_slots[(int64_t(blockIdx.y) * top_k + k) * size + i];
    store(out + int64_t(blockIdx.y) * size + i, sum);
}
