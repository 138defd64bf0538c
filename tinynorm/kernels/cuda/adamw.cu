// One step of Adam or AdamW for many parameters in one launch: rules.adam of optim/rules.py, operation by operation.
//
// A block takes a chunk of one parameter: CHUNK elements, or what is left of it. Four tables say which, and what is to be
// done there. Two stay: `chunks` has for each block the parameter's number and the chunk's number in it, `members` has
// for each parameter where it and its moments lie. Two change from step to step: where the gradients lie, and what the
// rule multiplies by and adds.
//
// Compiled with -fmad=false: a product and a sum that are contracted to one operation round once where the formula
// rounds twice, and what takes time here is memory, not arithmetic.
//
// Defined at compilation:
//   X        what parameters and gradients are made of
//   CHUNK    how many elements a block moves        THREADS  how many threads it has

typedef Computed<X>::type A;  // what moments are made of, and what is computed in
constexpr int WIDTH = 16 / sizeof(A);  // elements that are loaded at once; of X they may have fewer bytes

struct Chunk { int member, number; };
struct Member { X* p; A *m, *v; long long size; };
struct Gradient { const X* g; long long place; };  // and the place of the parameter's constants
// In the symbols of rules.adam: shrink = 1 − lr λ and decay = 0 for AdamW, 1 and λ for Adam; keep1 = β₁, new1 = 1 − β₁;
// keep2 = β₂, new2 = √(1 − β₂) / (1 − β₁); least = ε √(1 − β₂ᵗ), rate = lr √(1 − β₂ᵗ) / (1 − β₁ᵗ).
struct Constants { A shrink, decay, keep1, new1, keep2, new2, least, rate; };

// Whether packs can be loaded from here: gradients, and parameters, may begin anywhere.
template <class V> __device__ bool aligned(const V* address) {
  return (unsigned long long)address % sizeof(Pack<V, WIDTH>) == 0;
}

// One element.
__device__ void step(X& p, X gradient, A& m, A& v, const Constants& c) {
  const A x = A(p) * c.shrink;
  A g = gradient;
  if (c.decay != 0) g = g + c.decay * x;
  A part = c.new1 * g;
  m = c.keep1 * m + part;
  part = part * c.new2;  // √(1 − β₂) g
  v = c.keep2 * v + part * part;
  const A root = sqrt(v);
  p = x - m / (root + c.least) * c.rate;
}

extern "C" __global__ void __launch_bounds__(THREADS)
adam(const Member* members, const Chunk* chunks, const Gradient* gradients, const Constants* constants) {
  const Chunk chunk = chunks[blockIdx.x];
  const Member member = members[chunk.member];
  const Gradient gradient = gradients[chunk.member];
  const Constants c = constants[gradient.place];
  const long long start = (long long)chunk.number * CHUNK, left = member.size - start;
  const int n = left < CHUNK ? left : CHUNK;
  const X* g = gradient.g + start;
  X* p = member.p + start;
  A *m = member.m + start, *v = member.v + start;

  int packed = 0;
  if (aligned(p) && aligned(g) && aligned(m) && aligned(v)) {
    packed = n - n % WIDTH;
    for (int i = threadIdx.x * WIDTH; i < packed; i += THREADS * WIDTH) {
      Pack<X, WIDTH> ps = *(const Pack<X, WIDTH>*)(p + i), gs = *(const Pack<X, WIDTH>*)(g + i);
      Pack<A, WIDTH> ms = *(const Pack<A, WIDTH>*)(m + i), vs = *(const Pack<A, WIDTH>*)(v + i);
#pragma unroll
      for (int k = 0; k < WIDTH; k++) step(ps.number[k], gs.number[k], ms.number[k], vs.number[k], c);
      *(Pack<X, WIDTH>*)(p + i) = ps;
      *(Pack<A, WIDTH>*)(m + i) = ms;
      *(Pack<A, WIDTH>*)(v + i) = vs;
    }
  }
  for (int i = packed + threadIdx.x; i < n; i += THREADS) step(p[i], g[i], m[i], v[i], c);
}
