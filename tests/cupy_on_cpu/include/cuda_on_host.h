// CUDA C++ as g++ reads it: what NVRTC knows without an include, in terms of kernel.h. Only what the kernels use that
// CuPy writes for tinynorm, and tinynorm's own; the rest is an error of the compiler.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <initializer_list>
#include <type_traits>
#include <utility>

#include "kernel.h"

#define __CUDACC_VER_MAJOR__ 13
#define __CUDACC_VER_MINOR__ 0
#define __CUDA_ARCH__ 900

#define __global__
#define __device__
#define __host__
#define __constant__ static
#define __restrict__ __restrict
#define __shared__ static thread_local
#define __launch_bounds__(...)
#define __align__(n) __attribute__((aligned(n)))
#define __forceinline__ inline __attribute__((always_inline))
#undef __noinline__
#define __noinline__ __attribute__((noinline))

using std::isfinite;
using std::isinf;
using std::isnan;
using std::max;
using std::min;
using std::ptrdiff_t;
using std::signbit;
using std::size_t;

// -------------------------------------------------------------------------------------------------------- vector types

#define CUDA_VECTORS(T, name, two, four)                                          \
    struct name##1 { T x; };                                                      \
    struct alignas(two) name##2 { T x, y; };                                      \
    struct name##3 { T x, y, z; };                                                \
    struct alignas(four) name##4 { T x, y, z, w; };                               \
    inline name##1 make_##name##1(T x) { return {x}; }                            \
    inline name##2 make_##name##2(T x, T y) { return {x, y}; }                    \
    inline name##3 make_##name##3(T x, T y, T z) { return {x, y, z}; }            \
    inline name##4 make_##name##4(T x, T y, T z, T w) { return {x, y, z, w}; }
CUDA_VECTORS(signed char, char, 2, 4)
CUDA_VECTORS(unsigned char, uchar, 2, 4)
CUDA_VECTORS(short, short, 4, 8)
CUDA_VECTORS(unsigned short, ushort, 4, 8)
CUDA_VECTORS(int, int, 8, 16)
CUDA_VECTORS(unsigned, uint, 8, 16)
CUDA_VECTORS(long long, longlong, 16, 16)
CUDA_VECTORS(unsigned long long, ulonglong, 16, 16)
CUDA_VECTORS(float, float, 8, 16)
CUDA_VECTORS(double, double, 16, 16)
#undef CUDA_VECTORS

struct dim3 {
    unsigned x, y, z;
    constexpr dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};

// ------------------------------------------------------------------------------------------------- places and waiting

#define threadIdx cuda_thread
#define blockIdx cuda_block
#define blockDim cuda_block_size
#define gridDim cuda_grid_size
constexpr int warpSize = 32;

#define __syncthreads() ((void)cuda_wait_block(__LINE__, false))
#define __syncthreads_count(predicate) int(cuda_wait_block(__LINE__, predicate).yes)
#define __syncthreads_or(predicate) int(cuda_wait_block(__LINE__, predicate).yes > 0)
#define __syncthreads_and(predicate) cuda_all(cuda_wait_block(__LINE__, predicate))
inline int cuda_all(Votes votes) { return votes.yes == votes.voters; }

constexpr unsigned CUDA_WARP = 0xFFFFFFFFu;
inline void cuda_sync_warp(int line, unsigned mask = CUDA_WARP) { cuda_wait_warp(line, mask, nullptr, 0); }
#define __syncwarp(...) cuda_sync_warp(__LINE__ __VA_OPT__(, ) __VA_ARGS__)

