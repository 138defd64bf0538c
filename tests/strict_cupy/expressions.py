"""What the stand-in is held to, expression by expression: ``tests/test_strict_cupy.py`` runs these lines.

A line is an expression, or a statement, of which `x` is then the result. It is run with `xp` as the module, `np` as
NumPy, fresh arrays of the module under the names of `inputs`, `host` for the same arrays on the host, and ``at(i,
compute)`` for what a function gives while device i is the current one.
"""

from types import SimpleNamespace

import numpy as np


def inputs():
    """Host arrays: what `host` is."""
    rng = np.random.default_rng(0)
    x, y, cube, square = (rng.normal(size=s).astype(np.float32) for s in [(4, 6), (4, 6), (2, 3, 4), (4, 4)])
    return SimpleNamespace(
        x=x, y=y, cube=cube, square=square, row=x[1] + 1, column=y[:, :1] + 3, number=np.array(1.5, np.float32),
        mask=x > 0, ints=np.arange(24).reshape(4, 6) - 9, index=np.array([2, 0, 3]), half=x.astype(np.float16),
        double=y.astype(np.float64), none=np.zeros((0, 3), np.float32),
    )  # fmt: skip


SAME = {
    "operators": """
        x + y
        x - row
        x * column
        x / y
        x // y
        x % 0.75
        x ** 2
        x ** 0.5
        2 ** x
        2.0 - x
        1 / x
        x / 0
        -x
        +x
        abs(x)
        ~mask
        mask & mask[0]
        mask | True
        mask ^ mask[:1]
        ints << 2
        ints >> 1
        ints // 4
        ints % 4
        ints / 2
        ints // 0
        ~ints
        x > 0
        x >= y
        x < row
        x <= 1
        ints.astype("int32") > 0
        ints.astype("int8") == ints.astype("int8")
        ints.astype("uint8") < ints.astype("int32")
        x == x[0]
        x != y
        divmod(x, 2)
        x.T @ square
        x @ y.T
        x @ row
        row @ row
        cube @ cube.swapaxes(1, 2)
        cube @ square
        ints @ ints.T
        half @ half.T
        sum([x, y])
        max(number, x[0, 0])
    """,
    "promotion": """
        x * 2
        x * 2.0
        x * True
        x * np.float32(2)
        x * np.float64(2)
        x * np.int64(2)
        x * np.bool_(True)
        np.float32(2) * x
        np.float64(2) * x
        np.float64(2) - x
        x * number
        x * number.astype("float64")
        x * ints
        half + x
        half * 2.0
        half * np.float32(2)
        half + half
        double + x
        double + half
        ints + 1.5
        ints + True
        ints * np.float32(2)
        ints.astype("int8") + 100
        ints.astype("int8") + ints.astype("uint8")
        ints.astype("int32") + half
        mask + mask
        mask * 2
        mask + 1.5
        x @ double.T
        xp.result_type(x, 1.0)
        xp.result_type(x, np.float64(1.0))
        xp.promote_types("float16", "int32")
        xp.can_cast("float64", "float32")
    """,
    "in place": """
        x += y
        x -= row
        x *= 2
        x /= column
        x **= 2
        x += double
        x //= 0.5
        x %= 0.5
        x += np.float64(1)
        x[0] += 1.0
        x[:, 1:3] *= column
        x = ints; x += 1
        x = mask; x |= x[:1]
        x = square; x @= square
        x.T[:] += 1
        x = xp.add(x, y, x)
        xp.add(x, y, out=x)
        xp.multiply(x, 2, out=(x,))
        xp.exp(x, x)
        x = double; xp.add(x, half, out=x)
        x.fill(2)
        x.fill(number)
    """,
    "reductions": """
        x.sum()
        x.sum(0)
        x.sum(axis=-1, keepdims=True)
        x.sum(axis=(0, 1))
        x.sum(axis=())
        x.sum(dtype="float64")
        xp.sum(x, 1, keepdims=True)
        x.mean()
        x.mean(axis=1, dtype="float64")
        x.max()
        x.max(axis=0, keepdims=True)
        xp.max(x, axis=1)
        x.min(axis=1)
        xp.amax(x)
        xp.amin(x, axis=0)
        x.prod()
        x.prod(axis=1)
        x.var(axis=1)
        x.var(ddof=1)
        x.std()
        x.argmax()
        x.argmax(axis=1)
        x.argmax(axis=1, keepdims=True)
        xp.argmin(x, axis=0)
        mask.any()
        mask.all(axis=1)
        x.all()
        mask.any(axis=0, keepdims=True)
        mask.sum()
        mask.mean()
        half.sum()
        half.mean(axis=0)
        ints.sum(axis=0)
        ints.mean()
        ints.prod(axis=1)
        ints.astype("int32").sum()
        none.sum()
        none.sum(axis=0)
        none.sum(axis=1)
        none.max(axis=1)
        none.mean()
        none.prod()
        none.any()
        x.cumsum()
        x.cumsum(axis=1)
        xp.cumsum(x, axis=0)
        xp.cumprod(x, axis=1)
        mask.cumsum(axis=0)
        xp.count_nonzero(mask)
        xp.count_nonzero(mask, axis=1)
        xp.average(x, axis=1)
        xp.trace(x)
        xp.add.reduce(x)
        xp.add.reduce(x, axis=None)
        xp.multiply.reduce(x, axis=1, keepdims=True)
        xp.add.accumulate(x, axis=1)
        xp.var(x, axis=0, ddof=1)
        xp.std(x, axis=1)
        xp.min(x)
        xp.prod(x, axis=0)
        xp.mean(x, axis=(0, 1), keepdims=True)
        xp.any(mask, axis=1)
        xp.all(mask)
        x.min()
        x.std(axis=0, ddof=1)
        x.cumprod(axis=1)
        x.trace()
        x.argmin(axis=0)
        xp.linalg.norm(x)
        xp.linalg.norm(x, axis=1, keepdims=True)
    """,
    "shapes": """
        x.shape
        x.ndim
        x.size
        x.dtype
        x.nbytes
        x.itemsize
        x.strides
        x[::2].strides
        xp.shape(x)
        xp.ndim(x)
        xp.size(x)
        x.reshape(6, 4)
        x.reshape((2, -1))
        x.reshape(-1, order="F")
        xp.reshape(x, (3, 8))
        x.T.reshape(24)
        x.T
        x.mT
        cube.mT
        x.transpose(1, 0)
        cube.transpose(2, 0, 1)
        cube.transpose()
        xp.transpose(cube, (1, 0, 2))
        xp.permute_dims(cube, (1, 0, 2))
        x.swapaxes(0, 1)
        xp.swapaxes(cube, -1, 0)
        xp.moveaxis(cube, 0, -1)
        x[None].squeeze()
        x[None].squeeze(0)
        xp.squeeze(x[:, None], axis=1)
        xp.expand_dims(x, 1)
        xp.expand_dims(x, (0, -1))
        x.ravel()
        x.T.ravel()
        xp.ravel(x.T)
        x.flatten()
        xp.broadcast_to(row, (4, 6))
        xp.broadcast_to(number, (2, 2))
        xp.broadcast_shapes((4, 1), (6,))
        xp.atleast_1d(number)
        xp.atleast_2d(row)
        xp.atleast_3d(x)
        xp.split(x, 2)
        xp.split(x, [1, 3], axis=1)
        xp.array_split(x, 4, axis=1)
        xp.diagonal(square)
        square.diagonal(1)
        xp.flip(x, 0)
        x.real
        x.imag
        xp.real(x)
        x.conj()
        xp.imag(x)
        x.diagonal()
        x.view("int32")
        x.view()
        len(x)
        [part.shape for part in x]
    """,
    "layout": """
        x.flags.c_contiguous
        x.T.flags.c_contiguous
        x.T.flags.f_contiguous
        x[:, ::2].flags["C_CONTIGUOUS"]
        x.T.copy().flags.c_contiguous
        x.T.astype("float64").flags.f_contiguous
        xp.zeros_like(x.T).flags.f_contiguous
        xp.copy(x).flags.owndata
        x[1:].flags.owndata
        x[1:].base is x or x[1:].base is x.base
        x.reshape(6, 4).base is None
        x.astype("float32", copy=False) is x
        x.astype("float32") is x
        xp.asarray(x) is x
        xp.ascontiguousarray(x) is x
        xp.ascontiguousarray(x.T).flags.c_contiguous
        xp.may_share_memory(x, x[0])
    """,
    "parts": """
        x[0]
        x[0, 1]
        x[-1]
        x[1:3, ::2]
        x[::-1]
        x[None]
        x[..., 0]
        x[:, None, 1:]
        x[()]
        number[()]
        number[...]
        x[True]
        x[mask]
        x[mask[:, 0]]
        x[index]
        x[index, index]
        x[:, index]
        x[index[:, None], index]
        x[host.index]
        x[host.mask]
        x[[0, 2]]
        x[xp.asarray(1)]
        x[xp.arange(4), xp.asarray([0, 1, 2, 3])]
        x[none.astype(int)[:, 0]]
        xp.take(x, index, axis=0)
        x.take(index)
        xp.take_along_axis(x, xp.argmax(x, axis=1, keepdims=True), 1)
        xp.nonzero(mask)
        xp.flatnonzero(mask)
        xp.argwhere(mask)
        xp.where(mask)
        xp.where(mask, x, y)
        xp.where(mask, x, 0)
        xp.where(mask, 1.0, x)
        xp.where(mask, x, np.float64(0))
        xp.where(mask, 1, 0)
        xp.where(mask[:1], x, column)
        xp.where(x, x, y)
    """,
    "written parts": """
        x[0] = 1.0
        x[0] = row
        x[:] = row
        x[1, 2] = 5
        x[1, 2] = np.float64(5)
        x[0] = np.array(2.0)
        x[mask] = 0
        x[mask] = x[mask] * 2
        x[mask[:, 0]] = row
        x[index] = 3
        x[index] = y[:3]
        x[index, index] = row[:3]
        x[[0, 2]] = 7
        x[host.index] = 7
        x[host.mask] = 7
        x[...] = y
        x[::-1] = y
        x[:, 1:3] = column
        x[0] = double[0]
        x = ints; x[0] = 2.75
        xp.copyto(x, y)
        xp.copyto(x, row)
        xp.copyto(x, 2.5)
        xp.copyto(x, np.array(2.5))
        xp.copyto(x, y, where=mask)
        xp.copyto(x, 0, where=mask)
        xp.add.at(x, index, y[:3])
        xp.add.at(x, index, 1.0)
        xp.add.at(x, xp.asarray([0, 0, 2]), y[:3])
        xp.add.at(x, (xp.asarray([0, 0]), xp.asarray([1, 1])), 2.0)
        xp.add.at(x, host.index, y[:3])
        xp.add.at(x, [0, 0], y[:2])
        xp.add.at(x, (slice(None), index), 1.0)
        xp.maximum.at(x, index, y[:3])
        xp.minimum.at(x, index, y[:3])
        x = double; xp.add.at(x, index, y[:3])
        x = ints; xp.add.at(x, index, 1)
        xp.put_along_axis(x, xp.argmax(x, axis=1, keepdims=True), 9.0, 1)
    """,
    "making": """
        xp.zeros((2, 3))
        xp.zeros(3, dtype="float32")
        xp.zeros((2, 3), "float16", "F")
        xp.zeros(())
        xp.ones((2, 0))
        xp.ones((2, 3), dtype=bool)
        xp.full((2,), 1.5)
        xp.full(3, 1, dtype="float32")
        xp.full(shape=3, fill_value=2.0, dtype="float16")
        xp.full((2, 2), np.array(2.0))
        xp.arange(3)
        xp.arange(1, 7, 2)
        xp.arange(3, dtype="float32")
        xp.arange(0, 1, 0.25)
        xp.eye(3)
        xp.eye(2, 3, k=1, dtype="float32")
        xp.identity(2)
        xp.tri(3)
        xp.linspace(0, 1, 5)
        xp.indices((2, 2))
        xp.zeros_like(x)
        xp.zeros_like(x, dtype="float64")
        xp.ones_like(half)
        xp.full_like(x, 2)
        xp.full_like(x, 2, dtype=int, shape=(2,))
        xp.empty((2, 3)).shape
        xp.empty_like(half).dtype
        xp.asarray(host.x)
        xp.asarray(host.x.T)
        xp.asarray(host.x[::-1, ::2])
        xp.asarray(host.x, dtype="float64")
        xp.asarray([1, 2.5])
        xp.asarray([[True], [False]])
        xp.asarray(2.0)
        xp.asarray(np.float16(2.0))
        xp.asarray([])
        xp.asarray([x[0], x[1]])
        xp.asarray([[row, row], [x[0], double[0]]])
        xp.array(x)
        xp.array(x, dtype="float16")
        xp.array(x, ndmin=3)
        xp.array([row, row], dtype="float64")
        xp.array(x.T, order="C")
        xp.array(x, copy=False)
        x.copy()
        x.T.copy(order="F")
        xp.copy(x)
        x.astype("float16")
        x.astype("int64")
        ints.astype("float32")
        x.astype("float64", order="F", copy=False)
        ints.astype(bool)
        mask.astype("float32")
    """,
    "joining and products": """
        xp.concatenate([x, y])
        xp.concatenate([x, y], axis=1)
        xp.concatenate((x, double), axis=0)
        xp.concatenate([x, y], axis=None)
        xp.concatenate(x)
        xp.concat([x, y])
        xp.stack([x, y])
        xp.stack([x, y], axis=-1)
        xp.stack([x, double])
        xp.hstack([x, y])
        xp.vstack([row, row])
        xp.tile(x, (2, 1))
        xp.repeat(x, 2)
        xp.repeat(x, 2, axis=0)
        x.repeat(3, axis=1)
        xp.roll(x, 1)
        xp.roll(x, 2, axis=1)
        xp.pad(x, 1)
        xp.pad(x, ((1, 0), (0, 2)))
        xp.pad(x, 1, mode="constant", constant_values=2.0)
        xp.tril(square)
        xp.triu(square, 1)
        xp.diag(row)
        xp.diag(square)
        xp.dot(x, y.T)
        x.dot(row)
        xp.matmul(x, y.T)
        xp.matmul(x, y.T, out=xp.zeros((4, 4), "float32"))
        xp.matmul(cube, square)
        xp.tensordot(x, y, 2)
        xp.tensordot(x, y, axes=([1], [1]))
        xp.inner(x, y)
        xp.outer(row, row)
        xp.vdot(x, y)
        xp.add.outer(row, row)
        xp.einsum("ij,kj->ik", x, y)
        xp.einsum("ij,jk", x, y.T)
        xp.einsum("ij->", x)
        xp.einsum("ij->j", x)
        xp.einsum("ij->ji", x)
        xp.einsum("ii->i", square)
        xp.einsum("ii", square)
        xp.einsum("i,j->ij", row, row)
        xp.einsum("ij,ij->i", x, y)
        xp.einsum("ij,ij->i", x, y, optimize=True)
        xp.einsum("i,i", row, row[:1])
        xp.einsum("...ij,...jk->...ik", cube, square)
        xp.einsum("...i->...", cube)
        xp.einsum("bij,bkj->bik", cube, cube)
        xp.einsum("ij,kj->ik", x, double)
    """,
    "numbers": """
        xp.add(x, y, dtype="float64")
        xp.add(x, 1.0)
        xp.exp(2.0)
        xp.exp(np.float32(2))
        xp.clip(x, -1, 1)
        xp.clip(x, -1, None)
        xp.clip(x, None, row)
        xp.clip(x, a_min=-1, a_max=1)
        x.clip(-1, 1)
        x.clip(min=0)
        x.clip(max=row)
        x.round(1)
        xp.round(x, 2)
        xp.isclose(x, x + 1e-9)
        xp.isclose(x, 1.0)
        xp.allclose(x, x)
        xp.allclose(x, y, atol=10)
        xp.array_equal(x, x)
        xp.array_equal(x, row)
        xp.nan_to_num(x / 0)
        xp.nan_to_num(x - xp.inf, neginf=0)
        xp.sqrt(ints)
        xp.exp(ints.astype("int8"))
        xp.sqrt(mask)
        xp.log(x)
        xp.power(ints, 2)
        xp.power(x, 3)
        xp.float_power(half, 2)
        xp.maximum(x, 0)
        xp.minimum(x, np.inf)
        xp.maximum(ints, x)
        xp.sign(half)
        xp.isfinite(ints)
        xp.isnan(mask)
        xp.logical_and(ints.astype("int16"), mask)
        xp.isscalar(2.0)
        xp.iscomplexobj(x)
        xp.issubdtype(x.dtype, xp.floating)
        xp.finfo(x.dtype).eps
        xp.iinfo("int32").max
        xp.float32(2)
        xp.pi
        xp.newaxis
        xp.dtype("float32")
    """,
    "to the host": """
        float(number)
        int(ints[3, 3])
        bool(mask.any())
        bool(x[:1, :1] > 10)
        complex(number)
        number.item()
        x[:1, :1].item()
        x.tolist()
        number.tolist()
        x.tobytes()
        f"{number:.3f}"
        f"{number}"
        "%.2f" % number
        str(x)
        repr(x)
        [1, 2][int(index[1])]
    """,
}
"""What gives what NumPy gives: the same on all three, in values, dtypes and shapes."""

