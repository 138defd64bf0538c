// The matrix products of cuBLAS that CuPy calls for matmul, dot, tensordot and einsum, as CuPy finds them in
// libcublas.so.13. Every other function of that library is made by link.py, and answers that it is not supported.
//
// Matrices lie column by column: element (i, j) is at i + j * ld, and of a transposed one at j + i * ld.
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace {

enum Status { SUCCESS = 0, INVALID_VALUE = 7, NOT_SUPPORTED = 15 };
enum DataType { FLOAT32 = 0, FLOAT64 = 1, FLOAT16 = 2, BFLOAT16 = 14 };

struct BFloat16 {
    uint16_t bits;
    operator float() const {
        uint32_t wide = uint32_t(bits) << 16;
        float value;
        memcpy(&value, &wide, 4);
        return value;
    }
    BFloat16& operator=(float value) {  // rounded to nearest, ties to even
        uint32_t wide;
        memcpy(&wide, &value, 4);
        bits = value == value ? (wide + 0x7FFF + (wide >> 16 & 1)) >> 16 : 0x7FFF;
        return *this;
    }
};

// C = alpha op(A) op(B) + beta C, summed in the type of alpha.
template <class T, class Sum>
void multiply(int ta, int tb, int m, int n, int k, Sum alpha, const T* a, int lda, const T* b, int ldb, Sum beta, T* c,
              int ldc) {
    for (int j = 0; j < n; j++)
        for (int i = 0; i < m; i++) {
            Sum sum = 0;
            for (int p = 0; p < k; p++)
                sum += Sum(a[ta ? p + size_t(i) * lda : i + size_t(p) * lda]) *
                       Sum(b[tb ? j + size_t(p) * ldb : p + size_t(j) * ldb]);
            T& out = c[i + size_t(j) * ldc];
            out = beta == 0 ? alpha * sum : alpha * sum + beta * Sum(out);  // with beta = 0, C may be unwritten yet
        }
}

size_t width(int type) { return type == FLOAT64 ? 8 : type == FLOAT32 ? 4 : 2; }

Status product(int ta, int tb, int m, int n, int k, const void* alpha, const void* a, int at, int lda, const void* b,
               int bt, int ldb, const void* beta, void* c, int ct, int ldc) {
    if (at != bt || at != ct) return NOT_SUPPORTED;
    auto call = [&](auto type, auto sum) {
        using T = decltype(type);
        using Sum = decltype(sum);
        multiply<T, Sum>(ta, tb, m, n, k, *(const Sum*)alpha, (const T*)a, lda, (const T*)b, ldb, *(const Sum*)beta,
                         (T*)c, ldc);
        return SUCCESS;
    };
    switch (at) {
        case FLOAT32: return call(float(), float());
        case FLOAT64: return call(double(), double());
        case FLOAT16: return call(_Float16(), float());
        case BFLOAT16: return call(BFloat16(), float());
        default: return NOT_SUPPORTED;
    }
}

int mode;  // of mathematics, which changes nothing here

}  // namespace

extern "C" {

Status cublasCreate_v2(void** handle) { return *handle = &mode, SUCCESS; }
Status cublasDestroy_v2(void*) { return SUCCESS; }
Status cublasSetStream_v2(void*, void*) { return SUCCESS; }
Status cublasSetMathMode(void*, int set) { return mode = set, SUCCESS; }
Status cublasGetMathMode(void*, int* get) { return *get = mode, SUCCESS; }
Status cublasSetPointerMode_v2(void*, int device) { return device ? NOT_SUPPORTED : SUCCESS; }
Status cublasGetPointerMode_v2(void*, int* device) { return *device = 0, SUCCESS; }

Status cublasGemmEx(void*, int ta, int tb, int m, int n, int k, const void* alpha, const void* a, int at, int lda,
                    const void* b, int bt, int ldb, const void* beta, void* c, int ct, int ldc, int, int) {
    return product(ta, tb, m, n, k, alpha, a, at, lda, b, bt, ldb, beta, c, ct, ldc);
}

Status cublasGemmStridedBatchedEx(void*, int ta, int tb, int m, int n, int k, const void* alpha, const void* a, int at,
                                  int lda, long long sa, const void* b, int bt, int ldb, long long sb, const void* beta,
                                  void* c, int ct, int ldc, long long sc, int batch, int, int) {
    Status status = SUCCESS;
    for (long long i = 0; i < batch && status == SUCCESS; i++)
        status = product(ta, tb, m, n, k, alpha, (const char*)a + i * sa * width(at), at, lda,
                         (const char*)b + i * sb * width(bt), bt, ldb, beta, (char*)c + i * sc * width(ct), ct, ldc);
    return status;
}

#define GEMM(letter, T, type)                                                                                          \
    Status cublas##letter##gemm_v2(void*, int ta, int tb, int m, int n, int k, const T* alpha, const T* a, int lda,    \
                                   const T* b, int ldb, const T* beta, T* c, int ldc) {                                \
        return product(ta, tb, m, n, k, alpha, a, type, lda, b, type, ldb, beta, c, type, ldc);                        \
    }                                                                                                                  \
    Status cublas##letter##gemmBatched(void*, int ta, int tb, int m, int n, int k, const T* alpha, const T* const* a,  \
                                       int lda, const T* const* b, int ldb, const T* beta, T* const* c, int ldc,       \
                                       int batch) {                                                                    \
        for (int i = 0; i < batch; i++)                                                                                \
            multiply<T, T>(ta, tb, m, n, k, *alpha, a[i], lda, b[i], ldb, *beta, c[i], ldc);                           \
        return SUCCESS;                                                                                                \
    }
GEMM(S, float, FLOAT32)
GEMM(D, double, FLOAT64)




}  // extern "C"
