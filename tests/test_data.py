"""Mini-batches and the IDX reader. The expected arrays come from bytes packed by hand, never from the reader itself."""

import gzip
import math
import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tinynorm as tn
from tinynorm import data


def idx_bytes(code: int, shape: tuple[int, ...], payload: bytes) -> bytes:
    return bytes([0, 0, code, len(shape)]) + struct.pack(f">{len(shape)}I", *shape) + payload


def rows(n: int) -> tuple[np.ndarray, np.ndarray]:
    """x (n, 2) and y (n,) such that a row of x tells which row of y belongs to it."""
    y = np.arange(n)
    return np.stack([10 * y, -y], axis=1), y


# batches


@given(
    n=st.integers(0, 40),
    batch_size=st.integers(1, 45),
    shuffle=st.booleans(),
    drop_last=st.booleans(),
    seed=st.integers(0, 2**32 - 1),
)
def test_each_row_comes_exactly_once(n: int, batch_size: int, shuffle: bool, drop_last: bool, seed: int) -> None:
    x, y = rows(n)
    got = list(data.batches(x, y, batch_size, shuffle=shuffle, rng=seed, drop_last=drop_last))

    full, rest = divmod(n, batch_size)
    sizes = [batch_size] * full + ([rest] if rest and not drop_last else [])
    assert [len(labels) for _, labels in got] == sizes
    for rows_of_x, labels in got:
        np.testing.assert_array_equal(rows_of_x, np.stack([10 * labels, -labels], axis=1))
    seen = [int(label) for _, labels in got for label in labels]
    assert len(set(seen)) == len(seen) == sum(sizes)
    assert set(seen) <= set(range(n))
    if not shuffle:
        assert seen == list(range(sum(sizes)))


def epoch(rng: np.random.Generator | int | None, n: int = 50) -> list[int]:
    x, y = rows(n)
    return [int(label) for _, labels in data.batches(x, y, 7, rng=rng) for label in labels]


def test_shuffles_unless_told_otherwise() -> None:
    assert epoch(0) != list(range(50))


def test_same_seed_gives_same_batches() -> None:
    assert epoch(3) == epoch(3) == epoch(np.random.default_rng(3))
    assert epoch(3) != epoch(4)


def test_one_generator_gives_each_epoch_its_own_order() -> None:
    rng = np.random.default_rng(0)
    assert epoch(rng) != epoch(rng)


def test_default_generator_moves_on_between_epochs() -> None:
    assert epoch(None) != epoch(None)


def test_one_permutation_is_drawn_per_call() -> None:
    rng, twin = np.random.default_rng(5), np.random.default_rng(5)
    assert epoch(rng) == twin.permutation(50).tolist()
    assert rng.integers(2**60) == twin.integers(2**60)  # nothing else was drawn


def test_order_is_drawn_at_the_call() -> None:
    x, y = rows(50)
    rng = np.random.default_rng(5)
    late = data.batches(x, y, 50, rng=rng)
    rng.permutation(50)
    ((_, labels),) = late
    assert labels.tolist() == np.random.default_rng(5).permutation(50).tolist()


def test_unshuffled_draws_nothing_and_copies_nothing() -> None:
    x, y = rows(5)
    rng = np.random.default_rng(5)
    for rows_of_x, labels in data.batches(x, y, 2, shuffle=False, rng=rng):
        assert np.shares_memory(rows_of_x, x)
        assert np.shares_memory(labels, y)
    assert rng.integers(2**60) == np.random.default_rng(5).integers(2**60)


def test_shuffled_batches_are_copies() -> None:
    x, y = rows(5)
    assert not any(np.shares_memory(rows_of_x, x) for rows_of_x, _ in data.batches(x, y, 2, rng=0))


def test_batches_is_an_iterator_that_ends() -> None:
    x, y = rows(3)
    it = data.batches(x, y, 2, rng=0)
    assert iter(it) is it
    assert len(list(it)) == 2
    assert list(it) == []


@pytest.mark.parametrize("batch_size", [np.int8(100), np.uint8(100), np.int64(100)])
def test_batch_size_may_be_a_numpy_integer(batch_size: int) -> None:
    x, y = rows(300)
    assert [len(labels) for _, labels in data.batches(x, y, batch_size, rng=0)] == [100, 100, 100]


def test_x_of_any_rank_and_dtype() -> None:
    x = np.arange(24, dtype=np.float16).reshape(4, 2, 3)
    y = np.array(["a", "b", "c", "d"])
    for images, labels in data.batches(x, y, 3, rng=1):
        assert images.dtype == np.float16
        for image, label in zip(images, labels, strict=True):
            np.testing.assert_array_equal(image, x["abcd".index(label)])