OF_CUPY = {
    "(xp.asnumpy(x) == host.x).all()": True,
    "xp.asnumpy(host.x) is host.x": True,
    "xp.asnumpy([1, 2]).tolist()": [1, 2],
    "type(x.get()) is np.ndarray and (x.get() == host.x).all()": True,
    "x.get(out=host.y) is host.y and (host.x == host.y).all()": True,
    "ints.get(order='F').flags.f_contiguous": True,
    "xp.get_array_module(host.x, x) is xp": True,
    "xp.get_array_module(host.x, 1.0) is np": True,
    "isinstance(x, xp.ndarray), isinstance(x, np.ndarray)": (True, False),
    "xp.isscalar(x[0, 0])": False,
    "xp.asarray(host.x.astype('>f4')).dtype.isnative": True,
    "x.device.id, repr(x.device), x.device == xp.cuda.Device(0)": (0, "<CUDA Device 0>", True),
    "x.__dlpack_device__(), type(x.__dlpack__()).__name__": ((2, 0), "PyCapsule"),
    "(x.T * 2).flags.c_contiguous, xp.exp(x.T).flags.c_contiguous": (True, True),
    "x.base is None, x[1:].base is None": (True, False),
    "x.reshape(4, 6).base is x, x[1:][1:].base is x": (True, True),
    "xp.byte_bounds(x[1:])[0] - xp.byte_bounds(x)[0]": 24,
    "xp.byte_bounds(x[1:, ::2])[1] - xp.byte_bounds(x[1:, ::2])[0]": 68,
    "x.squeeze() is x, x.real is x, x.view() is x": (True, True, False),
    "hasattr(x, 'setflags'), hasattr(x.flags, 'writeable'), hasattr(x, '__index__')": (False, False, False),
    "xp.exp.nin, xp.frexp.nout, xp.exp.name, repr(xp.exp)": (1, 2, "cupy_exp", "<ufunc 'cupy_exp'>"),
    "xp.cuda.runtime.getDevice(), xp.cuda.runtime.getDeviceCount() > 0, xp.cuda.runtime.driverGetVersion() > 0": (
        0, True, True,
    ),
    "all(0 < free <= total for free, total in [xp.cuda.Device(0).mem_info, xp.cuda.runtime.memGetInfo()])": True,
    "xp.get_default_memory_pool().get_limit(), xp.get_default_memory_pool().used_bytes() >= 0": (0, True),
    "at(1, lambda: xp.cuda.Device().id), xp.cuda.Device().id": (1, 0),
    "at(1, lambda: at(0, lambda: xp.cuda.runtime.getDevice()))": 0,
    "x.device == at(1, lambda: xp.cuda.Device())": False,
    "at(1, lambda: xp.zeros(2)).device.id, at(1, lambda: xp.asarray(host.x)).device.id": (1, 1),
    "at(1, x.copy).device.id, at(1, x.T.copy).device.id, at(1, lambda: xp.copy(x)).device.id": (1, 1, 1),
    "at(1, lambda: xp.asarray(x)).device.id, at(1, lambda: xp.array(x, 'float64')).device.id": (1, 1),
    "at(1, lambda: ((xp.asarray(x) * 2).get() == host.x * 2).all())": True,
    "at(1, lambda: [v.device.id for v in (x[0], x[...], x.T, x.reshape(24), xp.broadcast_to(x, (2, 4, 6)))])": [0] * 5,
    "at(1, lambda: [float(number), number.item(), number.tolist(), str(number)])": [1.5, 1.5, 1.5, "1.5"],
    "copy.deepcopy(at(1, x.copy)).device.id, copy.copy(at(1, x.copy)).device.id": (1, 0),
    "at(0, lambda: xp.from_dlpack(at(1, x.copy))).device.id": 1,
    "issubclass(xp.cuda.runtime.CUDARuntimeError, RuntimeError)": True,
    "issubclass(xp.cuda.memory.OutOfMemoryError, MemoryError)": True,
    "str(xp.cuda.memory.OutOfMemoryError(1000, 2000))": (
        "Out of memory allocating 1,000 bytes (allocated so far: 2,000 bytes)."
    ),
    "str(xp.cuda.memory.OutOfMemoryError(1, 2, 3))": (
        "Out of memory allocating 1 bytes (allocated so far: 2 bytes, limit set to: 3 bytes)."
    ),
    "[xp.cuda.runtime.CUDARuntimeError(status).status for status in (2, 35, 46, 100, 101)]": [2, 35, 46, 100, 101],
    "str(xp.cuda.runtime.CUDARuntimeError(2))": "cudaErrorMemoryAllocation: out of memory",
    "str(xp.cuda.runtime.CUDARuntimeError(35))": (
        "cudaErrorInsufficientDriver: CUDA driver version is insufficient for CUDA runtime version"
    ),
    "str(xp.cuda.runtime.CUDARuntimeError(46))": (
        "cudaErrorDevicesUnavailable: CUDA-capable device(s) is/are busy or unavailable"
    ),
    "str(xp.cuda.runtime.CUDARuntimeError(100))": "cudaErrorNoDevice: no CUDA-capable device is detected",
    "str(xp.cuda.runtime.CUDARuntimeError(101))": "cudaErrorInvalidDevice: invalid device ordinal",
}  # fmt: skip
"""What NumPy does not have, or does otherwise, with what it is."""

