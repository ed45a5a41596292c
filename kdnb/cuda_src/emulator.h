// Plays a GPU on a CPU: the sources of this folder, compiled by a host C++ compiler with this header first.
//
// Every CUDA thread is a fiber with a stack of its own. One operating-system thread runs one block at a time
// and switches between its fibers only where the CUDA thread would wait: at a barrier or a warp collective.
// So a barrier that not all threads reach is seen (no fiber can run on) and reported instead of hanging, and
// running the fibers in another order (reversed, shuffled) exposes a barrier that is missing. Blocks run in
// any order, on several operating-system threads, and cannot wait for each other. Dynamic shared memory is
// filled with NaN bytes before each block, so that reading before writing shows.
//
// Not played: wgmma, TMA, mbarrier, clusters, grid-wide barriers, memory-model races between blocks.
#pragma once
#define KDNB_EMULATED 1

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#endif
#if !defined(__x86_64__)
#include <ucontext.h>
#endif

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __restrict__ __restrict
#define __launch_bounds__(...)
#define __grid_constant__
#define __align__(n) alignas(n)
#define __shared__ static thread_local  // one copy per operating-system thread, so one per running block
#define DYNAMIC_SHARED(T, name) T* name = reinterpret_cast<T*>(emulator::block->dynamic_shared)

struct dim3 {
    unsigned x, y, z;
    dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
};
struct alignas(8) uint2 { unsigned x, y; };
struct alignas(16) uint4 { unsigned x, y, z, w; };
struct alignas(8) float2 { float x, y; };
struct alignas(16) float4 { float x, y, z, w; };

