// RMSNorm and, where CENTRED, LayerNorm: the formulas of formulas/norms.py, in their symbols
//
//     u = s x,   c = u − mean(u),   r = (mean(c²) + s² ε)^(−1/2),   h = r c,   y = g h + b                  forward
//     h̄ = ȳ g,   x̄ = s r (h̄ − mean(h̄) − h · mean(h̄ h)),   ḡ = Σ_rows ȳ h,   b̄ = Σ_rows ȳ                  backward
//
// RMSNorm has u for c, and neither b nor mean(h̄). s is 1, unless squares leave the range of A.
//
// Defined at compilation:
//   X        what x, g, b and y are made of         D       what ȳ is made of
//   THREADS  how many threads take a row            OWNED   how many of its numbers each of them keeps in registers
//   VECTOR   how many of these it loads at once     LONG    whether rows are longer than that, and taken in pieces
//   BLOCK    how many threads a block has at most   CENTRED whether this is LayerNorm

typedef Computed<X>::type A;  // what is computed in, and what gradients are made of
constexpr int PIECE = THREADS * OWNED;

// What the forward finds out about a row, and the backward needs. mean + rest is mean(u), or mean(x) where s > 1.
struct alignas(16) Row { A s, r, mean, rest; };

// Whether the k-th number of this thread is one of n.
__device__ bool inside(int k, int n) { return column<THREADS, VECTOR>(k) < n; }

// c, from an x that is 0 beyond the end of the row; it is 0 there, too. Numbers that are too large are made smaller before
// their mean is taken, those that are too small are made larger after it: they may have a large mean.
__device__ A centred(A x, int k, int n, const Row& row) {
  if (!CENTRED) return row.s * x;
  return inside(k, n) ? (min(row.s, A(1)) * x - row.mean - row.rest) * max(row.s, A(1)) : 0;
}

// Σ c and Σ c² over what this thread owns of n numbers, which are in v already unless the row is LONG.
__device__ void sums(A (&v)[OWNED], const X* x, int n, const Row& row, A& sum, A& square) {
  sum = square = 0;
  for (int at = 0; at < (LONG ? n : 1); at += PIECE) {
    if (LONG) load<THREADS, VECTOR>(v, x + at, n - at);
    A s = 0, q = 0;  // of the piece: one running total over all of them would drift
#pragma unroll
    for (int k = 0; k < OWNED; k++) {
      const A c = centred(v[k], k, n - at, row);
      s += c;
      q += c * c;
    }
    sum += s, square += q;
  }
}

// All about a row that is multiplied by s. Where n is 0, and not N, the thread has no row and comes to the barriers only.
__device__ Row statistics(A (&v)[OWNED], const X* x, int n, int N, double eps, A s) {
  Row row = {min(s, A(1)), 0, 0, 0};
  A sum, square, variance = 0;
  bool known = false;
  if (CENTRED) {
    sums(v, x, min(n, PIECE), row, sum, square);
    row.mean = over_row<THREADS, Sum>(sum) / min(N, PIECE);
    sums(v, x, n, row, sum, square);  // what the rounding of the mean has left in c, or the mean of a piece alone
    const A rest = over_row<THREADS, Sum>(sum) / N;
    if (LONG) {  // mean((c − rest)²) = mean(c²) − rest² saves reading the row once more, unless that cancels
      variance = over_row<THREADS, Sum>(square) / N - rest * rest;
      known = s <= 1 && variance >= rest * rest;
    }
    row.rest = rest;
  }
  row.s = s;
  if (!known) {
    sums(v, x, n, row, sum, square);
    variance = over_row<THREADS, Sum>(square) / N;
  }
  row.r = 1 / sqrt(variance + A(eps * s * s));
  return row;
}

// Mean squares beyond LARGEST² may have overflowed, and those below LARGEST⁻² have lost digits to underflow, or all. Such
// a row is multiplied by LARGEST^∓2, a power of two, which rounds nothing.
constexpr A LARGEST = A(sizeof(A) == 4 ? 0x1p48 : 0x1p384);
constexpr A NORMAL = A(sizeof(A) == 4 ? 0x1p-126 : 0x1p-1022);  // GPUs take smaller float32 for 0

extern "C" __global__ void __launch_bounds__(BLOCK)
norm_forward(const X* x, const X* g, const X* b, X* y, Row* rows, long long M, int N, double eps) {
  const long long i = (long long)blockIdx.x * blockDim.y + threadIdx.y;
  const int n = i < M ? N : 0;
  x += i * N, y += i * N;
  A v[OWNED], gain[OWNED], bias[OWNED] = {};
  if (!LONG) load<THREADS, VECTOR>(v, x, n);
  Row row = statistics(v, x, n, N, eps, 1);
  const bool large = !(row.r > 0), small = row.r > LARGEST;
  // A barrier that tells all threads whether any of them says yes: the other rows of the block come along.
  if (__syncthreads_or(large || small))
    row = statistics(v, x, n, N, eps, large ? 1 / LARGEST / LARGEST : small ? LARGEST * LARGEST : 1);
  if (isinf(row.r)) row.r = 0;  // a row without any size, at ε = 0: by convention h is 0
  for (int at = 0; at < (LONG ? N : 1); at += PIECE) {
    if (LONG) load<THREADS, VECTOR>(v, x + at, n - at);
    load<THREADS, VECTOR>(gain, g + at, g ? n - at : 0, A(1));
    if (CENTRED) load<THREADS, VECTOR>(bias, b + at, b ? n - at : 0);
#pragma unroll
    for (int k = 0; k < OWNED; k++) v[k] = gain[k] * (centred(v[k], k, n - at, row) * row.r) + bias[k];
    store<THREADS, VECTOR>(y + at, v, n - at);
  }
  if (n && threadIdx.x == 0) rows[i] = row;
}