REFUSED = {
    "host and device": """
        x + host.x: TypeError
        host.x + x: TypeError
        x * np.array(2.0): TypeError
        np.array(2.0) * x: TypeError
        x @ host.x.T: TypeError
        host.x.T @ x: TypeError
        x > host.x: TypeError
        x += host.x: TypeError
        xp.exp(host.x): TypeError
        xp.maximum(x, host.x): TypeError
        xp.add(x, y, out=host.x): TypeError
        xp.where(mask, host.x, 0): TypeError
        xp.where(host.mask, x, 0): TypeError
        xp.concatenate([x, host.x]): TypeError
        xp.stack([x, host.x]): TypeError
        xp.broadcast_to(host.row, (4, 6)): TypeError
        xp.split(host.x, 2): TypeError
        xp.dot(x, host.x.T): TypeError
        xp.copyto(x, host.x): ValueError
        x[0] = host.row: ValueError
        x[0] = [1, 2, 3, 4, 5, 6]: ValueError
        x.fill(host.row): ValueError
        xp.full((2,), host.row[:2]): ValueError
        xp.array([number, 1.0]): TypeError
        xp.array([row, host.row]): TypeError
        xp.array([[row], [1.0]]): TypeError
        xp.from_dlpack(host.x): TypeError
        np.from_dlpack(x): RuntimeError
        np.asarray(x): TypeError
        np.array([number]): TypeError
        np.float32(number): TypeError
        np.add(host.x, x): TypeError
        np.where(host.mask, x, 0): TypeError
        np.testing.assert_allclose(x, host.x): TypeError
        host.x[:] = x: TypeError
    """,
    "keywords": """
        x.sum(where=mask): TypeError
        x.sum(initial=0): TypeError
        xp.sum(x, where=mask): TypeError
        xp.mean(x, where=mask): TypeError
        xp.max(x, initial=0): TypeError
        x.min(initial=0): TypeError
        x.prod(where=mask): TypeError
        xp.var(x, correction=1): TypeError
        x.var(correction=1): TypeError
        x.all(where=mask): TypeError
        xp.clip(x, min=-1, max=1): TypeError
        xp.clip(x): TypeError
        xp.add(x, y, where=mask): TypeError
        xp.add(x, y, order="C"): TypeError
        xp.add(x, y, subok=False): TypeError
        xp.einsum("ij,kj->ik", x, y, out=square): TypeError
        xp.zeros(3, device="cuda"): TypeError
        xp.arange(3, like=x): TypeError
        xp.broadcast_to(x, (4, 6), subok=True): TypeError
        x.item(0): TypeError
        xp.add(x): TypeError
        xp.add(x, y, x, y): TypeError
    """,
    "lists and other values": """
        xp.exp([1.0]): TypeError
        xp.sum([1.0, 2.0]): AttributeError
        xp.max([x, y]): AttributeError
        xp.sum(2.0): AttributeError
        xp.stack([x, 1.0]): TypeError
        xp.matmul(x, 2.0): TypeError
        x @ 2.0: TypeError
        xp.where(True, x, 0): AttributeError
        xp.where(mask, x): ValueError
        x + [1, 2, 3, 4, 5, 6]: TypeError
        x * "a": TypeError
        x * None: TypeError
        xp.asarray(["a"]): ValueError
        xp.asarray([None]): ValueError
        xp.asarray(np.longdouble(1)): ValueError
        xp.zeros(2, dtype=object): ValueError
        x.astype(object): ValueError
        x.astype(np.longdouble): ValueError
        x.astype(">f4"): ValueError
        x[0] = "a": ValueError
    """,
    "a number in Python": """
        float(x): TypeError
        float(x[0, :1]): TypeError
        int(row): TypeError
        bool(x): ValueError
        x.item(): ValueError
        range(index[0]): TypeError
        [1, 2, 3][index[1]]: TypeError
        "ab" * index[0]: TypeError
        xp.zeros(index[0]): TypeError
        hash(x): TypeError
        {x: 1}: TypeError
        len(number): TypeError
        iter(number): TypeError
        round(number): TypeError
        f"{x:.3f}": TypeError
        x in [1, 2]: ValueError
        memoryview(x): TypeError
    """,
    "shapes and indices": """
        x + xp.zeros(5): ValueError
        x @ xp.zeros(5): ValueError
        xp.broadcast_to(x, (3, 6)): ValueError
        x.reshape(7): ValueError
        xp.squeeze(x, 0): ValueError
        xp.split(x, 5): ValueError
        x.sum(axis=5): AxisError
        x.cumsum(axis=5): AxisError
        x[10]: IndexError
        x[0, 0, 0]: IndexError
        none.max(): ValueError
        none.argmax(): ValueError
        xp.concatenate([]): ValueError
        xp.zeros(-1): ValueError
        xp.einsum("ijk->i", x): ValueError
        xp.einsum("ii", x): ValueError
        xp.einsum("...ij->ij", cube): ValueError
        x[0] += x: ValueError
        ints += 1.5: TypeError
        ints /= 2: TypeError
        xp.add(x, 1.5, out=ints): TypeError
        x << 1: TypeError
        ~x: TypeError
        -mask: TypeError
        xp.logical_not(xp.asarray(host.x.astype("complex64"))): TypeError
        mask - mask: TypeError
        ints.astype("int8") + 300: OverflowError
    """,
    "another device": """
        at(1, lambda: x * 2): ValueError
        at(1, lambda: x + y): ValueError
        at(1, lambda: -x): ValueError
        at(1, lambda: x > 0): ValueError
        at(1, lambda: x.sum()): ValueError
        at(1, lambda: x.argmax(axis=1)): ValueError
        at(1, lambda: x.cumsum()): ValueError
        at(1, lambda: x.astype("float64")): ValueError
        at(1, lambda: x.astype("float32")): ValueError
        at(1, lambda: xp.where(mask, x, 0)): ValueError
        at(1, lambda: xp.concatenate([x, y])): ValueError
        at(1, lambda: xp.asarray([x[0], x[1]])): ValueError
        at(1, lambda: xp.take(x, index)): ValueError
        at(1, lambda: xp.linalg.norm(x)): ValueError
        at(1, lambda: xp.array_equal(x, x)): ValueError
        at(1, lambda: x[mask]): ValueError
        at(1, lambda: x[index]): ValueError
        at(1, lambda: x[[0, 1]]): ValueError
        at(1, lambda: x.fill(1)): ValueError
        at(1, lambda: xp.copyto(x, 0)): ValueError
        at(1, lambda: xp.add.at(x, index, 1.0)): ValueError
        x + at(1, y.copy): ValueError
        at(1, y.copy) * 2: ValueError
        x[at(1, index.copy)]: ValueError
        xp.concatenate([x, at(1, y.copy)]): ValueError
        xp.where(mask, x, at(1, y.copy)): ValueError
        xp.add(x, y, out=at(1, y.copy)): ValueError
        at(1, lambda: xp.asarray(x[:, ::2])): NotImplementedError
        at(1, lambda: x[::-1].copy("K")): NotImplementedError
        xp.cuda.Device(99).use(): RuntimeError
    """,
    "what is not there": """
        xp.errstate: AttributeError
        xp.vecdot: AttributeError
        xp.matvec: AttributeError
        xp.unstack: AttributeError
        xp.longdouble: AttributeError
        xp.linalg.vector_norm: AttributeError
        xp.linalg.matrix_norm: AttributeError
        x.__array_namespace__(): AttributeError
        x.__array_interface__: AttributeError
        x.ctypes: AttributeError
        x.setflags(write=False): AttributeError
        x.flags.writeable: AttributeError
        x.resize(3): AttributeError
        x.newbyteorder(): AttributeError
        x.colour = 1: AttributeError
        x.T = y: AttributeError
        x.__index__(): AttributeError
        x.__imatmul__(y): AttributeError
        xp.maximum.reduce(x): NotImplementedError
        xp.logical_and.reduce(x): NotImplementedError
        xp.maximum.accumulate(x): NotImplementedError
        xp.multiply.at(x, index, 2.0): NotImplementedError
        xp.subtract.at(x, index, y[:3]): TypeError
        xp.maximum.at(half, index, half[:3]): TypeError
        xp.add.at(mask, index, True): TypeError
    """,
}
"""What raises, here and in CuPy, an error of this type."""

