// A launch: blocks one after the other, and in each block its threads by turns. A thread runs until it waits for others
// or ends, on a stack of its own; the order is forward, reversed or shuffled, of blocks, of the warps of a block and of
// the lanes of a warp. Correct code gives the same result in each; code that lacks a barrier does not.
#include <link.h>
#include <setjmp.h>
#include <signal.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <vector>

#include "machine.h"

extern "C" {
Index cuda_thread, cuda_block, cuda_block_size, cuda_grid_size;
alignas(16) char cuda_dynamic_shared[SHARED_OPTIN + 1024];
void cuda_switch(void** save, void* load);
}

// Saves what a call must preserve and goes on with another stack.
asm(R"(
.text
.globl cuda_switch
.type cuda_switch, @function
cuda_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
)");

namespace {

enum State { RUNS, WAITS_FOR_BLOCK, WAITS_FOR_WARP, ENDED };

struct Thread {
    void* stack_pointer;
    State state;
    Index index;
    unsigned number;
    int line, barriers;  // which barrier it waits at, and how many it has come to
    bool vote;
    unsigned mask;  // the lanes it waits for
    // What it brings to its warp stands in two places by turns: who goes on first may bring the next thing before the
    // others have read this one.
    alignas(16) char brought[2][16];
    int side, side_released;
    unsigned release;  // by which of the releases it went on
};

constexpr size_t WARP = 32, MAX_THREADS = 1024, STACK = 256 << 10, PAGE = 4096;
constexpr size_t CACHE_LINE = 64, AFTER_SHARED = 1024;
enum Error { INVALID_VALUE = 1, ILLEGAL_ADDRESS = 700, MISALIGNED_ADDRESS = 716, LAUNCH_FAILED = 719 };

std::vector<Thread> threads;
Thread* current;
unsigned count;     // of threads in the block
unsigned releases;  // of warps, so far
void* scheduler_stack_pointer;
char* stacks;
Votes votes;
const Kernel* kernel;
void** arguments;
sigjmp_buf escape;
char signal_stack[64 << 10];

void resume(Thread& thread) {
    current = &thread;
    cuda_thread = thread.index;
    cuda_switch(&scheduler_stack_pointer, thread.stack_pointer);
}

void wait(State state) {
    current->state = state;
    cuda_switch(&current->stack_pointer, scheduler_stack_pointer);
}

void entry() {
    kernel->thread(arguments);
    wait(ENDED);
}

void start(Thread& thread, unsigned number) {
    thread = {};
    thread.number = number;
    thread.index = place(number, cuda_block_size);
    // Not all at the same offset, where they would take each other's place in the processor's cache.
    void** top = (void**)(stacks + (number + 1) * STACK - number % 64 * 5 * CACHE_LINE);
    *--top = nullptr;  // so that the stack is aligned in entry() as after a call
    *--top = (void*)entry;
    for (int i = 0; i < 6; i++) *--top = nullptr;
    thread.stack_pointer = top;
}

std::vector<unsigned> in_order(unsigned n, std::mt19937& random) {
    std::vector<unsigned> order(n);
    for (unsigned i = 0; i < n; i++) order[i] = controls.order == 1 ? n - 1 - i : i;
    if (controls.order == 2) std::shuffle(order.begin(), order.end(), random);
    return order;
}

// Lets the lanes of one warp go on whose partners have all come. The lanes that have ended count as come.
bool release_warp(unsigned first) {
    unsigned last = std::min<unsigned>(first + WARP, count);
    bool released = false;
    for (unsigned i = first; i < last; i++) {
        if (threads[i].state != WAITS_FOR_WARP) continue;
        unsigned mask = threads[i].mask;
        int line = threads[i].line;
        auto partner = [&](unsigned j) { return mask >> (j - first) & 1 && threads[j].state != ENDED; };
        bool all = true;
        for (unsigned j = first; j < last; j++) {
            const Thread& other = threads[j];
            if (partner(j)) all &= other.state == WAITS_FOR_WARP && other.mask == mask && other.line == line;
        }
        if (!all) continue;
        releases++;
        for (unsigned j = first; j < last; j++) {
            if (!partner(j)) continue;
            threads[j].state = RUNS;
            threads[j].side_released = threads[j].side;
            threads[j].release = releases;
        }
        released = true;
    }
    return released;
}

void release_block() {
    const Thread* first = nullptr;
    votes = {0, 0};
    for (unsigned i = 0; i < count; i++) {
        Thread& thread = threads[i];
        if (thread.state == ENDED && !kernel->strict) continue;
        if (thread.state == ENDED) cuda_fail(LAUNCH_FAILED, "a barrier that some threads end without reaching");
        if (thread.state != WAITS_FOR_BLOCK) cuda_fail(LAUNCH_FAILED, "lanes that wait for others, which do not come");
        if (!first) first = &thread;
        if (thread.line != first->line || thread.barriers != first->barriers)
            cuda_fail(LAUNCH_FAILED, "threads that wait at different barriers");
        votes.yes += thread.vote;
        votes.voters++;
    }
    for (unsigned i = 0; i < count; i++)
        if (threads[i].state != ENDED) threads[i].state = RUNS;
}

// One warp after the other goes as far as it can, which sets them as far apart as barriers allow.
void run_block(std::mt19937& random) {
    for (unsigned i = 0; i < count; i++) start(threads[i], i);
    unsigned warps = (count + WARP - 1) / WARP;
    for (;;) {
        for (unsigned warp : in_order(warps, random)) {
            unsigned first = warp * WARP, lanes = std::min<unsigned>(WARP, count - first);
            do {
                for (unsigned lane : in_order(lanes, random))
                    if (threads[first + lane].state == RUNS) resume(threads[first + lane]);
            } while (release_warp(first));
        }
        if (std::all_of(threads.begin(), threads.begin() + count, [](auto& t) { return t.state == ENDED; })) return;
        release_block();
    }
}

// No thread waits for another, so each runs to its end on the stack that there is.
void run_block_by_calls(std::mt19937& random) {
    for (unsigned number : in_order(count, random)) {
        cuda_thread = place(number, cuda_block_size);
        kernel->thread(arguments);
    }
}

void on_signal(int) { cuda_fail(ILLEGAL_ADDRESS, "an address that is not in an array"); }

// While it lives, a fault in a kernel ends the launch and not the process.
class FaultsCaught {
    static constexpr int SIGNALS[] = {SIGSEGV, SIGBUS, SIGFPE};
    struct sigaction before[3];
    stack_t stack_before;