// h and ȳ of what a thread owns of n numbers.
__device__ void take(A (&h)[OWNED], A (&dy)[OWNED], const X* x, const D* from, int n, const Row& row) {
  load<THREADS, VECTOR>(h, x, n);
  load<THREADS, VECTOR>(dy, from, n);
#pragma unroll
  for (int k = 0; k < OWNED; k++) h[k] = centred(h[k], k, n, row) * row.r;
}

// Σ over the block's rows of threads, in their order; the first of them gets it.
__device__ void add_rows(A (&sum)[OWNED]) {
  if constexpr (THREADS < BLOCK) {
    __shared__ A shared[BLOCK * OWNED];
    A* mine = shared + threadIdx.y * THREADS + threadIdx.x;
#pragma unroll
    for (int k = 0; k < OWNED; k++) mine[k * BLOCK] = sum[k];
    __syncthreads();
    if (threadIdx.y == 0)
      for (int j = 1; j < blockDim.y; j++)
#pragma unroll
        for (int k = 0; k < OWNED; k++) sum[k] += mine[k * BLOCK + j * THREADS];
    __syncthreads();
  }
}

// A block takes every gridDim.x-th row, and sums its part of ḡ and b̄ on the way: one row of dg and db each, which are
// summed later. Any of dx, dg and db may be 0, if it is not needed.
extern "C" __global__ void __launch_bounds__(BLOCK)
norm_backward(const X* x, const X* g, const D* dy, const Row* rows, A* dx, A* dg, A* db, long long M, int N) {
  dg += dg ? (long long)blockIdx.x * N : 0, db += db ? (long long)blockIdx.x * N : 0;
  A h[OWNED], dh[OWNED], gain[OWNED], dgain[OWNED] = {}, dbias[OWNED] = {};
  for (long long first = (long long)blockIdx.x * blockDim.y; first < M; first += (long long)gridDim.x * blockDim.y) {
    const long long i = first + threadIdx.y;
    const int n = i < M ? N : 0;
    const Row row = n ? rows[i] : Row{};
    A mean = 0, slope = 0;  // of h̄, and of h̄ h
    for (int at = 0; at < (LONG ? N : 1); at += PIECE) {
      take(h, dh, x + i * N + at, dy + i * N + at, n - at, row);
      if (LONG) {  // the sums are more than fit in registers, and lie in dg and db from the block's first row on
        load<THREADS, VECTOR>(dgain, dg + at, dg && first != blockIdx.x ? n - at : 0);
        if (CENTRED) load<THREADS, VECTOR>(dbias, db + at, db && first != blockIdx.x ? n - at : 0);
      }
      load<THREADS, VECTOR>(gain, g + at, g ? n - at : 0, A(1));
      A s = 0, q = 0;
#pragma unroll
      for (int k = 0; k < OWNED; k++) {
        dgain[k] += dh[k] * h[k];
        if (CENTRED) dbias[k] += dh[k];
        dh[k] *= gain[k];
        s += dh[k];
        q += dh[k] * h[k];
      }
      mean += s, slope += q;
      if (LONG && dg) store<THREADS, VECTOR>(dg + at, dgain, n - at);
      if (LONG && CENTRED && db) store<THREADS, VECTOR>(db + at, dbias, n - at);
    }
    if (!dx) continue;
    mean = CENTRED ? over_row<THREADS, Sum>(mean) / N : 0;
    slope = over_row<THREADS, Sum>(slope) / N;
    const A rate = row.r * row.s;  // at once, where that is in range: either alone may take huge or tiny ȳ out of it
    const bool apart = isinf(rate) || rate < NORMAL;
    const A one = apart ? row.r : rate, other = apart ? row.s : 1;
    for (int at = 0; at < (LONG ? N : 1); at += PIECE) {
      if (LONG) {
        take(h, dh, x + i * N + at, dy + i * N + at, n - at, row);
        load<THREADS, VECTOR>(gain, g + at, g ? n - at : 0, A(1));
#pragma unroll
        for (int k = 0; k < OWNED; k++) dh[k] *= gain[k];
      }
#pragma unroll
      for (int k = 0; k < OWNED; k++) dh[k] = (dh[k] - mean - h[k] * slope) * one * other;
      store<THREADS, VECTOR>(dx + i * N + at, dh, n - at);
    }
  }
  if (!LONG) {
    add_rows(dgain);
    store<THREADS, VECTOR>(dg, dgain, dg && threadIdx.y == 0 ? N : 0);
    if (CENTRED) {
      add_rows(dbias);
      store<THREADS, VECTOR>(db, dbias, db && threadIdx.y == 0 ? N : 0);
    }
  }
}