namespace emulator {

enum class State : uint8_t { ready, at_block_barrier, at_warp_barrier, done };
constexpr size_t STACK_BYTES = 64 * 1024 + 4096 + 192;  // an odd stride: stacks must not share cache sets
constexpr unsigned WARP_SIZE = 32;
constexpr int NAMED_BARRIERS = 16;

// --- switching between stacks ------------------------------------------------------------------------------
#if defined(__x86_64__)
struct Context {
    void* stack_pointer = nullptr;
};
extern "C" void kdnb_switch_stack(void** save, void* to);
asm(".text\n.weak kdnb_switch_stack\n.type kdnb_switch_stack,@function\nkdnb_switch_stack:\n"
    "pushq %rbp\npushq %rbx\npushq %r12\npushq %r13\npushq %r14\npushq %r15\n"
    "movq %rsp,(%rdi)\nmovq %rsi,%rsp\n"
    "popq %r15\npopq %r14\npopq %r13\npopq %r12\npopq %rbx\npopq %rbp\nret\n"
    ".size kdnb_switch_stack,.-kdnb_switch_stack\n");
inline void switch_to(Context& from, Context& to) { kdnb_switch_stack(&from.stack_pointer, to.stack_pointer); }
inline void prepare(Context& context, char* stack, void (*entry)()) {
    // the stack holds the return address, then six saved registers; it is 16-byte aligned before a call
    void** top = reinterpret_cast<void**>(reinterpret_cast<uintptr_t>(stack + STACK_BYTES) & ~uintptr_t(15)) - 3;
    *--top = reinterpret_cast<void*>(entry);
    context.stack_pointer = top - 6;
}
#else
struct Context {
    ucontext_t context;
};
inline void switch_to(Context& from, Context& to) { swapcontext(&from.context, &to.context); }
inline void prepare(Context& context, char* stack, void (*entry)()) {
    getcontext(&context.context);
    context.context.uc_stack.ss_sp = stack;
    context.context.uc_stack.ss_size = STACK_BYTES;
    context.context.uc_link = nullptr;
    makecontext(&context.context, entry, 0);
}
#endif

struct Fiber {
    Context context;
    char* stack = nullptr;
    dim3 thread;
    unsigned index = 0;
    State state = State::ready;
    int barrier = 0;
    uint32_t warp_mask = 0;
    void* fake_stack = nullptr;  // AddressSanitizer's
};

struct Warp {
    unsigned char slots[WARP_SIZE][16];     // what each lane hands to a collective
    uint64_t fragments[WARP_SIZE][8];       // operands of a matrix instruction
    uint32_t arrived = 0, alive = 0;
};

struct Block {
    std::vector<Fiber> fibers;
    std::vector<Warp> warps;
    Context scheduler;
    Fiber* current = nullptr;
    dim3 index, size, grid;
    unsigned alive = 0;
    unsigned arrived[NAMED_BARRIERS], needed[NAMED_BARRIERS];
    char* dynamic_shared = nullptr;
    int votes = 0, votes_of_last = 0;
    void (*entry)(void*) = nullptr;
    void* argument = nullptr;
    void* scheduler_stack = nullptr;  // AddressSanitizer's: bottom and size of the scheduler's own stack
    size_t scheduler_size = 0;
    void* scheduler_fake = nullptr;
};
inline thread_local Block* block = nullptr;

// AddressSanitizer must be told of every change of stacks
inline void announce_switch(void** save, const void* bottom, size_t size) {
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_start_switch_fiber(save, bottom, size);
#else
    (void)save, (void)bottom, (void)size;
#endif
}
inline void finish_switch(void* fake, const void** old_bottom, size_t* old_size) {
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(fake, old_bottom, old_size);
#else
    (void)fake, (void)old_bottom, (void)old_size;
#endif
}

inline void wait() {  // from a fiber back to the scheduler
    Block* b = block;
    Fiber* me = b->current;
    announce_switch(me->state == State::done ? nullptr : &me->fake_stack, b->scheduler_stack, b->scheduler_size);
    switch_to(me->context, b->scheduler);
    finish_switch(me->fake_stack, nullptr, nullptr);
}

inline void run_fiber() {
    Block* b = block;
    finish_switch(nullptr, const_cast<const void**>(&b->scheduler_stack), &b->scheduler_size);
    b->entry(b->argument);
    Fiber* me = b->current;
    me->state = State::done;
    b->alive--;
    b->warps[me->index / WARP_SIZE].alive &= ~(1u << (me->index % WARP_SIZE));
    wait();
    std::abort();  // a finished fiber is never resumed
}

inline void resume(Block* b, Fiber& fiber) {
    b->current = &fiber;
    announce_switch(&b->scheduler_fake, fiber.stack, STACK_BYTES);
    switch_to(b->scheduler, fiber.context);
    finish_switch(b->scheduler_fake, nullptr, nullptr);
}

// --- barriers ----------------------------------------------------------------------------------------------
inline void open_block_barrier(Block* b, int id) {
    for (Fiber& fiber : b->fibers)
        if (fiber.state == State::at_block_barrier && fiber.barrier == id) fiber.state = State::ready;
    b->arrived[id] = 0;
    if (id == 0) {
        b->votes_of_last = b->votes;
        b->votes = 0;
    }
}
inline void block_barrier(int id, unsigned needed) {  // needed 0: all threads that have not returned
    Block* b = block;
    b->needed[id] = needed;
    if (++b->arrived[id] >= (needed ? needed : b->alive)) return open_block_barrier(b, id);
    b->current->state = State::at_block_barrier;
    b->current->barrier = id;
    wait();
}
inline bool open_warp_barrier(Block* b, unsigned warp_index, uint32_t mask, unsigned except) {
    Warp& warp = b->warps[warp_index];
    uint32_t needed = mask & warp.alive;
    if ((warp.arrived & needed) != needed) return false;
    warp.arrived &= ~needed;
    for (unsigned lane = 0; lane < WARP_SIZE; lane++) {
        if (!(needed >> lane & 1) || lane == except) continue;
        Fiber& other = b->fibers[warp_index * WARP_SIZE + lane];
        if (other.state == State::at_warp_barrier) other.state = State::ready;
    }
    return true;
}
inline void warp_barrier(uint32_t mask) {
    Block* b = block;
    Fiber* me = b->current;
    unsigned lane = me->index % WARP_SIZE;
    b->warps[me->index / WARP_SIZE].arrived |= 1u << lane;
    if (open_warp_barrier(b, me->index / WARP_SIZE, mask, lane)) return;
    me->state = State::at_warp_barrier;
    me->warp_mask = mask;
    wait();
}

// --- warp collectives: write, barrier, read, barrier -------------------------------------------------------
inline unsigned lane() { return block->current->index % WARP_SIZE; }
inline Warp& warp() { return block->warps[block->current->index / WARP_SIZE]; }
template <class T>
inline T exchange(uint32_t mask, T value, unsigned source, bool in_range) {
    static_assert(sizeof(T) <= sizeof(Warp::slots[0]), "a lane hands over 16 bytes at most");
    Warp& w = warp();
    std::memcpy(w.slots[lane()], &value, sizeof(T));
    warp_barrier(mask);
    T result;
    std::memcpy(&result, w.slots[in_range ? source : lane()], sizeof(T));
    warp_barrier(mask);
    return result;
}

// --- running a grid ----------------------------------------------------------------------------------------
enum Order { forward = 0, reversed = 1, shuffled = 2 };
struct Launch {
    dim3 grid, block;
    size_t dynamic_shared;
    int order;
    uint64_t seed;
    int threads;
    char* message;  // 256 bytes: what went wrong
};

inline bool release_after_exits(Block* b) {  // threads that returned no longer count at a barrier
    bool any = false;
    for (int id = 0; id < NAMED_BARRIERS; id++)
        if (b->arrived[id] && !b->needed[id] && b->arrived[id] >= b->alive) {
            open_block_barrier(b, id);
            any = true;
        }
    for (Fiber& fiber : b->fibers)
        if (!any && fiber.state == State::at_warp_barrier)
            any = open_warp_barrier(b, fiber.index / WARP_SIZE, fiber.warp_mask, WARP_SIZE);
    return any;
}

inline bool run_block(Block* b, const Launch& launch) {  // false: some threads wait for ever
    unsigned count = b->fibers.size();
    b->alive = count;
    b->votes = 0;
    std::memset(b->arrived, 0, sizeof b->arrived);
    for (Warp& w : b->warps) w.arrived = w.alive = 0;
    for (Fiber& fiber : b->fibers) {
        fiber.state = State::ready;
        fiber.fake_stack = nullptr;
        b->warps[fiber.index / WARP_SIZE].alive |= 1u << (fiber.index % WARP_SIZE);
        prepare(fiber.context, fiber.stack, run_fiber);
    }
    uint64_t random = launch.seed * 6364136223846793005ull + 1442695040888963407ull;
    unsigned first = 0, step = 1;
    while (b->alive) {
        if (launch.order == shuffled) {
            random = random * 6364136223846793005ull + 1;
            first = (random >> 33) % count;
            for (step = ((random >> 20) % count) | 1; std::gcd(step, count) != 1;) step += 2;
        }
        bool any = false;
        for (unsigned k = 0; k < count; k++) {
            unsigned i = launch.order == reversed ? count - 1 - k : unsigned((first + uint64_t(k) * step) % count);
            Fiber& fiber = b->fibers[i];
            if (fiber.state != State::ready) continue;
            any = true;
            resume(b, fiber);
        }
        if (any || !b->alive || release_after_exits(b)) continue;
        unsigned at_block = 0, at_warp = 0;
        for (Fiber& fiber : b->fibers) {
            at_block += fiber.state == State::at_block_barrier;
            at_warp += fiber.state == State::at_warp_barrier;
        }
        std::snprintf(launch.message, 256,
                      "barrier divergence in block (%u, %u, %u): %u threads wait at a block barrier, %u at a warp "
                      "barrier, %u have returned",
                      b->index.x, b->index.y, b->index.z, at_block, at_warp, count - b->alive);
        return false;
    }
    return true;
}

template <class... Arguments, size_t... I>
inline void call(void (*kernel)(Arguments...), void** arguments, std::index_sequence<I...>) {
    kernel(*static_cast<std::remove_cv_t<std::remove_reference_t<Arguments>>*>(arguments[I])...);
}

template <class... Arguments>
int run(void (*kernel)(Arguments...), const Launch& launch, void** arguments) {
    struct Call {
        void (*kernel)(Arguments...);
        void** arguments;
    } what{kernel, arguments};
    const size_t num_blocks = size_t(launch.grid.x) * launch.grid.y * launch.grid.z;
    const unsigned num_threads = launch.block.x * launch.block.y * launch.block.z;
    std::atomic<size_t> next{0};
    std::atomic<int> failed{0};
    auto work = [&] {
        Block b;
        block = &b;
        b.fibers.resize(num_threads);
        b.warps.resize((num_threads + WARP_SIZE - 1) / WARP_SIZE);
        b.size = launch.block;
        b.grid = launch.grid;
        // one allocation per block and exactly as large as asked for, so that a sanitizer sees the borders
        std::vector<char> shared(launch.dynamic_shared + 1024);
        char* aligned = reinterpret_cast<char*>((reinterpret_cast<uintptr_t>(shared.data()) + 1023) & ~uintptr_t(1023));
        b.dynamic_shared = aligned;
        std::vector<char> stacks(STACK_BYTES * num_threads);
        for (unsigned i = 0; i < num_threads; i++) {
            Fiber& fiber = b.fibers[i];
            fiber.index = i;
            fiber.stack = stacks.data() + STACK_BYTES * i;
            fiber.thread = dim3(i % launch.block.x, i / launch.block.x % launch.block.y,
                                i / (launch.block.x * launch.block.y));
        }
        b.entry = [](void* p) {
            Call* c = static_cast<Call*>(p);
            call(c->kernel, c->arguments, std::index_sequence_for<Arguments...>{});
        };
        b.argument = &what;
        for (size_t k; !failed && (k = next++) < num_blocks;) {
            size_t i = launch.order == reversed ? num_blocks - 1 - k : k;
            b.index = dim3(i % launch.grid.x, i / launch.grid.x % launch.grid.y,
                           i / (size_t(launch.grid.x) * launch.grid.y));
            std::memset(b.dynamic_shared, 0xFF, launch.dynamic_shared);
            if (!run_block(&b, launch)) failed = 1;
        }
        block = nullptr;
    };
    // new threads each time: static shared memory begins as zeros, not as what the last launch left there
    std::vector<std::thread> workers;
    for (int t = 0; t < launch.threads && size_t(t) < num_blocks; t++) workers.emplace_back(work);
    for (std::thread& worker : workers) worker.join();
    return failed;
}

}  // namespace emulator

