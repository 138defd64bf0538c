// The CUDA calls that CuPy makes, answered on the host: memory, copies, modules, launches. The driver's half is found by
// CuPy as libcuda.so.1; the runtime's half takes the place of the runtime that is linked into CuPy (see link.py).
//
// What is stricter than a device: memory starts as poison, each array ends at a page that must not be touched, and what
// a launch does wrong is known when the launch returns.
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>

#include "machine.h"

std::string fault;

namespace {

std::recursive_mutex lock;
thread_local int device_now = 0;
char handle;  // what handles point to that must not be null

using Held = std::lock_guard<std::recursive_mutex>;

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

// -------------------------------------------------------------------------------------------------------- the runtime

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
        case cudaDevAttrMaxThreadsPerBlock: case cudaDevAttrMaxBlockDimX: case cudaDevAttrMaxBlockDimY: *value = 1024; break;
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

cudaError_t cudaMemcpy(void* to, const void* from, size_t size, cudaMemcpyKind kind) { return copy(to, from, size, kind); }
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
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t, cudaEvent_t) { return *milliseconds = 0, cudaSuccess; }

// What stands in for every other call of the runtime.
cudaError_t not_supported(void) { return cudaErrorNotSupported; }

// --------------------------------------------------------------------------------------------------------- the driver

CUresult cuGetErrorName(CUresult error, const char** name) {
    switch (error) {
        case CUDA_ERROR_INVALID_VALUE: *name = "CUDA_ERROR_INVALID_VALUE"; break;
        case CUDA_ERROR_OUT_OF_MEMORY: *name = "CUDA_ERROR_OUT_OF_MEMORY"; break;
        case CUDA_ERROR_INVALID_IMAGE: *name = "CUDA_ERROR_INVALID_IMAGE"; break;
        case CUDA_ERROR_NOT_FOUND: *name = "CUDA_ERROR_NOT_FOUND"; break;
        case CUDA_ERROR_ILLEGAL_ADDRESS: *name = "CUDA_ERROR_ILLEGAL_ADDRESS"; break;
        case CUDA_ERROR_MISALIGNED_ADDRESS: *name = "CUDA_ERROR_MISALIGNED_ADDRESS"; break;
        case CUDA_ERROR_LAUNCH_FAILED: *name = "CUDA_ERROR_LAUNCH_FAILED"; break;
        default: *name = "CUDA_ERROR_UNKNOWN";
    }
    return CUDA_SUCCESS;
}
CUresult cuGetErrorString(CUresult, const char** text) { return *text = fault.c_str(), CUDA_SUCCESS; }

CUresult cuCtxGetCurrent(CUcontext* context) { return *context = (CUcontext)&handle, CUDA_SUCCESS; }
CUresult cuCtxGetDevice(CUdevice* device) { return *device = device_now, CUDA_SUCCESS; }

// The image is the path of a shared library that g++ made of the module: see compile.py.
CUresult cuModuleLoadData(CUmodule* module, const void* path) {
    *module = (CUmodule)dlopen((const char*)path, RTLD_NOW | RTLD_LOCAL);
    if (!*module) fault = dlerror();
    return *module ? CUDA_SUCCESS : CUDA_ERROR_INVALID_IMAGE;
}
CUresult cuModuleUnload(CUmodule) { return CUDA_SUCCESS; }
CUresult cuModuleGetFunction(CUfunction* function, CUmodule module, const char* name) {
    std::string symbol = std::string(name) + "__kernel";
    *function = (CUfunction)dlsym(module, symbol.c_str());
    if (!*function) {
        fault = std::string("no kernel ") + name + " in the module";
        return CUDA_ERROR_NOT_FOUND;
    }
    find_shared(*(Kernel*)*function);
    return CUDA_SUCCESS;
}

CUresult cuFuncSetAttribute(CUfunction function, CUfunction_attribute attribute, int value) {
    if (attribute != CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES) return CUDA_SUCCESS;
    if (value < 0 || size_t(value) > SHARED_OPTIN) {
        fault = "more shared memory than a block can have";
        return CUDA_ERROR_INVALID_VALUE;
    }
    ((Kernel*)function)->dynamic_limit = value;
    return CUDA_SUCCESS;
}
CUresult cuFuncGetAttribute(int* value, CUfunction_attribute attribute, CUfunction function) {
    *value = attribute == CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK ? 1024
           : attribute == CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES ? int(((Kernel*)function)->dynamic_limit)
                                                                          : 0;
    return CUDA_SUCCESS;
}
CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks_, CUfunction, int, size_t) {
    return *blocks_ = 2, CUDA_SUCCESS;
}
CUresult cuOccupancyMaxPotentialBlockSize(int* grid, int* block, CUfunction, CUoccupancyB2DSize, size_t, int) {
    return *grid = 8, *block = 256, CUDA_SUCCESS;
}

CUresult cuLaunchKernel(CUfunction function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                        unsigned dynamic_shared, CUstream, void** arguments, void**) {
    Held held(lock);
    Kernel* kernel = (Kernel*)function;
    controls.launches++;
    if (controls.launches_until_failure == 0) {
        fault = std::string(kernel->name) + " was told to fail";
        return (CUresult)controls.launch_error;
    }
    if (controls.launches_until_failure > 0) controls.launches_until_failure--;
    if (gy > 65535 || gz > 65535 || size_t(bx) * by * bz > 1024 || bz > 64 || !gx || !gy || !gz || !bx || !by || !bz) {
        fault = std::string(kernel->name) + " launched with a grid or a block that is too large or empty";
        return CUDA_ERROR_INVALID_VALUE;
    }
    int error = run(*kernel, {gx, gy, gz}, {bx, by, bz}, dynamic_shared, arguments);
    if (!nothing_written_outside(kernel->name) && !error) error = CUDA_ERROR_ILLEGAL_ADDRESS;
    return (CUresult)error;
}

}  // extern "C"
