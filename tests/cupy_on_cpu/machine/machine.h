// The parts of the machine: its memory (memory.cpp), its threads (threads.cpp), and the calls to it (runtime.cpp and
// driver.cpp).
#pragma once
#include <cstdint>
#include <mutex>
#include <string>

#include "kernel.h"

constexpr size_t SHARED = 48 << 10, SHARED_OPTIN = 227 << 10, TOTAL = size_t(16) << 30;
constexpr int DEVICES = 2;

// Read and set by controls.py.
struct Controls {
    int64_t launches, copies_to_host, copies_to_device;
    int64_t allocations_until_failure, launches_until_failure;  // -1: never
    int64_t launch_error;
    int64_t order;  // of the threads: 0 forward, 1 reversed, 2 shuffled
};
extern "C" Controls controls;

// One call at a time, whatever thread of the process it comes from; each of these has its current device.
extern std::recursive_mutex lock;
using Held = std::lock_guard<std::recursive_mutex>;
extern thread_local int device_now;
inline char handle;  // what handles point to that must not be null

// What went wrong, for the text of the error.
extern std::string fault;

// Poison is NaN in float16, bfloat16, float32 and float64, and no sensible number in any integer type.
void poison(void* start, size_t size);
bool is_poison(const void* start, size_t size);

// Memory of a device; each answers a CUDA error code.
int allocate(void** out, size_t size, int device);
int release(void* address);
int device_of(const void* address);                      // -1 where no live array holds the address
bool is_inside(const void* address, size_t size);        // one live array holds all of it
bool nothing_written_outside(const char* kernel);        // and if something was, `fault` says by which kernel
size_t bytes_used(int device);

// The place of the n-th of so many threads or blocks.
inline Index place(unsigned n, Index size) { return {n % size.x, n / size.x % size.y, n / (size.x * size.y)}; }

// Runs a kernel to its end; a CUDA error code.
int run(const Kernel& kernel, Index grid, Index block, size_t dynamic_shared, void** arguments);
// Finds the shared memory that the kernel's module declares.
void find_shared(Kernel& kernel);
