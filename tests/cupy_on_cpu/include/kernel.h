// What a module compiled by g++ and the machine that runs it know of each other.
#pragma once
#include <stddef.h>

struct Index {
    unsigned x, y, z;
};

struct Parameter {
    char kind;         // 'P' pointer, 'f' floating, 'i' integer, 's' anything else
    unsigned size;     // in bytes
    unsigned element;  // of a pointer: the bytes of what it points to, 0 for void
};

struct Kernel {
    const char* name;
    void (*thread)(void** arguments);  // the kernel's body as one thread
    unsigned parameters;
    const Parameter* parameter;
    bool waits;         // whether threads wait for each other: each then needs a stack of its own
    bool strict;        // whether every thread must come to every barrier, which the hardware does not ask of the ended
    void* (*anchor)();  // the address of a variable in the module's shared memory, for the calling thread
    // Filled in where the kernel is looked up:
    size_t shared, anchor_offset, dynamic_limit;
};

extern "C" {
// Where the thread that runs now stands.
extern Index cuda_thread, cuda_block, cuda_block_size, cuda_grid_size;
extern char cuda_dynamic_shared[];

struct Votes {
    unsigned yes, voters;
};
// Waits until every thread of the block has come here. `line` tells barriers apart.
Votes cuda_wait_block(int line, bool vote);
// Waits until every lane of `mask` has come here, each with up to 16 bytes for the others.
void cuda_wait_warp(int line, unsigned mask, const void* value, size_t size);
// Which lanes came to the last cuda_wait_warp, and what each brought: poison from one that did not come.
bool cuda_came(int lane);
const void* cuda_from_lane(int lane);
unsigned cuda_lane();
[[noreturn]] void cuda_fail(int error, const char* text);
}