@pytest.mark.parametrize("shuffle", [False, True])
def test_tensors_give_tensors(shuffle: bool) -> None:
    x, y = rows(5)
    seen = []
    for rows_of_x, labels in data.batches(tn.Tensor(x.astype(np.float32)), y, 2, shuffle=shuffle, rng=0):
        assert isinstance(rows_of_x, tn.Tensor)
        np.testing.assert_array_equal(np.asarray(rows_of_x.data)[:, 0], 10 * labels)
        seen += labels.tolist()
    assert sorted(seen) == [0, 1, 2, 3, 4]


# Each call below is never iterated: the errors must come from the call itself.


def test_lengths_must_agree() -> None:
    with pytest.raises(tn.errors.ShapeError, match=r"batches: x has 5 rows and y has 4"):
        data.batches(np.zeros((5, 2)), np.zeros(4), 2)


def test_0d_is_refused() -> None:
    with pytest.raises(tn.errors.ShapeError, match=r"batches: x is 0-d"):
        data.batches(np.array(1.0), np.zeros(1), 2)
    with pytest.raises(tn.errors.ShapeError, match=r"batches: y is 0-d"):
        data.batches(np.zeros(1), np.float32(1.0), 2)


@pytest.mark.parametrize("batch_size", [0, -1, True, np.True_, 2.0, np.float64(2), "2", None, np.int32(0)])
def test_batch_size_must_be_a_positive_integer(batch_size: object) -> None:
    with pytest.raises(tn.errors.ArgumentError, match=r"batches: batch_size must be an integer >= 1"):
        data.batches(np.zeros(3), np.zeros(3), batch_size)


def test_lists_are_made_arrays() -> None:
    ((x, y),) = data.batches([[0.5], [1.5]], [7, 8], 2, shuffle=False)
    assert (x.dtype, y.dtype) == (np.float32, np.int64)
    assert (x.tolist(), y.tolist()) == ([[0.5], [1.5]], [7, 8])
    with pytest.raises(tn.errors.DTypeError, match="batches: y is a dict, not an array"):
        data.batches(np.zeros(2), {0: 1, 1: 2}, 1)


def test_pandas_is_refused_because_it_indexes_by_label() -> None:
    class Series:
        shape = (2,)
        iloc = None

        def __getitem__(self, index: object) -> object:
            return index

    with pytest.raises(tn.errors.DTypeError, match=r"batches: y is a Series, not an array"):
        data.batches(np.zeros(2), Series(), 1)


# read_idx


NUMBERS = {  # dtype code: (struct letter, NumPy dtype, values that a wrong byte order or a wrong sign would change)
    0x08: ("B", np.uint8, [0, 1, 2, 127, 128, 255]),
    0x09: ("b", np.int8, [0, 1, -1, 127, -128, -2]),
    0x0B: ("h", np.int16, [0, 1, -1, 258, -32768, 32767]),
    0x0C: ("i", np.int32, [0, 1, -1, 16909060, -(2**31), 2**31 - 1]),
    0x0D: ("f", np.float32, [0.0, 1.0, -1.5, 0.15625, -(2.0**-149), 2.0**127]),
    0x0E: ("d", np.float64, [0.0, 1.0, -1.5, 0.1, -(2.0**-1074), 2.0**1023]),
}


@pytest.mark.parametrize("zipped", [False, True])
@pytest.mark.parametrize("code", NUMBERS)
def test_every_dtype(tmp_path: Path, code: int, zipped: bool) -> None:
    letter, dtype, values = NUMBERS[code]
    raw = idx_bytes(code, (2, 3), struct.pack(f">6{letter}", *values))
    path = tmp_path / ("plain.gz" if not zipped else "zipped")  # the name must not matter
    path.write_bytes(gzip.compress(raw) if zipped else raw)

    got = data.read_idx(path)
    assert got.tolist() == [values[:3], values[3:]]
    assert got.dtype == dtype
    assert got.dtype.isnative
    assert got.flags.c_contiguous
    assert got.flags.owndata
    assert got.flags.writeable


def test_bytes_written_by_hand(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"\x00\x00\x0c\x02\x00\x00\x00\x01\x00\x00\x00\x02\x01\x02\x03\x04\xff\xff\xff\xfe")
    assert data.read_idx(str(path)).tolist() == [[0x01020304, -2]]


@pytest.mark.parametrize("shape", [(0,), (3, 0), (1,), (2, 1, 3, 2), (1,) * 64])
def test_any_shape(tmp_path: Path, shape: tuple[int, ...]) -> None:
    path = tmp_path / "a"
    size = math.prod(shape)
    path.write_bytes(idx_bytes(0x08, shape, bytes(range(size))))
    got = data.read_idx(path)
    assert got.shape == shape
    assert got.ravel().tolist() == list(range(size))


GOOD = idx_bytes(0x0B, (2, 3), bytes(12))
NOISE = np.random.default_rng(0).bytes(300)
ZIPPED = gzip.compress(idx_bytes(0x08, (300,), NOISE))