   public:
    FaultsCaught() {
        stack_t stack = {signal_stack, 0, sizeof signal_stack};
        sigaltstack(&stack, &stack_before);
        struct sigaction action = {};
        action.sa_handler = on_signal;
        action.sa_flags = SA_ONSTACK | SA_NODEFER;
        for (int i = 0; i < 3; i++) sigaction(SIGNALS[i], &action, &before[i]);
    }
    ~FaultsCaught() {
        for (int i = 0; i < 3; i++) sigaction(SIGNALS[i], &before[i], nullptr);
        sigaltstack(&stack_before, nullptr);
    }
};

void make_stacks() {
    if (stacks) return;
    threads.resize(MAX_THREADS);
    stacks = (char*)mmap(nullptr, MAX_THREADS * STACK, PROT_READ | PROT_WRITE,
                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    for (size_t i = 0; i < MAX_THREADS; i++) mprotect(stacks + i * STACK, PAGE, PROT_NONE);
}

void run_grid(char* shared, size_t dynamic_shared) {
    std::mt19937 random(20);
    for (unsigned number : in_order(cuda_grid_size.x * cuda_grid_size.y * cuda_grid_size.z, random)) {
        cuda_block = place(number, cuda_grid_size);
        poison(shared, kernel->shared);
        poison(cuda_dynamic_shared, dynamic_shared + AFTER_SHARED);
        kernel->waits ? run_block(random) : run_block_by_calls(random);
        if (!is_poison(cuda_dynamic_shared + dynamic_shared, AFTER_SHARED))
            cuda_fail(ILLEGAL_ADDRESS, "a write past its dynamic shared memory");
    }
}

}  // namespace

extern "C" {

void cuda_fail(int error, const char* text) {
    fault = std::string(kernel->name) + ": " + text + " (block " + std::to_string(cuda_block.x) + ", thread " +
            std::to_string(cuda_thread.x) + ")";
    siglongjmp(escape, error);
}

Votes cuda_wait_block(int line, bool vote) {
    current->line = line;
    current->barriers++;
    current->vote = vote;
    wait(WAITS_FOR_BLOCK);
    return votes;
}

void cuda_wait_warp(int line, unsigned mask, const void* value, size_t size) {
    if (!(mask >> cuda_lane() & 1)) cuda_fail(LAUNCH_FAILED, "a lane that its own mask leaves out");
    current->side ^= 1;
    memcpy(current->brought[current->side], value, size);
    current->line = line;
    current->mask = mask;
    wait(WAITS_FOR_WARP);
}

const void* cuda_from_lane(int lane) {
    alignas(16) static char nothing[16];
    poison(nothing, sizeof nothing);
    if (!cuda_came(lane)) return nothing;
    const Thread& other = threads[current->number / WARP * WARP + lane];
    return other.brought[other.side_released];
}

unsigned cuda_lane() { return current->number % WARP; }

bool cuda_came(int lane) {
    unsigned number = current->number / WARP * WARP + lane;
    return number < count && threads[number].release == current->release;
}

// g++ puts a check before each access through a pointer and into an array of known length; these are called where one
// fails: the hardware too traps at a misaligned address.
void __ubsan_handle_type_mismatch_v1_abort(void*, uintptr_t address) {
    cuda_fail(address ? MISALIGNED_ADDRESS : ILLEGAL_ADDRESS, address ? "a misaligned address" : "a null pointer");
}
void __ubsan_handle_out_of_bounds_abort(void*, uintptr_t) { cuda_fail(ILLEGAL_ADDRESS, "an index out of its array"); }

}  // extern "C"

int run(const Kernel& launched, Index grid, Index block, size_t dynamic_shared, void** launch_arguments) {
    size_t limit = std::max(SHARED - std::min(SHARED, launched.shared), launched.dynamic_limit);
    if (dynamic_shared > limit || launched.shared > SHARED + 64) {  // 64: the anchor
        fault = std::string(launched.name) + " launched with more shared memory than it may have";
        return INVALID_VALUE;
    }
    make_stacks();
    kernel = &launched;
    arguments = launch_arguments;
    cuda_grid_size = grid;
    cuda_block_size = block;
    count = block.x * block.y * block.z;
    FaultsCaught caught;
    if (int error = sigsetjmp(escape, 1)) return error;
    run_grid((char*)launched.anchor() - launched.anchor_offset, dynamic_shared);
    return 0;
}

// __shared__ variables are the thread-local variables of the module: one stretch of memory, whatever declares them.
void find_shared(Kernel& found) {
    char* anchor = (char*)found.anchor();  // and from here on the stretch is there
    struct Search {
        Kernel& kernel;
        char* anchor;
    } search = {found, anchor};
    dl_iterate_phdr(
        [](dl_phdr_info* object, size_t, void* data) {
            auto& search = *(Search*)data;
            auto code = (uintptr_t)search.kernel.thread;
            bool holds = false;
            size_t size = 0;
            for (int i = 0; i < object->dlpi_phnum; i++) {
                auto& segment = object->dlpi_phdr[i];
                uintptr_t start = object->dlpi_addr + segment.p_vaddr;
                if (segment.p_type == PT_LOAD) holds |= start <= code && code < start + segment.p_memsz;
                if (segment.p_type == PT_TLS) size = segment.p_memsz;
            }
            if (!holds) return 0;
            search.kernel.shared = size;
            search.kernel.anchor_offset = search.anchor - (char*)object->dlpi_tls_data;
            return 1;
        },
        &search);
}
