/* What HIP C++ means when the host runs it: put before every kernel that the stand-in compiles.
 *
 * The threads of a block run one after the other; a kernel with __syncthreads gets a stack for each,
 * and they take turns at it. Blocks run one after the other, in the thread of the stream.
 */
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <ucontext.h>
#include <utility>
#include <vector>

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __restrict__ __restrict
#define __shared__ static thread_local

struct standin_dim3 { unsigned x, y, z; };
static thread_local standin_dim3 gridDim, blockDim, blockIdx, threadIdx;

static thread_local ucontext_t standin_turns;
static thread_local ucontext_t *standin_mine;
static inline void __syncthreads() { swapcontext(standin_mine, &standin_turns); }

template <class T, class U> static T atomicAdd(T *at, U more) {
    return __atomic_fetch_add(at, (T)more, __ATOMIC_SEQ_CST);
}

/* GCC 12 has no _Float16 in C++. */
struct standin_half {
    uint16_t bits;
    operator float() const {
        int exponent = bits >> 10 & 31, fraction = bits & 1023;
        float made = exponent == 31 ? (fraction ? NAN : INFINITY)
                     : exponent     ? std::ldexp(1024.0f + fraction, exponent - 25)
                                    : std::ldexp((float)fraction, -24);
        return bits >> 15 ? -made : made;
    }
};
#define _Float16 standin_half

template <class... A, size_t... I>
static void standin_call(void (*kernel)(A...), void **given, std::index_sequence<I...>) {
    kernel(*(A *)given[I]...);
}

template <class... A> static void standin_thread(void (*kernel)(A...), void **given) {
    standin_call(kernel, given, std::index_sequence_for<A...>());
}

template <class... A> static size_t standin_sizes(void (*)(A...), size_t *sizes) {
    size_t all[] = {sizeof(A)..., 0};
    if (sizes) memcpy(sizes, all, sizeof...(A) * sizeof(size_t));
    return sizeof...(A);
}

struct standin_fiber {
    ucontext_t context;
    std::vector<char> stack;
    standin_dim3 index;
    bool done;
};

template <class F> struct standin_work {
    static thread_local F kernel;
    static thread_local void **given;
    static thread_local standin_fiber *now;
    static void enter() {
        standin_thread(kernel, given);
        now->done = true;
        swapcontext(&now->context, &standin_turns);
    }
};
template <class F> thread_local F standin_work<F>::kernel;
template <class F> thread_local void **standin_work<F>::given;
template <class F> thread_local standin_fiber *standin_work<F>::now;

template <class F> static void standin_block(F kernel, void **given) {
    std::vector<standin_fiber> fibers((size_t)blockDim.x * blockDim.y * blockDim.z);
    typedef standin_work<F> Work;
    Work::kernel = kernel, Work::given = given;
    unsigned number = 0;
    for (auto &each : fibers) {
        each.stack.resize(32 << 10);
        each.index = {number % blockDim.x, number / blockDim.x % blockDim.y,
                      number / blockDim.x / blockDim.y};
        each.done = false;
        getcontext(&each.context);
        each.context.uc_stack.ss_sp = each.stack.data();
        each.context.uc_stack.ss_size = each.stack.size();
        each.context.uc_link = nullptr;
        makecontext(&each.context, Work::enter, 0);
        number++;
    }
    for (bool left = true; left;) {
        left = false;
        for (auto &each : fibers) {
            if (each.done) continue;
            Work::now = &each, standin_mine = &each.context, threadIdx = each.index;
            swapcontext(&standin_turns, &each.context);
            left = left || !each.done;
        }
    }
}

template <class F>
static void standin_run(F kernel, void **given, const unsigned *grid, const unsigned *block,
                        bool together) {
    gridDim = {grid[0], grid[1], grid[2]}, blockDim = {block[0], block[1], block[2]};
    for (blockIdx.z = 0; blockIdx.z < grid[2]; blockIdx.z++)
        for (blockIdx.y = 0; blockIdx.y < grid[1]; blockIdx.y++)
            for (blockIdx.x = 0; blockIdx.x < grid[0]; blockIdx.x++) {
                if (together) {
                    standin_block(kernel, given);
                    continue;
                }
                for (threadIdx.z = 0; threadIdx.z < block[2]; threadIdx.z++)
                    for (threadIdx.y = 0; threadIdx.y < block[1]; threadIdx.y++)
                        for (threadIdx.x = 0; threadIdx.x < block[0]; threadIdx.x++)
                            standin_thread(kernel, given);
            }
}

#define STANDIN_KERNEL(name, together)                                                         \
    extern "C" size_t standin_sizes_##name(size_t *sizes) { return standin_sizes(name, sizes); } \
    extern "C" void standin_run_##name(void **given, const unsigned *grid, const unsigned *block) { \
        standin_run(name, given, grid, block, together);                                       \
    }
