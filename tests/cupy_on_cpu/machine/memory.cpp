// Device memory. Every array has pages of its own; it ends where a page begins that nobody may touch, but for the few
// bytes that align its start. Reading or writing past its end is therefore a fault at once, and what is written before
// its start or into those few bytes is found after the launch, because they are poison and must stay so. Memory is
// poison when it comes, and when it is freed nobody may touch it any more; its addresses are not given again soon.
#include <sys/mman.h>

#include <algorithm>
#include <deque>
#include <map>

#include "machine.h"

namespace {

constexpr size_t PAGE = 4096, ALIGNMENT = 16, LOOKED_AT = 64, FREED = 4096;
constexpr unsigned char POISON[] = {0xF5, 0xFF};  // at even addresses, and at odd ones

struct Array {
    size_t size;  // as asked for
    int device;
    char* first;  // of its pages
    size_t pages;
};

std::map<uintptr_t, Array> arrays;  // by their start
size_t used[DEVICES];
std::deque<std::pair<char*, size_t>> freed;  // mappings

std::map<uintptr_t, Array>::iterator find(const void* address) {
    auto next = arrays.upper_bound((uintptr_t)address);
    if (next == arrays.begin()) return arrays.end();
    auto it = std::prev(next);
    return (uintptr_t)address < it->first + it->second.size ? it : arrays.end();
}

}  // namespace

void poison(void* start, size_t size) {
    auto at = (unsigned char*)start;
    for (size_t i = 0; i < size; i++) at[i] = POISON[(uintptr_t)(at + i) & 1];
}

bool is_poison(const void* start, size_t size) {
    auto at = (const unsigned char*)start;
    unsigned char other = 0;
    for (size_t i = 0; i < size; i++) other |= at[i] ^ POISON[(uintptr_t)(at + i) & 1];
    return other == 0;
}

int allocate(void** out, size_t size, int device) {
    constexpr int OUT_OF_MEMORY = 2;
    if (controls.allocations_until_failure == 0 || size > TOTAL - used[device]) return OUT_OF_MEMORY;
    if (controls.allocations_until_failure > 0) controls.allocations_until_failure--;
    size_t pages = (size + PAGE - 1) / PAGE * PAGE, mapped = pages + 2 * PAGE;
    void* mapping = mmap(nullptr, mapped, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (mapping == MAP_FAILED) return OUT_OF_MEMORY;
    char* first = (char*)mapping + PAGE;
    if (mprotect(first, pages, PROT_READ | PROT_WRITE)) {
        munmap(mapping, mapped);
        return OUT_OF_MEMORY;
    }
    poison(first, pages);
    char* start = first + pages - (size + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    arrays[(uintptr_t)start] = {size, device, first, pages};
    used[device] += size;
    *out = start;
    return 0;
}

int release(void* address) {
    constexpr int INVALID_VALUE = 1;
    if (!address) return 0;
    auto it = arrays.find((uintptr_t)address);
    if (it == arrays.end()) return INVALID_VALUE;
    auto [size, device, first, pages] = it->second;
    arrays.erase(it);
    used[device] -= size;
    mmap(first, pages, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
    freed.emplace_back(first - PAGE, pages + 2 * PAGE);
    if (freed.size() > FREED) {
        munmap(freed.front().first, freed.front().second);
        freed.pop_front();
    }
    return 0;
}

int device_of(const void* address) {
    auto it = find(address);
    return it == arrays.end() ? -1 : it->second.device;
}

bool is_inside(const void* address, size_t size) {
    auto it = find(address);
    return it != arrays.end() && (uintptr_t)address + size <= it->first + it->second.size;
}

bool nothing_written_outside(const char* kernel) {
    bool nothing = true;
    for (auto& [at, array] : arrays) {
        char *start = (char*)at, *end = start + array.size;
        size_t before = std::min<size_t>(start - array.first, LOOKED_AT), after = array.first + array.pages - end;
        if (is_poison(start - before, before) && is_poison(end, after)) continue;
        fault = std::string(kernel) + " wrote next to an array of " + std::to_string(array.size) + " bytes";
        poison(start - before, before);
        poison(end, after);
        nothing = false;
    }
    return nothing;
}

size_t bytes_used(int device) { return used[device]; }
