// The functions of the CUDA runtime that CuPy calls: devices, memory, copies, and streams in name only. They take the
// place of the runtime that is linked into CuPy (see link.py).
#include <cuda_runtime_api.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "machine.h"

std::recursive_mutex lock;
thread_local int device_now = 0;

namespace {

cudaError_t copy(void* to, const void* from, size_t size, cudaMemcpyKind kind) {
    if (!size) return cudaSuccess;
    Held held(lock);
    bool from_device = device_of(from) >= 0, to_device = device_of(to) >= 0;
    bool said_from = kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice;
    bool said_to = kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice;
    if (kind != cudaMemcpyDefault && (said_from != from_device || said_to != to_device)) return cudaErrorInvalidValue;
    if ((from_device && !is_inside(from, size)) || (to_device && !is_inside(to, size))) return cudaErrorInvalidValue;
    controls.copies_to_host += from_device && !to_device;
    controls.copies_to_device += !from_device && to_device;
    memmove(to, from, size);
    return cudaSuccess;
}

cudaError_t fill(void* address, int value, size_t size) {
    if (!size) return cudaSuccess;
    Held held(lock);
    if (!is_inside(address, size)) return cudaErrorInvalidValue;
    memset(address, value, size);
    return cudaSuccess;
}

}  // namespace

extern "C" {

Controls controls = {0, 0, 0, -1, -1, 0, 0};

int device_of_address(uintptr_t address) {
    Held held(lock);
    return device_of((const void*)address);
}

cudaError_t cudaGetLastError(void) { return cudaSuccess; }
cudaError_t cudaDriverGetVersion(int* version) { return *version = 13000, cudaSuccess; }
cudaError_t cudaGetDeviceCount(int* count) { return *count = DEVICES, cudaSuccess; }
cudaError_t cudaGetDevice(int* device) { return *device = device_now, cudaSuccess; }
cudaError_t cudaSetDevice(int device) {
    if (device < 0 || device >= DEVICES) return cudaErrorInvalidDevice;
    device_now = device;
    return cudaSuccess;
}
cudaError_t cudaDeviceSynchronize(void) { return cudaSuccess; }
cudaError_t cudaDeviceCanAccessPeer(int* can, int, int) { return *can = 0, cudaSuccess; }

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
    switch (attribute) {
        case cudaDevAttrComputeCapabilityMajor: *value = 9; break;
        case cudaDevAttrComputeCapabilityMinor: *value = 0; break;
        case cudaDevAttrMultiProcessorCount: *value = 4; break;
        case cudaDevAttrWarpSize: *value = 32; break;
        case cudaDevAttrMaxThreadsPerBlock: *value = 1024; break;
        case cudaDevAttrMaxBlockDimX: case cudaDevAttrMaxBlockDimY: *value = 1024; break;
        case cudaDevAttrMaxBlockDimZ: *value = 64; break;
        case cudaDevAttrMaxGridDimX: *value = 2147483647; break;
        case cudaDevAttrMaxGridDimY: case cudaDevAttrMaxGridDimZ: *value = 65535; break;
        case cudaDevAttrMaxThreadsPerMultiProcessor: *value = 2048; break;
        case cudaDevAttrMaxSharedMemoryPerBlock: *value = SHARED; break;
        case cudaDevAttrMaxSharedMemoryPerBlockOptin: *value = SHARED_OPTIN; break;
        case cudaDevAttrMaxSharedMemoryPerMultiprocessor: *value = 228 << 10; break;
        case cudaDevAttrMaxRegistersPerBlock: case cudaDevAttrMaxRegistersPerMultiprocessor: *value = 65536; break;
        case cudaDevAttrL2CacheSize: *value = 50 << 20; break;
        default: *value = 0;
    }
    return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
    auto value = [device](cudaDeviceAttr attribute) {
        int v;
        cudaDeviceGetAttribute(&v, attribute, device);
        return v;
    };
    memset(properties, 0, sizeof *properties);
    strcpy(properties->name, "the host, for CuPy");
    properties->totalGlobalMem = TOTAL;
    properties->major = value(cudaDevAttrComputeCapabilityMajor);
    properties->minor = value(cudaDevAttrComputeCapabilityMinor);
    properties->multiProcessorCount = value(cudaDevAttrMultiProcessorCount);
    properties->warpSize = value(cudaDevAttrWarpSize);
    properties->maxThreadsPerBlock = value(cudaDevAttrMaxThreadsPerBlock);
    properties->maxThreadsPerMultiProcessor = value(cudaDevAttrMaxThreadsPerMultiProcessor);
    properties->sharedMemPerBlock = value(cudaDevAttrMaxSharedMemoryPerBlock);
    properties->sharedMemPerBlockOptin = value(cudaDevAttrMaxSharedMemoryPerBlockOptin);
    properties->l2CacheSize = value(cudaDevAttrL2CacheSize);
    return cudaSuccess;
}

