// bfloat16 as CUDA has it: the upper half of a float32, rounded to nearest, ties to even.
#pragma once

struct __nv_bfloat16_raw {
    unsigned short x;
};

struct __nv_bfloat16 {
    unsigned short bits;

    __nv_bfloat16() = default;
    __nv_bfloat16(const __nv_bfloat16_raw& raw) : bits(raw.x) {}
    template <class T, class = std::enable_if_t<std::is_arithmetic_v<T>>>
    __nv_bfloat16(T number) {
        float x = float(number);
        unsigned wide = cuda_bits<unsigned>(x);
        bits = x == x ? (wide + 0x7FFF + (wide >> 16 & 1)) >> 16 : 0x7FFF;
    }

    operator float() const { return cuda_bits<float>(unsigned(bits) << 16); }
    operator __nv_bfloat16_raw() const { return {bits}; }
};
typedef __nv_bfloat16 nv_bfloat16;

struct alignas(4) __nv_bfloat162 {
    __nv_bfloat16 x, y;
};

inline __nv_bfloat16 __float2bfloat16(float x) { return __nv_bfloat16(x); }
inline __nv_bfloat16 __float2bfloat16_rn(float x) { return __nv_bfloat16(x); }
inline float __bfloat162float(__nv_bfloat16 x) { return x; }
inline __nv_bfloat162 __floats2bfloat162_rn(float x, float y) { return {__nv_bfloat16(x), __nv_bfloat16(y)}; }
inline float2 __bfloat1622float2(__nv_bfloat162 v) { return {float(v.x), float(v.y)}; }
inline unsigned short __bfloat16_as_ushort(__nv_bfloat16 x) { return x.bits; }
inline __nv_bfloat16 __ushort_as_bfloat16(unsigned short x) { return __nv_bfloat16(__nv_bfloat16_raw{x}); }
inline bool __hisnan(__nv_bfloat16 x) { return (x.bits & 0x7FFF) > 0x7F80; }
inline bool __hisinf(__nv_bfloat16 x) { return (x.bits & 0x7FFF) == 0x7F80; }
inline bool operator==(__nv_bfloat16 a, __nv_bfloat16 b) { return float(a) == float(b); }

#define CUDA_BFLOAT16_OPERATOR(op) \
    inline __nv_bfloat16 operator op(__nv_bfloat16 a, __nv_bfloat16 b) { return __nv_bfloat16(float(a) op float(b)); }
CUDA_BFLOAT16_OPERATOR(+)
CUDA_BFLOAT16_OPERATOR(-)
CUDA_BFLOAT16_OPERATOR(*)
CUDA_BFLOAT16_OPERATOR(/)
#undef CUDA_BFLOAT16_OPERATOR