BAD_FILES = {
    "html": (
        b"<!DOCTYPE html><html>404</html>",
        r"is not an IDX file: it starts with b'<!DOCTYPE html>.*two zero bytes",
    ),
    "second magic byte": (b"\x00\x01" + GOOD[2:], r"is not an IDX file"),
    "one letter": (b"a", r"is not an IDX file"),
    "zipped html": (gzip.compress(b"<html>"), r"is not an IDX file: it starts with b'<html>'"),
    "unknown dtype": (idx_bytes(0x0A, (2,), bytes(2)), r"has dtype code 0x0A"),
    "all zeros": (bytes(100), r"has dtype code 0x00"),
    "no dimensions": (idx_bytes(0x08, (), bytes(1)), r"has 0 dimensions"),
    "empty": (b"", r"has a truncated header: expected 8 bytes, found 0"),
    "half a magic": (GOOD[:3], r"has a truncated header: expected 8 bytes, found 3"),
    "no sizes": (GOOD[:4], r"has a truncated header: expected 12 bytes, found 4"),
    "half a size": (GOOD[:11], r"has a truncated header: expected 12 bytes, found 11"),
    "no data": (GOOD[:12], r"has truncated data: expected 12 bytes for int16 \(2, 3\), found 0"),
    "half a number": (GOOD[:-1], r"has truncated data: expected 12 bytes for int16 \(2, 3\), found 11"),
    "immense": (idx_bytes(0x0E, (2**32 - 1,) * 9, bytes(8)), r"has truncated data: expected \d{80,} bytes"),
    "trailing": (GOOD + b"\n", r"has trailing bytes: expected 12 bytes for int16 \(2, 3\), found 13"),
    "65 dimensions": (idx_bytes(0x08, (1,) * 65, b"a"), r"has a shape that NumPy cannot hold"),
    "empty but immense": (idx_bytes(0x08, (0, 2**32 - 1, 2**32 - 1), b""), r"has a shape that NumPy cannot hold"),
    "gzip cut short": (ZIPPED[:-20], r"is a damaged gzip file"),
    "gzip header only": (ZIPPED[:5], r"is a damaged gzip file"),
    "gzip magic only": (b"\x1f\x8b", r"is a damaged gzip file"),
    "gzip bad checksum": (ZIPPED[:-8] + bytes(8), r"is a damaged gzip file"),
    "gzip bad block": (ZIPPED[:10] + b"\xff" * 50, r"is a damaged gzip file"),
    "gzip and then not": (ZIPPED + b"rubbish", r"is a damaged gzip file"),
}


@pytest.mark.parametrize("case", BAD_FILES)
def test_bad_files(tmp_path: Path, case: str) -> None:
    content, message = BAD_FILES[case]
    path = tmp_path / "the-file"
    path.write_bytes(content)
    with pytest.raises(tn.errors.DataError, match=rf"(?s)read_idx: path .*the-file {message}.*download it again$"):
        data.read_idx(path)


@given(end=st.integers(0, len(ZIPPED) - 1))
def test_gzip_cut_anywhere_is_a_data_error(tmp_path_factory: pytest.TempPathFactory, end: int) -> None:
    path = tmp_path_factory.getbasetemp() / "cut"
    path.write_bytes(ZIPPED[:end])
    with pytest.raises(tn.errors.DataError):
        data.read_idx(path)


@given(at=st.integers(10, len(ZIPPED) - 1), bit=st.integers(0, 7))
def test_gzip_with_a_flipped_bit_never_gives_other_numbers(
    tmp_path_factory: pytest.TempPathFactory, at: int, bit: int
) -> None:
    flipped = bytearray(ZIPPED)
    flipped[at] ^= 1 << bit
    path = tmp_path_factory.getbasetemp() / "flipped"
    path.write_bytes(flipped)
    try:
        got = data.read_idx(path)
    except tn.errors.DataError:
        return
    assert got.tobytes() == NOISE  # a bit that gzip leaves unused


def test_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="not-there"):
        data.read_idx(tmp_path / "not-there")


def test_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(tn.errors.DataError, match=r"read_idx: path .* is a directory; pass one IDX file inside it"):
        data.read_idx(tmp_path)


# mnist


def write_mnist(directory: Path, sizes: tuple[int, int] = (3, 2), mark: str = "-", zipped: bool = False) -> None:
    """Image i of a split is all `100 * i + 55`, but for a first row that counts 0, 1, 2, ...; label i is 9 - i."""
    for split, n in zip(("train", "t10k"), sizes, strict=True):
        images = b"".join(bytes(range(28)) + bytes([100 * i + 55]) * (27 * 28) for i in range(n))
        files = {
            f"{split}-images{mark}idx3-ubyte": idx_bytes(0x08, (n, 28, 28), images),
            f"{split}-labels{mark}idx1-ubyte": idx_bytes(0x08, (n,), bytes(9 - i for i in range(n))),
        }
        for name, raw in files.items():
            (directory / (name + ".gz" * zipped)).write_bytes(gzip.compress(raw) if zipped else raw)


