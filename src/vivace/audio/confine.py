"""Confines the process that decodes untrusted audio with seccomp, Landlock and resource limits.

The confinement is irreversible. Mechanisms that the system does not support are skipped;
`Confinement` lists the active ones.
"""

from __future__ import annotations

import ctypes
import os
import platform
import struct
import sys
from dataclasses import dataclass

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]

MAX_EXTRA_BYTES = 512 * 2**20  # address space in addition to what the imports use
NO_NEW_PRIVS, DUMPABLE = 38, 4  # prctl


@dataclass(frozen=True, slots=True, kw_only=True)
class Confinement:
    """Active restrictions of a decoding process."""

    limits: bool = False  # on open files, written bytes and CPU time
    memory: bool = False  # limit on the address space
    landlock: int = 0  # ABI version of Landlock that denies all file access; 0: inactive
    seccomp: bool = False  # only the system calls that decoding needs are allowed

    def __str__(self) -> str:
        parts = {
            "seccomp": self.seccomp,
            f"Landlock {self.landlock}": self.landlock,
            "resource limits": self.limits,
            "memory limit": self.memory,
        }
        return (
            ", ".join(name for name, is_active in parts.items() if is_active) or "time limit only"
        )


def confine() -> Confinement:
    """Confine this process irreversibly."""
    used_bytes = _address_space()  # before file access is denied
    if sys.platform != "linux":
        return Confinement(limits=limit_resources(), memory=limit_memory(used_bytes))
    libc = ctypes.CDLL(None, use_errno=True)
    libc.syscall.restype = ctypes.c_long
    _prctl(libc, DUMPABLE, 0)  # no debugger, no core file
    has_no_new_privileges = _prctl(libc, NO_NEW_PRIVS, 1)  # required by Landlock and seccomp
    return Confinement(
        landlock=deny_files(libc) if has_no_new_privileges else 0,  # needs a file descriptor
        limits=limit_resources(),
        memory=limit_memory(used_bytes),
        seccomp=has_no_new_privileges and deny_calls(libc),
    )


def _prctl(libc: ctypes.CDLL, option: int, value: int) -> bool:
    arguments = map(ctypes.c_ulong, (value, 0, 0, 0))
    return int(libc.prctl(ctypes.c_int(option), *arguments)) == 0


# -- resource limits (not on Windows) -----------------------------------------------------------


def limit_resources() -> bool:
    """Forbid new open files, processes, written bytes and core files."""
    is_set = [_lower(name, 0) for name in ("NOFILE", "NPROC", "FSIZE", "CORE")]
    return all(is_set)


def limit_memory(used_bytes: int) -> bool:
    return bool(used_bytes) and _lower("AS", used_bytes + MAX_EXTRA_BYTES)


def limit_cpu(seconds: float) -> None:
    """Terminate this process with SIGXCPU after about `seconds` of further CPU time."""
    if resource is None:
        return
    used = resource.getrusage(resource.RUSAGE_SELF)
    ceiling = int(used.ru_utime + used.ru_stime + seconds) + 1
    resource.setrlimit(resource.RLIMIT_CPU, (ceiling, resource.RLIM_INFINITY))


def _lower(name: str, ceiling: int) -> bool:
    try:
        resource.setrlimit(getattr(resource, f"RLIMIT_{name}"), (ceiling, ceiling))
    except (AttributeError, OSError, ValueError):  # not on this system
        return False
    return True


def _address_space() -> int:
    """Address space of this process in bytes; 0 if the system does not report it (macOS)."""
    try:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, AttributeError, ValueError):
        return 0


# -- Landlock: file access control of the kernel (Linux 5.13 and later) --------------------------

LANDLOCK_CREATE, LANDLOCK_RESTRICT = 444, 446  # the same numbers on every architecture
LANDLOCK_VERSION = 1
# Number of access rights by ABI version: files, TCP ports, signals and abstract sockets.
LANDLOCK_RIGHTS = {1: (13, 0, 0), 2: (14, 0, 0), 3: (15, 0, 0), 4: (15, 2, 0), 5: (16, 2, 0)}
LANDLOCK_LATER = (16, 2, 2)