// A shuffle stays inside its segment of `width` lanes; who would reach out of it keeps its own value.
template <class T>
T cuda_shuffle(int line, unsigned mask, T value, int source, int first, int last) {
    static_assert(sizeof(T) <= 16);
    cuda_wait_warp(line, mask, &value, sizeof value);
    if (source < first || source >= last) return value;
    memcpy((void*)&value, cuda_from_lane(source), sizeof value);
    return value;
}
template <class T>
T cuda_shfl(int line, unsigned mask, T value, int source, int width = 32) {
    int first = cuda_lane() / width * width;
    return cuda_shuffle(line, mask, value, first + (source & (width - 1)), first, first + width);
}
template <class T>
T cuda_shfl_up(int line, unsigned mask, T value, unsigned by, int width = 32) {
    int lane = cuda_lane(), first = lane / width * width;
    return cuda_shuffle(line, mask, value, lane - int(by), first, first + width);
}
template <class T>
T cuda_shfl_down(int line, unsigned mask, T value, unsigned by, int width = 32) {
    int lane = cuda_lane(), first = lane / width * width;
    return cuda_shuffle(line, mask, value, lane + int(by), first, first + width);
}
template <class T>
T cuda_shfl_xor(int line, unsigned mask, T value, int with, int width = 32) {
    int lane = cuda_lane();
    return cuda_shuffle(line, mask, value, lane ^ with, 0, lane / width * width + width);
}
#define __shfl_sync(...) cuda_shfl(__LINE__, __VA_ARGS__)
#define __shfl_up_sync(...) cuda_shfl_up(__LINE__, __VA_ARGS__)
#define __shfl_down_sync(...) cuda_shfl_down(__LINE__, __VA_ARGS__)
#define __shfl_xor_sync(...) cuda_shfl_xor(__LINE__, __VA_ARGS__)

inline unsigned cuda_ballot(int line, unsigned mask, int predicate) {
    cuda_wait_warp(line, mask, &predicate, sizeof predicate);
    unsigned lanes = 0;
    for (int lane = 0; lane < 32; lane++)
        if (cuda_came(lane) && *(const int*)cuda_from_lane(lane)) lanes |= 1u << lane;
    return lanes;
}
#define __ballot_sync(mask, predicate) cuda_ballot(__LINE__, mask, predicate)
#define __any_sync(mask, predicate) int(cuda_ballot(__LINE__, mask, predicate) != 0)
#define __all_sync(mask, predicate) int(cuda_ballot(__LINE__, mask, !(predicate)) == 0)

inline void __threadfence() {}
inline void __threadfence_block() {}

// ---------------------------------------------------------------------------------------------------------- operations

// One thread runs at a time, so a read and a write in one call are atomic.
#define CUDA_ATOMIC(name, expression)                                   \
    template <class T, class = std::enable_if_t<std::is_arithmetic_v<T>>> \
    T name(T* address, std::common_type_t<T> value) {                   \
        T old = *address;                                               \
        *address = expression;                                          \
        return old;                                                     \
    }
CUDA_ATOMIC(atomicAdd, T(old + value))
CUDA_ATOMIC(atomicSub, T(old - value))
CUDA_ATOMIC(atomicMax, old < value ? value : old)
CUDA_ATOMIC(atomicMin, value < old ? value : old)
CUDA_ATOMIC(atomicExch, value)
CUDA_ATOMIC(atomicAnd, old& value)
CUDA_ATOMIC(atomicOr, old | value)
CUDA_ATOMIC(atomicXor, old ^ value)
#undef CUDA_ATOMIC
template <class T>
T atomicCAS(T* address, std::common_type_t<T> compare, std::common_type_t<T> value) {
    T old = *address;
    if (old == compare) *address = value;
    return old;
}

template <class T> T __ldg(const T* address) { return *address; }
template <class T> T __ldcs(const T* address) { return *address; }
template <class T> T __ldcg(const T* address) { return *address; }
template <class T> T __ldca(const T* address) { return *address; }
template <class T> void __stcs(T* address, T value) { *address = value; }
template <class T> void __stcg(T* address, T value) { *address = value; }
template <class T> void __stwt(T* address, T value) { *address = value; }

template <class To, class From>
To cuda_bits(From value) {
    static_assert(sizeof(To) == sizeof(From));
    To bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}