@pytest.mark.parametrize("mark", ["-", "."])
@pytest.mark.parametrize("zipped", [False, True])
def test_mnist(tmp_path: Path, mark: str, zipped: bool) -> None:
    write_mnist(tmp_path, mark=mark, zipped=zipped)
    x_train, y_train, x_test, y_test = data.mnist(tmp_path)
    for x, y, n in ((x_train, y_train, 3), (x_test, y_test, 2)):
        assert x.dtype == np.float32
        assert y.dtype == np.int64
        assert x.shape == (n, 784)
        assert y.tolist() == [9, 8, 7][:n]
        for i, image in enumerate(x):
            expected = [k / 255 for k in range(28)] + [(100 * i + 55) / 255] * (27 * 28)
            np.testing.assert_allclose(image, expected, rtol=2**-23)  # one rounding to float32, with room for a second
    assert x_train.max() == 1.0  # 255 is exactly 1
    assert x_train.min() == 0.0


def test_mnist_takes_a_str_and_no_images(tmp_path: Path) -> None:
    write_mnist(tmp_path, sizes=(0, 1))
    x_train, y_train, x_test, _ = data.mnist(str(tmp_path))
    assert x_train.shape == (0, 784)
    assert y_train.shape == (0,)
    assert x_test.shape == (1, 784)


def test_mnist_looks_past_a_folder_with_the_name_of_a_file(tmp_path: Path) -> None:
    write_mnist(tmp_path, mark=".")
    (tmp_path / "train-images-idx3-ubyte").mkdir()
    assert data.mnist(tmp_path)[0].shape == (3, 784)


@pytest.mark.parametrize(
    "name",
    ["train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"],
)
def test_mnist_names_the_missing_file(tmp_path: Path, name: str) -> None:
    write_mnist(tmp_path)
    (tmp_path / name).unlink()
    with pytest.raises(tn.errors.DataError) as caught:
        data.mnist(tmp_path)
    stem, kind = name.rsplit("-idx", 1)
    message = str(caught.value)
    assert message.startswith(f"mnist: directory {tmp_path} has no {name} or {name}.gz or {stem}.idx{kind} or ")
    assert message.endswith("download the four files from https://github.com/cvdfoundation/mnist")


def test_mnist_without_the_directory(tmp_path: Path) -> None:
    with pytest.raises(tn.errors.DataError, match=r"mnist: directory .*nowhere is not there; download"):
        data.mnist(tmp_path / "nowhere")


MISFITS = [  # file, dtype code and shape of what is put in its place, message
    ("train-labels-idx1-ubyte", 0x08, (2,), r"has 3 train-images, but 2 train-labels"),
    ("t10k-images-idx3-ubyte", 0x08, (1, 28, 28), r"has 1 t10k-images, but 2 t10k-labels"),
    ("train-images-idx3-ubyte", 0x08, (3, 784), r"has train-images of uint8 \(3, 784\)"),
    ("train-images-idx3-ubyte", 0x08, (3, 28, 27), r"has train-images of uint8 \(3, 28, 27\)"),
    ("t10k-images-idx3-ubyte", 0x08, (2,), r"has t10k-images of uint8 \(2,\)"),
    ("t10k-images-idx3-ubyte", 0x09, (2, 28, 28), r"has t10k-images of int8 \(2, 28, 28\)"),
    ("t10k-labels-idx1-ubyte", 0x08, (2, 1), r"has t10k-labels of uint8 \(2, 1\)"),
    ("train-labels-idx1-ubyte", 0x09, (3,), r"has train-labels of int8 \(3,\)"),
]


@pytest.mark.parametrize(("name", "code", "shape", "message"), MISFITS)
def test_mnist_refuses_what_does_not_fit(
    tmp_path: Path, name: str, code: int, shape: tuple[int, ...], message: str
) -> None:
    write_mnist(tmp_path)
    (tmp_path / name).write_bytes(idx_bytes(code, shape, bytes(math.prod(shape))))
    with pytest.raises(tn.errors.DataError, match=rf"mnist: directory .* {message}.*; download the four files from"):
        data.mnist(tmp_path)


def test_mnist_passes_on_the_errors_of_read_idx(tmp_path: Path) -> None:
    write_mnist(tmp_path)
    (tmp_path / "t10k-labels-idx1-ubyte").write_bytes(b"<html>")
    with pytest.raises(tn.errors.DataError, match=r"read_idx: path .*t10k-labels-idx1-ubyte is not an IDX file"):
        data.mnist(tmp_path)