// --- CUDA's names ------------------------------------------------------------------------------------------
#define threadIdx (emulator::block->current->thread)
#define blockIdx (emulator::block->index)
#define blockDim (emulator::block->size)
#define gridDim (emulator::block->grid)

inline void __syncthreads() { emulator::block_barrier(0, 0); }
inline int __syncthreads_or(int vote) {
    emulator::block->votes |= !!vote;
    emulator::block_barrier(0, 0);
    int result = emulator::block->votes_of_last;
    emulator::block_barrier(0, 0);
    return result;
}
inline void __syncwarp(uint32_t mask = ~0u) { emulator::warp_barrier(mask); }
inline void __threadfence() { std::atomic_thread_fence(std::memory_order_seq_cst); }
inline void __threadfence_system() { __threadfence(); }
template <class T>
inline T __shfl_sync(uint32_t mask, T value, int source) {
    return emulator::exchange(mask, value, source & 31, true);
}
template <class T>
inline T __shfl_xor_sync(uint32_t mask, T value, int lanes) {
    return emulator::exchange(mask, value, emulator::lane() ^ lanes, true);
}
template <class T>
inline T __shfl_up_sync(uint32_t mask, T value, unsigned by) {
    return emulator::exchange(mask, value, emulator::lane() - by, emulator::lane() >= by);
}
inline uint32_t __ballot_sync(uint32_t mask, int vote) {
    emulator::Warp& w = emulator::warp();
    w.slots[emulator::lane()][0] = !!vote;
    emulator::warp_barrier(mask);
    uint32_t result = 0;
    for (unsigned lane = 0; lane < 32; lane++)
        if ((mask & w.alive) >> lane & 1) result |= uint32_t(w.slots[lane][0]) << lane;
    emulator::warp_barrier(mask);
    return result;
}

