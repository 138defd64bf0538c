"""The machine's libraries, and how CuPy is made to call them.

CuPy looks for the driver as ``libcuda.so.1`` and for cuBLAS as ``libcublas.so.13``; a library of that name that is in
the process already is the one that it finds. The CUDA runtime is linked into CuPy itself: there the start of each
function is overwritten by a jump, to ours or to one that answers "not supported".
"""

import ctypes
import importlib
import importlib.util
import mmap
import subprocess
from pathlib import Path

from . import cache

HERE = Path(__file__).parent
FLAGS = ("-std=c++17", "-O3", "-fPIC", "-shared", "-Wall", "-Werror")

#: Functions of the runtime inside CuPy that need no driver.
KEPT = {"cudaGetErrorName", "cudaGetErrorString", "cudaRuntimeGetVersion", "cudaGetChannelDesc"}

#: The machine code of a jump; the address to jump to follows it.
JUMP = b"\xff\x25\x00\x00\x00\x00"


def cuda_headers() -> Path:
    """Where the wheel nvidia-cuda-runtime has CUDA's own headers."""
    (package,) = importlib.import_module("nvidia.cu13").__path__
    return Path(package) / "include"


def _origin(module: str) -> Path:
    spec = importlib.util.find_spec(module)
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin)


def _functions(library: Path, *options: str) -> dict[str, tuple[int, int]]:
    """Address and size of each function in a library."""
    lines = subprocess.run(["nm", "-S", *options, library], capture_output=True, text=True, check=True).stdout
    fields = (line.split() for line in lines.splitlines())
    return {f[3]: (int(f[0], 16), int(f[1], 16)) for f in fields if len(f) == 4 and f[2] in "tT"}


def load_driver() -> ctypes.CDLL:
    machine, include = HERE / "machine", HERE / "include"
    headers = [*sorted(machine.glob("**/*.h")), include / "kernel.h"]
    flags = [*FLAGS, "-Wl,-soname,libcuda.so.1", *(f"-I{path}" for path in (include, machine, cuda_headers()))]
    path = cache.compiled("libcuda", flags, sorted(machine.glob("*.cpp")), headers)
    driver = ctypes.CDLL(str(path), ctypes.RTLD_GLOBAL)
    driver.device_of_address.argtypes = (ctypes.c_size_t,)
    return driver


def load_cublas() -> None:
    """cuBLAS: what ``blas/gemm.cpp`` has, and every other function that CuPy's module names, which says no."""
    user = _origin("cupy_backends.cuda.libs.cublas")
    wanted = subprocess.run(["nm", "-D", "-u", user], capture_output=True, text=True, check=True).stdout.split()
    names = sorted(name.split("@")[0] for name in wanted if name.startswith("cublas"))
    rest = 'extern "C" {\nint not_supported() { return 15; }\n'
    rest += "".join(f'int {name}() __attribute__((weak, alias("not_supported")));\n' for name in names) + "}\n"
    text = cache.made(f"cublas-{cache.key(rest)}.cpp", lambda path: path.write_text(rest))
    version = "libcublas.so.13"
    script = cache.made("cublas.version", lambda path: path.write_text(f"{version} {{ global: *; }};\n"))
    flags = (*FLAGS, f"-Wl,-soname,{version}", f"-Wl,--version-script={script}")
    ctypes.CDLL(str(cache.compiled("libcublas", flags, [HERE / "blas" / "gemm.cpp", text])), ctypes.RTLD_GLOBAL)
    importlib.import_module("cupy_backends.cuda.libs.cublas")  # now, so that nothing looks further for the library


def replace_runtime(driver: ctypes.CDLL) -> None:
    """Let every call of the CUDA runtime inside CuPy jump to the function of that name in our library."""
    path = _origin("cupy_backends.cuda.api.runtime")
    inside = ctypes.CDLL(str(path))
    functions = _functions(path)
    base = _address(inside.PyInit_runtime) - functions["PyInit_runtime"][0]
    ours = _functions(Path(driver._name), "-D")
    for name, (address, size) in functions.items():
        if name.startswith("cuda") and name[4].isupper() and name not in KEPT:
            target = getattr(driver, name if name in ours else "not_supported")
            code = JUMP + _address(target).to_bytes(8, "little")
            assert size >= len(code), name
            _overwrite(base + address, code)


def _address(function: ctypes._CFuncPtr) -> int:
    address = ctypes.cast(function, ctypes.c_void_p).value
    assert address is not None
    return address


def _overwrite(address: int, code: bytes) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    page = address & -mmap.PAGESIZE
    length = address + len(code) - page
    for protection in (mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC, mmap.PROT_READ | mmap.PROT_EXEC):
        if libc.mprotect(ctypes.c_void_p(page), ctypes.c_size_t(length), protection):
            raise OSError(ctypes.get_errno(), "the CUDA runtime inside CuPy cannot be replaced")
        if protection & mmap.PROT_WRITE:
            ctypes.memmove(address, code, len(code))
