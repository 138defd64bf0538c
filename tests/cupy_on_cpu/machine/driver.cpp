// The functions of the CUDA driver that CuPy calls, and finds in libcuda.so.1: modules and launches. What a launch does
// wrong is known when it returns, and its error says what it was.
#include <cuda.h>
#include <dlfcn.h>

#include "machine.h"

std::string fault;

extern "C" {

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

CUresult cuLaunchKernel(CUfunction function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                        unsigned bz, unsigned dynamic_shared, CUstream, void** arguments, void**) {
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