def deny_files(libc: ctypes.CDLL) -> int:
    """Deny every access right of this kernel's Landlock. Returns its version, or 0."""
    version = libc.syscall(
        ctypes.c_long(LANDLOCK_CREATE), None, ctypes.c_size_t(0), ctypes.c_uint(LANDLOCK_VERSION)
    )
    if version < 1:
        return 0
    rights = LANDLOCK_RIGHTS.get(version, LANDLOCK_LATER)
    attributes = struct.pack("<3Q", *(2**count - 1 for count in rights))
    rules = libc.syscall(
        ctypes.c_long(LANDLOCK_CREATE),
        attributes,
        ctypes.c_size_t(len(attributes)),
        ctypes.c_uint(0),
    )
    if rules < 0:
        return 0
    is_denied = libc.syscall(ctypes.c_long(LANDLOCK_RESTRICT), ctypes.c_int(rules), 0) == 0
    os.close(rules)
    return int(version) if is_denied else 0


# -- seccomp: a filter that the kernel runs before each system call ------------------------------

FILTER_MODE, ALL_THREADS = 1, 1
ALLOW, REFUSE_EPERM = 0x7FFF0000, 0x00050001
LOAD, JUMP_IF_EQUAL, RETURN = 0x20, 0x15, 0x06
NUMBER_AT, MACHINE_AT, FIRST_ARGUMENT_AT = 0, 4, 16  # offsets in struct seccomp_data; high half +4
MACHINES = {"x86_64": (0xC000003E, 317), "aarch64": (0xC00000B7, 277)}  # audit number, seccomp(2)

ALLOWED_CALLS = {  # numbers on x86-64 and aarch64: memory, open pipes, clocks, threads, exit
    "read": (0, 63), "write": (1, 64), "readv": (19, 65), "writev": (20, 66), "close": (3, 57),
    "lseek": (8, 62), "fstat": (5, 80),
    "mmap": (9, 222), "mprotect": (10, 226), "munmap": (11, 215), "mremap": (25, 216),
    "brk": (12, 214), "madvise": (28, 233),
    "futex": (202, 98), "sched_yield": (24, 124), "sched_getaffinity": (204, 123),
    "nanosleep": (35, 101), "clock_nanosleep": (230, 115), "restart_syscall": (219, 128),
    "clock_gettime": (228, 113), "clock_getres": (229, 114), "gettimeofday": (96, 169),
    "getrandom": (318, 278), "getpid": (39, 172), "gettid": (186, 178), "getrusage": (98, 165),
    "rt_sigaction": (13, 134), "rt_sigprocmask": (14, 135), "rt_sigreturn": (15, 139),
    "sigaltstack": (131, 132),
    "exit": (60, 93), "exit_group": (231, 94),
}  # fmt: skip
SET_LIMIT = (302, 261)  # prlimit64, only for this process: the first argument is 0


def deny_calls(libc: ctypes.CDLL) -> bool:
    """Reject all other system calls with EPERM. Returns whether the kernel accepted the filter."""
    if platform.machine() not in MACHINES or struct.calcsize("P") != 8:
        return False
    column = list(MACHINES).index(platform.machine())
    machine, seccomp = MACHINES[platform.machine()]
    code = build_filter(machine, column)
    instructions = ctypes.create_string_buffer(code, len(code))
    program = ctypes.create_string_buffer(
        struct.pack("<HxxxxxxQ", len(code) // 8, ctypes.addressof(instructions))
    )
    status = libc.syscall(
        ctypes.c_long(seccomp), ctypes.c_uint(FILTER_MODE), ctypes.c_uint(ALL_THREADS), program
    )
    return int(status) == 0


def build_filter(machine: int, column: int) -> bytes:
    """A BPF program. A failed comparison skips the instructions that belong to the comparison."""
    code = [
        _instruction(LOAD, MACHINE_AT),
        _instruction(JUMP_IF_EQUAL, machine, then=1),
        _instruction(RETURN, REFUSE_EPERM),
        _instruction(LOAD, NUMBER_AT),
    ]
    for numbers in ALLOWED_CALLS.values():
        code += [
            _instruction(JUMP_IF_EQUAL, numbers[column], otherwise=1),
            _instruction(RETURN, ALLOW),
        ]
    code += [
        _instruction(JUMP_IF_EQUAL, SET_LIMIT[column], otherwise=5),
        _instruction(LOAD, FIRST_ARGUMENT_AT),
        _instruction(JUMP_IF_EQUAL, 0, otherwise=3),
        _instruction(LOAD, FIRST_ARGUMENT_AT + 4),
        _instruction(JUMP_IF_EQUAL, 0, otherwise=1),
        _instruction(RETURN, ALLOW),
        _instruction(RETURN, REFUSE_EPERM),
    ]
    return b"".join(code)


def _instruction(operation: int, value: int, *, then: int = 0, otherwise: int = 0) -> bytes:
    return struct.pack("<HBBI", operation, then, otherwise, value)
