// float16 as CUDA has it: arithmetic in float, each result rounded.
#pragma once

struct __half_raw {
    unsigned short x;
};

struct __half {
    _Float16 value;

    __half() = default;
    __half(const __half_raw& raw) : value(cuda_bits<_Float16>(raw.x)) {}
    template <class T, class = std::enable_if_t<std::is_arithmetic_v<T>>>
    __half(T x) : value(_Float16(x)) {}

    operator float() const { return value; }
    operator __half_raw() const { return {cuda_bits<unsigned short>(value)}; }
};
typedef __half half;

struct alignas(4) __half2 {
    __half x, y;
};
typedef __half2 half2;

inline __half __float2half(float x) { return __half(x); }
inline __half __float2half_rn(float x) { return __half(x); }
inline __half __double2half(double x) { return __half(x); }
inline float __half2float(__half x) { return x; }
inline __half2 __floats2half2_rn(float x, float y) { return {__half(x), __half(y)}; }
inline float2 __half22float2(__half2 v) { return {float(v.x), float(v.y)}; }
inline float __low2float(__half2 v) { return v.x; }
inline float __high2float(__half2 v) { return v.y; }
inline unsigned short __half_as_ushort(__half x) { return cuda_bits<unsigned short>(x.value); }
inline __half __ushort_as_half(unsigned short x) { return __half(__half_raw{x}); }
inline bool __hisnan(__half x) { return x.value != x.value; }

#define CUDA_HALF_OPERATOR(op) \
    inline __half operator op(__half a, __half b) { return __half(float(a) op float(b)); }
CUDA_HALF_OPERATOR(+)
CUDA_HALF_OPERATOR(-)
CUDA_HALF_OPERATOR(*)
CUDA_HALF_OPERATOR(/)
#undef CUDA_HALF_OPERATOR