cudaError_t cudaDeviceGetPCIBusId(char* name, int length, int device) {
    snprintf(name, length, "0000:%02x:00.0", device);
    return cudaSuccess;
}

cudaError_t cudaMalloc(void** out, size_t size) {
    Held held(lock);
    return (cudaError_t)allocate(out, size, device_now);
}
cudaError_t cudaFree(void* address) {
    Held held(lock);
    return (cudaError_t)release(address);
}
cudaError_t cudaHostAlloc(void** out, size_t size, unsigned) {
    return (*out = malloc(size ? size : 1)) ? cudaSuccess : cudaErrorMemoryAllocation;
}
cudaError_t cudaFreeHost(void* address) { return free(address), cudaSuccess; }
cudaError_t cudaMemGetInfo(size_t* free_bytes, size_t* total) {
    *total = TOTAL;
    *free_bytes = controls.allocations_until_failure == 0 ? 0 : TOTAL - bytes_used(device_now);
    return cudaSuccess;
}
cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* address) {
    Held held(lock);
    int device = device_of(address);
    memset(attributes, 0, sizeof *attributes);
    attributes->type = device < 0 ? cudaMemoryTypeUnregistered : cudaMemoryTypeDevice;
    attributes->device = device;
    attributes->devicePointer = device < 0 ? nullptr : (void*)address;
    attributes->hostPointer = device < 0 ? (void*)address : nullptr;
    return cudaSuccess;
}

cudaError_t cudaMemcpy(void* to, const void* from, size_t size, cudaMemcpyKind kind) {
    return copy(to, from, size, kind);
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t size, cudaMemcpyKind kind, cudaStream_t) {
    return copy(to, from, size, kind);
}
cudaError_t cudaMemcpyPeer(void* to, int, const void* from, int, size_t size) {
    return copy(to, from, size, cudaMemcpyDeviceToDevice);
}
cudaError_t cudaMemcpyPeerAsync(void* to, int, const void* from, int, size_t size, cudaStream_t) {
    return copy(to, from, size, cudaMemcpyDeviceToDevice);
}
cudaError_t cudaMemset(void* address, int value, size_t size) { return fill(address, value, size); }
cudaError_t cudaMemsetAsync(void* address, int value, size_t size, cudaStream_t) { return fill(address, value, size); }

// Everything is done when its call returns, so streams and events have nothing to order.
cudaError_t cudaStreamCreate(cudaStream_t* out) { return *out = (cudaStream_t)&handle, cudaSuccess; }
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* out, unsigned) { return cudaStreamCreate(out); }
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* out, unsigned, int) { return cudaStreamCreate(out); }
cudaError_t cudaStreamDestroy(cudaStream_t) { return cudaSuccess; }
cudaError_t cudaStreamSynchronize(cudaStream_t) { return cudaSuccess; }
cudaError_t cudaStreamQuery(cudaStream_t) { return cudaSuccess; }
cudaError_t cudaStreamWaitEvent(cudaStream_t, cudaEvent_t, unsigned) { return cudaSuccess; }
cudaError_t cudaStreamIsCapturing(cudaStream_t, cudaStreamCaptureStatus* status) {
    return *status = cudaStreamCaptureStatusNone, cudaSuccess;
}
cudaError_t cudaEventCreate(cudaEvent_t* out) { return *out = (cudaEvent_t)&handle, cudaSuccess; }
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* out, unsigned) { return cudaEventCreate(out); }
cudaError_t cudaEventDestroy(cudaEvent_t) { return cudaSuccess; }
cudaError_t cudaEventQuery(cudaEvent_t) { return cudaSuccess; }
cudaError_t cudaEventRecord(cudaEvent_t, cudaStream_t) { return cudaSuccess; }
cudaError_t cudaEventSynchronize(cudaEvent_t) { return cudaSuccess; }
cudaError_t cudaEventElapsedTime(float* time, cudaEvent_t, cudaEvent_t) { return *time = 0, cudaSuccess; }

// What stands in for every other function of the runtime.
cudaError_t not_supported(void) { return cudaErrorNotSupported; }

}  // extern "C"