STRICTER = {
    "xp.sum(host.x)": ("TypeError", "CuPy answers by NumPy's scalar"),
    "xp.mean(host.x, axis=0)": ("TypeError", "CuPy answers by NumPy's array"),
    "xp.reshape(host.x, 24)": ("TypeError", "CuPy answers by NumPy's array"),
    "xp.transpose(host.x)": ("TypeError", "CuPy answers by NumPy's array"),
    "xp.zeros_like(host.x)": ("TypeError", "CuPy answers by an array on the device"),
    "xp.add.at(x, index, host.x[:3])": ("TypeError", "CuPy copies the values to the device unseen"),
    "np.exp(x)": ("TypeError", "CuPy's own function runs, which NumPy finds"),
    "np.sum(x)": ("TypeError", "CuPy's own function runs, which NumPy finds"),
    "np.stack([x, y])": ("TypeError", "CuPy's own function runs, which NumPy finds"),
    "np.allclose(x, x)": ("TypeError", "CuPy's own function runs, which NumPy finds"),
    "xp.broadcast_to(row, (4, 6))[0] = 1.0": ("ValueError", "CuPy writes to all rows at once"),
    "xp.broadcast_to(row, (4, 6)).fill(1.0)": ("ValueError", "CuPy writes to all rows at once"),
    "v = xp.broadcast_to(row, (4, 6)); v += x": ("ValueError", "CuPy adds to all rows at once, in any order"),
    "xp.add(x, y, out=xp.broadcast_to(row, (4, 6)))": ("ValueError", "CuPy writes to all rows at once"),
    "x[xp.asarray([100])]": ("IndexError", "CuPy takes the index modulo the length"),
    "x[[100]]": ("IndexError", "CuPy takes the index modulo the length"),
    "x[xp.asarray([100])] = 1.0": ("IndexError", "CuPy takes the index modulo the length"),
    "xp.take(x, index + 100, axis=0)": ("IndexError", "CuPy takes the index modulo the length"),
    "xp.add.at(x, xp.asarray([100]), 1.0)": ("IndexError", "CuPy takes the index modulo the length"),
    "x[xp.asarray([1, 1])] = y[:2]": ("ValueError", "in CuPy either row may stay"),
    "x[1.0]": ("IndexError", "CuPy takes the number for an integer"),
    "(x / 0).astype(int)": ("FloatingPointError", "CuPy gives any integer"),
    "ints ** -1": ("ValueError", "CuPy gives 0, and 1 for 1"),
    "xp.sign(mask)": ("TypeError", "CuPy gives integers"),
    "x == None": ("TypeError", "CuPy gives an array of False"),
    "at(1, lambda: xp.zeros_like(x))": ("ValueError", "CuPy makes it on the current device, not on that of x"),
    "at(1, lambda: xp.empty_like(x))": ("ValueError", "CuPy makes it on the current device, not on that of x"),
    "at(1, lambda: x.T.reshape(24))": ("ValueError", "CuPy makes a copy on the current device, not on that of x"),
    "at(1, lambda: x.flatten())": ("ValueError", "CuPy makes a copy on the current device, not on that of x"),
    "at(1, lambda: xp.tile(x, 2))": ("ValueError", "CuPy makes it on the current device, not on that of x"),
    "at(1, lambda: xp.ascontiguousarray(x))": ("ValueError", "CuPy has nothing to do for this x, and gives x"),
    "at(1, lambda: xp.einsum('ij->', x))": ("ValueError", "CuPy computes it on the current device, not on that of x"),
    "at(1, lambda: x @ y.T)": ("ValueError", "CuPy leaves it to cuBLAS, which may not reach that memory"),
    "x @ at(1, lambda: y.T.copy())": ("ValueError", "CuPy leaves it to cuBLAS, which may not reach that memory"),
    "at(1, lambda: x.fill(0))": ("ValueError", "CuPy writes zeros from any device, and no other numbers"),
    "x[:] = at(1, y.copy)": ("ValueError", "CuPy copies from any device, but only between arrays of one layout"),
    "xp.copyto(x, at(1, y.copy))": ("ValueError", "CuPy copies from any device, but only between arrays of one layout"),
    "xp.arange(index[0])": ("TypeError", "CuPy copies the number to the host unseen"),
    "xp.ndarray((2, 2))": ("TypeError", "CuPy makes an array; `empty` does so too"),
}
"""What raises here, and not in CuPy, which does what the reason says."""
