// What several kernels need; launch.py puts it before each of them.
