// Softmax-cross-entropy, forward and backward. Each reads the logits once, and the backward writes their gradient once.
//
// The C logits of a row lie among its threads as common.cuh has it; a row that is longer than what they own is taken in
// pieces. The target q of a row has h = (1 − s) w_t at its class t and, where SMOOTHED, u = s / C times w_c at every class
// c. A row is heard unless its target is to be ignored: then q is 0.
//
// Defined at compilation, beside THREADS, OWNED, VECTOR and BLOCK, which are what they are in norms.cu:
//   X         what logits are made of                LIKELY  from which p on p − 1 has lost digits
//   SMOOTHED  whether s > 0

typedef Computed<X>::type A;  // what is computed in, and what weights, losses and gradients are made of
constexpr int PIECE = THREADS * OWNED;

// By their bits, since NVRTC, which compiles for GPUs, has no names for them.
#define INFINITE A(__uint_as_float(0x7f800000))
#define NO_NUMBER A(__uint_as_float(0x7fc00000))

// What the backward needs to know of a row: the largest logit, Σ e^(z − top), and Σ q, which is 0 where it is ignored.
struct Row { A top, total, mass; };

// a − b; of equal infinities 0
__device__ A minus(A a, A b) { return a == b ? A(0) : a - b; }

// h, or nan where there is no such class
__device__ A at_class(long long t, const A* weight, int classes, A smoothing) {
  return t >= 0 && t < classes ? (1 - smoothing) * weight[t] : NO_NUMBER;
}

// ℓ = m log Σ e^(z − top) + h (top − z_t) + u Σ w (top − z),   m = h + u Σ w
extern "C" __global__ void __launch_bounds__(BLOCK)
cross_entropy_forward(const X* logits, const long long* index, const A* weight, const bool* kept, A* losses, Row* known,
                      A smoothing, long long rows, int classes) {
  const long long row = (long long)blockIdx.x * blockDim.y + threadIdx.y;
  const bool heard = row < rows && kept[row];
  const X* from = logits + row * classes;

  // Of what a thread has seen: the largest logit; Σ e^(z − top) of all but that one, whose 1 would round the others
  // away; Σ w; and Σ w (top − z). Where a piece has a larger one, the sums are put right instead of read again.
  A top = -INFINITE, others = 0, mass = 0, pull = 0;
  for (int start = 0; heard && start < classes; start += PIECE) {
    A z[OWNED], w[OWNED];
    load<THREADS, VECTOR>(z, from + start, classes - start, -INFINITE);
    if (SMOOTHED) load<THREADS, VECTOR>(w, weight + start, classes - start, A(0));
    A high = top, e = 0, m = 0, p = 0;  // the sums of this piece: many pieces' terms one by one would drift
#pragma unroll
    for (int k = 0; k < OWNED; k++) high = z[k] > high ? z[k] : high;
    bool first = high > top;
    if (first) {
      if (SMOOTHED && mass != 0) pull += mass * (high - top);
      others = (others + 1) * exp(top - high);  // 0 in the first piece
      top = high;
    }
#pragma unroll
    for (int k = 0; k < OWNED; k++) {
      if (first && z[k] == top) first = false;
      else if (z[k] != -INFINITE) e += exp(minus(z[k], top));  // nan stays, here and in all that follows
      if (SMOOTHED && w[k] != 0) {
        m += w[k];
        p += w[k] * (z[k] == -INFINITE ? INFINITE : minus(top, z[k]));
      }
    }
    others += e, mass += m, pull += p;
  }

  // The same of all threads. Each whose largest is the row's has left out a 1, and only one of them should.
  const A largest = over_row<THREADS, Max>(top);
  const A ties = over_row<THREADS, Sum>(A(top == largest)) - 1;
  others = over_row<THREADS, Sum>(top == largest ? others : (others + 1) * exp(top - largest)) + ties;
  if (largest == INFINITE ? others != 0 : largest == -INFINITE) others = NO_NUMBER;  // softmax has no limit there
  if (SMOOTHED) {
    pull = over_row<THREADS, Sum>(mass == 0 ? pull : pull + mass * minus(largest, top));
    mass = over_row<THREADS, Sum>(mass);
  }
  if (threadIdx.x > 0 || row >= rows) return;

  const long long t = index[row];
  const A h = at_class(t, weight, classes, smoothing), u = smoothing / classes, m = heard ? h + u * mass : A(0);
  A loss = 0;
  if (m != 0) {
    loss = m * log1p(others) + u * pull;
    if (h > 0) loss += h * minus(largest, A(from[t]));
  }
  losses[row] = loss;
  known[row] = {largest, 1 + others, m};
}

// dz = dy (p m − q). Where one class has nearly all of p, that may cancel; there it is minus the sum of the others.
extern "C" __global__ void __launch_bounds__(BLOCK)
cross_entropy_backward(const X* logits, const long long* index, const A* weight, const Row* known, const A* dy, int step,
                       A* dz, A smoothing, long long rows, int classes) {
  const long long row = (long long)blockIdx.x * blockDim.y + threadIdx.y;
  const bool inside = row < rows;
  const Row is = inside ? known[row] : Row{0, 1, 0};
  const bool heard = is.mass != 0, likely = 1 / is.total > A(LIKELY);
  const A slope = inside ? dy[row * step] : A(0), factor = is.mass / is.total;
  const long long t = inside ? index[row] : 0;
  const A h = at_class(t, weight, classes, smoothing), u = smoothing / classes;
  const X* from = logits + row * classes;
  A* to = dz + row * classes;

  A others = 0;
  int at = -1;
  for (int start = 0; inside && start < classes; start += PIECE) {
    A z[OWNED], w[OWNED], d[OWNED], sum = 0;
    if (heard) load<THREADS, VECTOR>(z, from + start, classes - start, -INFINITE);
    if (SMOOTHED) load<THREADS, VECTOR>(w, weight + start, classes - start, A(0));
#pragma unroll
    for (int k = 0; k < OWNED; k++) {
      const int c = start + column<THREADS, VECTOR>(k);
      A q = c == t ? h : A(0);
      if (SMOOTHED) q += u * w[k];
      d[k] = heard ? exp(minus(z[k], is.top)) * factor - q : A(0);
      if (heard && likely && z[k] == is.top) at = c;
      else sum += d[k];
      d[k] *= slope;
    }
    others += sum;
    store<THREADS, VECTOR>(to + start, d, classes - start);
  }
  others = over_row<THREADS, Sum>(others);
  if (at >= 0) to[at] = -others * slope;
}