inline int __popc(uint32_t x) { return __builtin_popcount(x); }
inline int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline int __ffsll(long long x) { return __builtin_ffsll(x); }
inline float __uint_as_float(uint32_t x) { float f; std::memcpy(&f, &x, 4); return f; }
inline uint32_t __float_as_uint(float f) { uint32_t x; std::memcpy(&x, &f, 4); return x; }
inline long long __double_as_longlong(double d) { long long x; std::memcpy(&x, &d, 8); return x; }
inline double __longlong_as_double(long long x) { double d; std::memcpy(&d, &x, 8); return d; }
inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
    return (unsigned long long)((unsigned __int128)a * b >> 64);
}
inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }
inline float __fdividef(float a, float b) { return a / b; }
// products and sums that the compiler must not fuse: their bits are part of a contract
inline float __fmul_rn(float a, float b) { volatile float p = a * b; return p; }
inline double __dadd_rn(double a, double b) { return a + b; }
using std::max;
using std::min;

template <class T>
inline T atomicAdd(T* address, T value) { return __atomic_fetch_add(address, value, __ATOMIC_RELAXED); }
template <class T>
inline T atomicMin(T* address, T value) {
    T old;
    __atomic_load(address, &old, __ATOMIC_RELAXED);
    while (value < old && !__atomic_compare_exchange(address, &old, &value, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
    }
    return old;
}
template <class T>
inline T atomicMax(T* address, T value) {
    T old;
    __atomic_load(address, &old, __ATOMIC_RELAXED);
    while (old < value && !__atomic_compare_exchange(address, &old, &value, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
    }
    return old;
}

// What a kernel exports: launch_NAME(sizes, order, seed, threads, message, arguments) -> 0 or 1
#define KDNB_EXPORT(name)                                                                                      \
    extern "C" int launch_##name(const unsigned* sizes, size_t dynamic_shared, int order, uint64_t seed,       \
                                 int threads, char* message, void** arguments) {                               \
        emulator::Launch launch{dim3(sizes[0], sizes[1], sizes[2]), dim3(sizes[3], sizes[4], sizes[5]),        \
                                dynamic_shared, order, seed, threads, message};                                \
        return emulator::run(name, launch, arguments);                                                         \
    }