inline int __float_as_int(float x) { return cuda_bits<int>(x); }
inline float __int_as_float(int x) { return cuda_bits<float>(x); }
inline unsigned __float_as_uint(float x) { return cuda_bits<unsigned>(x); }
inline float __uint_as_float(unsigned x) { return cuda_bits<float>(x); }
inline long long __double_as_longlong(double x) { return cuda_bits<long long>(x); }
inline double __longlong_as_double(long long x) { return cuda_bits<double>(x); }
inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
inline int __clz(int x) { return x ? __builtin_clz(x) : 32; }
inline int __clzll(long long x) { return x ? __builtin_clzll(x) : 64; }
inline int __ffs(int x) { return __builtin_ffs(x); }

inline float rsqrtf(float x) { return 1.0f / std::sqrt(x); }
inline double rsqrt(double x) { return 1.0 / std::sqrt(x); }
inline float rsqrt(float x) { return rsqrtf(x); }
inline float __frsqrt_rn(float x) { return float(1.0 / std::sqrt(double(x))); }
inline float __fsqrt_rn(float x) { return std::sqrt(x); }
inline double __dsqrt_rn(double x) { return std::sqrt(x); }
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fsub_rn(float a, float b) { return a - b; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __fmaf_rn(float a, float b, float c) { return std::fma(a, b, c); }
inline float __frcp_rn(float a) { return 1.0f / a; }
inline double __dadd_rn(double a, double b) { return a + b; }
inline double __dsub_rn(double a, double b) { return a - b; }
inline double __dmul_rn(double a, double b) { return a * b; }
inline double __ddiv_rn(double a, double b) { return a / b; }
inline double __fma_rn(double a, double b, double c) { return std::fma(a, b, c); }
inline float __fdividef(float a, float b) { return a / b; }
inline float __expf(float x) { return std::exp(x); }
inline float __logf(float x) { return std::log(x); }
inline float __log2f(float x) { return std::log2(x); }
inline float __powf(float x, float y) { return std::pow(x, y); }
inline float __saturatef(float x) { return x > 0 ? x < 1 ? x : 1 : 0; }

// ---------------------------------------------------------------------------------------- kernels, for who runs them

namespace cuda_on_host {

template <class T>
constexpr Parameter parameter() {
    if constexpr (std::is_pointer_v<T>) {
        using To = std::remove_pointer_t<T>;
        if constexpr (std::is_void_v<To>) return {'P', sizeof(T), 0};
        else return {'P', sizeof(T), sizeof(To)};
    } else if constexpr (std::is_floating_point_v<T>) return {'f', sizeof(T), 0};
    else if constexpr (std::is_integral_v<T> || std::is_enum_v<T>) return {'i', sizeof(T), 0};
    else return {'s', sizeof(T), 0};
}

template <auto F>
struct Description;
template <class... A, void (*F)(A...)>
struct Description<F> {
    static constexpr Parameter parameters[sizeof...(A) + 1] = {parameter<std::remove_cv_t<A>>()...};
    static constexpr unsigned count = sizeof...(A);
    template <size_t... I>
    static void call(void** arguments, std::index_sequence<I...>) {
        F(*(std::remove_cv_t<A>*)arguments[I]...);
    }
    static void thread(void** arguments) { call(arguments, std::index_sequence_for<A...>()); }
};

static thread_local char anchor;
static void* anchor_address() { return &anchor; }

}  // namespace cuda_on_host

#define CUDA_KERNEL(name, waits)                                                                                      \
    extern "C" Kernel name##__kernel;                                                                                 \
    Kernel name##__kernel = {#name,                                                                                   \
                             cuda_on_host::Description<&name>::thread,                                                \
                             cuda_on_host::Description<&name>::count,                                                 \
                             cuda_on_host::Description<&name>::parameters,                                            \
                             waits,                                                                                   \
                             false,                                                                                   \
                             cuda_on_host::anchor_address};
