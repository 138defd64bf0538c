// What several kernels need; launch.py puts it before each of them.
//
// CUDA, for who knows C. A __global__ function, a kernel, is run by many threads, and calls __device__ functions. Threads
// come in blocks: threadIdx is a thread's place in its block, and blockIdx the block's among all; blockDim and gridDim are
// how many there are of each. __launch_bounds__ promises that blocks have no more threads than that, so that the compiler
// knows how many registers each may use.
//
// 32 neighbouring threads are a warp, which loads and stores together: fastest where its threads' addresses are neighbours,
// too. The threads of a warp can read each other's registers: in __shfl_xor_sync(mask, v, d) each gets the v of the thread
// whose number differs from its own in the bit d, and the mask says that all 32 take part. The threads of a block have
// __shared__ memory in common, and a barrier, __syncthreads: none goes on before all have come, and what was written before
// it can be read after it. All must come; so a thread that has nothing to do comes along.
//
// An array lies in registers if each index into it is known to the compiler, for which #pragma unroll writes loops out.

#include <cuda_bf16.h>  // __nv_bfloat16 and half, which turn into a float and back by themselves
#include <cuda_fp16.h>

// What numbers of a type are computed in: double in double, all others in float.
template <class V> struct Computed { typedef float type; };
template <> struct Computed<double> { typedef double type; };

// Numbers that one instruction loads or stores, up to 16 bytes of them, at an address that is a multiple of their size.
template <class V, int N> struct alignas(N * sizeof(V) < 16 ? N * sizeof(V) : 16) Pack { V number[N]; };

// A row, or a piece of one, lies among its `threads`, threadIdx.x, like this: each owns `owned` numbers, in packs of
// `vector`, and neighbouring threads own neighbouring packs, so that a warp loads what lies together. This is the column
// of the k-th number of a thread.
template <int threads, int vector> __device__ int column(int k) {
  return (k / vector * threads + threadIdx.x) * vector + k % vector;
}

// What a thread owns of the n numbers at `from`; `beyond` stands for those that are not there. `vector` divides n.
template <int threads, int vector, int owned, class V, class A>
__device__ void load(A (&to)[owned], const V* from, long long n, A beyond = 0) {
#pragma unroll
  for (int k = 0; k < owned; k += vector) {
    const int c = column<threads, vector>(k);
    const bool inside = c < n;
    Pack<V, vector> pack;
    if (inside) pack = *(const Pack<V, vector>*)(from + c);
#pragma unroll
    for (int i = 0; i < vector; i++) to[k + i] = inside ? A(pack.number[i]) : beyond;
  }
}

// The way back.
template <int threads, int vector, int owned, class V, class A>
__device__ void store(V* to, const A (&from)[owned], long long n) {
#pragma unroll
  for (int k = 0; k < owned; k += vector) {
    const int c = column<threads, vector>(k);
    Pack<V, vector> pack;
#pragma unroll
    for (int i = 0; i < vector; i++) pack.number[i] = V(from[k + i]);
    if (c < n) *(Pack<V, vector>*)(to + c) = pack;
  }
}

struct Sum { template <class V> __device__ V operator()(V a, V b) const { return a + b; } };
struct Max { template <class V> __device__ V operator()(V a, V b) const { return a < b || b != b ? b : a; } };  // or nan

// v joined over `width` neighbouring threads of a warp. Each adds what its partner adds, so all get the same bits.
template <int width, class Join, class V> __device__ V over_warp(V v) {
#pragma unroll
  for (int d = width / 2; d > 0; d /= 2) v = Join()(v, __shfl_xor_sync(0xffffffffu, v, d));
  return v;
}

// v joined over the `threads` of a row (blockDim.x, a power of two), in a fixed order; each of them gets the result.
// A block may take several rows, threadIdx.y. All of its threads must come here, for there are barriers.
template <int threads, class Join, class V> __device__ V over_row(V v) {
  if constexpr (threads <= 32) return over_warp<threads, Join>(v);
  else {
    constexpr int warps = threads / 32;
    __shared__ V parts[32];  // one of each warp of the block
    V* part = parts + threadIdx.y * warps;
    v = over_warp<32, Join>(v);
    if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = v;
    __syncthreads();
    v = part[threadIdx.x % warps];
    __syncthreads();  // all have read: parts may be written again
    return over_warp<warps, Join>(v);
  }
}
