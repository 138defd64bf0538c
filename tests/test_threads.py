"""Threads of the library's own beside those of others: forks, a user's threads, and BLAS's."""

import os
import subprocess
import sys
import threading
from itertools import cycle

import numpy as np
import pytest

import tinynorm as tn
from tinynorm.kernels import threads

SHAPE = (1300, 1000)
assert SHAPE[0] * SHAPE[1] > threads.ENOUGH

NORM = """
import hashlib, os, sys
import numpy as np
import tinynorm as tn

def digest(n=None):
    if n is not None:
        tn.set_num_threads(n)
    rng = np.random.default_rng(0)
    shapes = (1300, 1000), (1000,)
    x, w = (tn.tensor(rng.standard_normal(shape, dtype=np.float32), requires_grad=True) for shape in shapes)
    y = tn.functional.linear(tn.functional.relu(tn.functional.rms_norm(x, 1000, w)), np.eye(8, 1000, dtype=np.float32))
    y.backward(rng.standard_normal((1300, 8), dtype=np.float32))
    found = hashlib.sha256()
    for array in (y.numpy(), x.grad, w.grad):
        found.update(array.tobytes())
    return found.hexdigest()
"""


def python(code, **environment):
    """What a program prints, which must end within a minute."""
    variables = {**os.environ, **environment}
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", NORM + code]
    done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def results(x, w, dy):
    x, w = (tn.tensor(a, requires_grad=True) for a in (x, w))
    y = tn.functional.rms_norm(x, SHAPE[1], w)
    y.backward(dy)
    return [a.tobytes() for a in (y.numpy(), x.grad, w.grad)]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks are not known here")
@pytest.mark.parametrize("meanwhile", ["", "threads._team.lock.acquire()"])
def test_a_forked_process_has_threads_of_its_own(meanwhile):
    """Also where another thread was just handing out work when the process was forked."""
    parent, child = python(f"""
from tinynorm.kernels import threads
before = digest(2)
reader, writer = os.pipe()
{meanwhile}
if os.fork() == 0:
    os.write(writer, digest().encode())
    os._exit(0)
os.close(writer)
os.wait()
print(before, os.read(reader, 64).decode())
""")
    assert parent == child


@pytest.mark.parametrize("warm", ["", "digest(2)"])
def test_what_runs_when_the_main_thread_has_ended(warm):
    """A thread that nobody waits for, then a function of atexit: no more threads can be had then."""
    found = python(f"""
import atexit, threading
tn.set_num_threads(2)
{warm}
print(digest(1))
def work(main=threading.main_thread()):
    main.join()
    print(digest(2))
threading.Thread(target=work).start()
atexit.register(lambda: print(digest(2)))
""")
    assert found == 3 * found[:1]


def test_the_threads_of_blas_are_another_matter():
    """With BLAS's own threads, too, the number of ours changes no bit."""
    one, two, three = python("print(digest(1), digest(2), digest(3))", OPENBLAS_NUM_THREADS="2")
    assert one == two == three


def test_several_threads_of_a_user_at_once_while_the_number_changes(restored):
    rng = np.random.default_rng(5)
    x, w, dy = (rng.standard_normal(shape, dtype=np.float32) for shape in (SHAPE, SHAPE[1:], SHAPE))
    tn.set_num_threads(1)
    right, found, done = results(x, w, dy), [], threading.Event()

    def work():
        found.extend(results(x, w, dy) == right for _ in range(8))

    def change():
        for n in cycle((1, 2, 3)):
            if done.is_set():
                break
            tn.set_num_threads(n)

    workers, changer = [threading.Thread(target=work) for _ in range(4)], threading.Thread(target=change)
    for thread in (*workers, changer):
        thread.start()
    for thread in workers:
        thread.join()
    done.set()
    changer.join()
    assert found == [True] * 32


def test_what_numpy_is_told_of_overflow_holds_in_all_threads(restored):
    tn.set_num_threads(2)
    x, dy = tn.tensor(np.full(SHAPE, 1.5, np.float32), requires_grad=True), np.full(SHAPE, 3.3e38, np.float32)
    y = tn.functional.silu(x)
    with np.errstate(over="ignore"):  # and a warning is an error here
        y.backward(dy, retain_graph=True)
    assert np.isinf(x.grad).all()
    dy[: SHAPE[0] // 2] = 1.0  # so that it overflows in the other thread
    with np.errstate(over="raise"), pytest.raises(FloatingPointError):
        y.backward(dy)


def test_what_fails_in_a_thread_is_raised_here(restored):
    def run(part):
        if part == "last":
            raise ZeroDivisionError("in another thread")
        return part

    tn.set_num_threads(2)
    with pytest.raises(ZeroDivisionError, match="in another thread"):
        threads.each(run, ["first", "last"], threads.ENOUGH)
    assert threads.each(run, ["first", "second"], threads.ENOUGH) == ["first", "second"]
