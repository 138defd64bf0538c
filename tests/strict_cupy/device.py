"""The machine that a stand-in module runs on: its devices, what they hold, what was done on them, and what shall fail.

`Machine` is all the state there is; `cuda` makes of it what CuPy has under ``cupy.cuda``.
"""

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

HERE = str(Path(__file__).parent)
CUDA_VERSION = 13020  #: of the driver and of the runtime: 13.2
OLDEST_DRIVER = 13000  #: that such a runtime works with: it must be of the same major version
GRANULE = 512  #: CuPy's memory pool hands out multiples of so many bytes

OLD_DRIVER, UNAVAILABLE, NO_DEVICE, INVALID_DEVICE = 35, 46, 100, 101
ERRORS = {
    2: "cudaErrorMemoryAllocation: out of memory",
    OLD_DRIVER: "cudaErrorInsufficientDriver: CUDA driver version is insufficient for CUDA runtime version",
    UNAVAILABLE: "cudaErrorDevicesUnavailable: CUDA-capable device(s) is/are busy or unavailable",
    NO_DEVICE: "cudaErrorNoDevice: no CUDA-capable device is detected",
    INVALID_DEVICE: "cudaErrorInvalidDevice: invalid device ordinal",
}


class CUDARuntimeError(RuntimeError):
    """As CuPy's: made from the number of the error."""

    def __init__(self, status):
        super().__init__(ERRORS[status])
        self.status = status


class OutOfMemoryError(MemoryError):
    """As CuPy's: made from three numbers of bytes."""

    def __init__(self, size, total, limit=0):
        allowed = f", limit set to: {limit:,} bytes" if limit else ""
        super().__init__(f"Out of memory allocating {size:,} bytes (allocated so far: {total:,} bytes{allowed}).")


class Machine:
    """Some devices, and a record of what happens on them.

    Attributes:
        to_host: copies from a device to the host: for each a line that says what was copied and where in the code.
        to_device: copies from the host to a device, in the same way.
        launches: how many kernels were launched so far.
        allocations: how many arrays were given memory of their own so far.
        used: how many bytes each device holds at the moment.
        peak: how many each has held at most.
    """

    def __init__(self, devices, memory, driver):
        self.count, self.memory, self.driver = devices, memory, driver
        self.current = 0
        self.to_host, self.to_device = [], []
        self.launches = self.allocations = 0
        self.used, self.peak = [0] * devices, [0] * devices
        self._lost, self._last_launch, self._refused = False, None, None

    def fail_allocation(self, nth=1):
        """Have the n-th allocation from now on refused with OutOfMemoryError."""
        self._refused = self.allocations + nth

    def fail_launch(self, nth=1):
        """Have the devices vanish at the n-th launch from now on: it raises CUDARuntimeError, and all that follows."""
        self._last_launch = self.launches + nth

    def recover(self):
        """Bring the devices back with what they held, so that a test can look at it."""
        self._lost, self._last_launch = False, None

    def check(self):
        """Raise what every call of CUDA raises on a machine like this."""
        if self.driver < OLDEST_DRIVER:
            raise CUDARuntimeError(OLD_DRIVER)
        if not self.count:
            raise CUDARuntimeError(NO_DEVICE)
        if self._lost:
            raise CUDARuntimeError(UNAVAILABLE)

    def launch(self, arrays=()):
        """A kernel that reads or writes these arrays. They must be on the current device: no two are linked here."""
        self.check()
        for array in arrays:
            if array.device != self.device():
                raise ValueError(
                    f"The device where the array resides ({array.device.id}) is different from the current device "
                    f"({self.current}). Peer access is unavailable between these devices."
                )
        self.launches += 1
        if self.launches == self._last_launch:
            self._lost = True
            self.check()

    def allocate(self, nbytes):
        """Take so many bytes of the current device; how many they are in whole granules."""
        self.check()
        self.allocations += 1
        size, used = -(-nbytes // GRANULE) * GRANULE, self.used[self.current]
        if self.allocations == self._refused or used + size > self.memory:
            raise OutOfMemoryError(size, used)
        self.used[self.current] = used + size
        self.peak[self.current] = max(self.peak[self.current], used + size)
        return size

    def copied(self, direction, what):
        """Note a copy between host and device: in `to_host` or in `to_device`."""
        self.check()
        frame = sys._getframe(1)
        while frame.f_code.co_filename.startswith(HERE):
            frame = frame.f_back
        direction.append(f"{what} at {frame.f_code.co_filename}:{frame.f_lineno}")

    def device(self):
        """The current device."""
        return Device(self, self.current)


class Device:
    """As ``cupy.cuda.Device``: a context inside of which the device is the current one."""

    def __init__(self, machine, device=None):
        self._machine, self._before = machine, []
        self.id = machine.current if device is None else int(device)

    def __enter__(self):
        self._before.append(self._machine.current)
        self.use()
        return self

    def __exit__(self, *_):
        self._machine.current = self._before.pop()

    def __eq__(self, other):
        return isinstance(other, Device) and (self._machine, self.id) == (other._machine, other.id)

    def __hash__(self):
        return hash(self.id)

    def __repr__(self):
        return f"<CUDA Device {self.id}>"

    def use(self):
        self._machine.check()
        if not 0 <= self.id < self._machine.count:
            raise CUDARuntimeError(INVALID_DEVICE)
        self._machine.current = self.id

    def synchronize(self):
        self._machine.check()

    @property
    def mem_info(self):
        """How many bytes are free, and how many there are."""
        return self._machine.memory - self._machine.used[self.id], self._machine.memory


class Memory:
    """The bytes of the current device that an array and its views hold; none, where another library holds them."""

    __slots__ = ("_size", "device", "machine")

    def __init__(self, machine, nbytes=0):
        self.machine, self.device, self._size = machine, machine.current, 0  # nothing to give back if this raises:
        self._size = machine.allocate(nbytes) if nbytes else 0

    def __del__(self):
        if self._size:
            self.machine.used[self.device] -= self._size


def cuda(machine):
    """The module ``cupy.cuda``, with its `runtime` and its `memory`."""

    def get_device_count():
        machine.check()
        return machine.count

    def get_device_properties(device):
        machine.check()
        return {"name": f"stand-in {device}".encode(), "totalGlobalMem": machine.memory, "major": 9, "minor": 0}

    module = ModuleType("cupy.cuda")
    module.runtime, module.memory = ModuleType("cupy.cuda.runtime"), ModuleType("cupy.cuda.memory")
    module.runtime.__dict__.update(
        CUDARuntimeError=CUDARuntimeError,
        deviceSynchronize=machine.check,
        driverGetVersion=lambda: machine.driver,
        getDevice=lambda: machine.current,
        getDeviceCount=get_device_count,
        getDeviceProperties=get_device_properties,
        memGetInfo=lambda: machine.device().mem_info,
        runtimeGetVersion=lambda: CUDA_VERSION,
        setDevice=lambda device: Device(machine, device).use(),
    )
    module.memory.OutOfMemoryError = OutOfMemoryError
    module.Device = lambda device=None: Device(machine, device)
    module.is_available = lambda: machine.driver >= OLDEST_DRIVER and machine.count > 0
    module.get_current_stream = lambda: SimpleNamespace(synchronize=machine.check)
    return module


def pool(machine):
    """As CuPy's default memory pool, on the current device. What is given back is free at once."""
    return SimpleNamespace(
        free_all_blocks=lambda: None,
        free_bytes=lambda: 0,
        get_limit=lambda: 0,
        total_bytes=lambda: machine.used[machine.current],
        used_bytes=lambda: machine.used[machine.current],
    )
