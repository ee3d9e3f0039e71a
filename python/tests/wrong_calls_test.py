"""Calls with random arguments, most of them wrong: each returns, or ends in an error that is meant for the caller. Nothing
is left behind.

wrong_calls_test.py [CALLS [SEED]] [--trace]: --trace prints each call before it is made."""

import faulthandler
import gc
import inspect
import os
import random
import re
import sys
import unittest
import warnings

import numpy as np

ENDPOINT = os.environ["LGPU_ENDPOINT"] = "local:2x64MiB"

import lgpu  # noqa: E402
from lgpu import config, debugging, distribute, errors  # noqa: E402

NUMBERS = [int(arg) for arg in sys.argv[1:] if arg.isdigit()] + [4000, 1][sum(arg.isdigit() for arg in sys.argv[1:]):]
CALLS, SEED = NUMBERS[:2]
TRACE = "--trace" in sys.argv

# Of a fault of the package, or of words that are not for its users.
FAULTS = (AttributeError, NameError, AssertionError, RecursionError, SystemError, KeyError, OverflowError, MemoryError,
          ZeroDivisionError)
FOREIGN = re.compile(r"Unable to|setting an array|array is too big|cannot convert|'.*' object is not iter|has no attribute|"
                     r"only integer scalar|only length|only 0-dim|not supported between|must be real number|"
                     r"unhashable|std::|bad_alloc|bad_cast|basic_string|nanobind|ambiguous", re.DOTALL)
NOT_CALLED = {"close", "__class__", "__class_getitem__", "__del__", "__delattr__", "__dir__", "__enter__", "__exit__", "__format__", "__getattr__",
              "__getattribute__", "__getstate__", "__hash__", "__init__", "__init_subclass__", "__new__", "__reduce__",
              "__reduce_ex__", "__repr__", "__setattr__", "__setstate__", "__sizeof__", "__str__", "__subclasshook__"}


class OfTheUser(Exception):
    """What the methods of the caller's own objects raise."""


class Faulty:
    def fail(self, *_, **__):
        raise OfTheUser

    __index__ = __float__ = __len__ = __iter__ = __getitem__ = __dlpack__ = __dlpack_device__ = __array__ = __fspath__ = fail


class NoCapsule:
    def __dlpack__(self, **_):
        return 5

    def __dlpack_device__(self):
        return (1, 0)


class NoDevice(NoCapsule):
    def __dlpack_device__(self):
        return 5


VALUES = [
    None, True, False, 0, 1, -1, 2, 7, 1 << 31, 1 << 32, 1 << 63, 1 << 64, -(1 << 63), 1 << 70, 0.5, -1.5, float("nan"),
    float("inf"), 1e300, 1j, "", "GPU:0", "GPU:1", "GPU:9", "/CPU:0", "x\0y", "\ud800", "2MiB", "-1MiB", "1e9", "float32",
    "int32", "foo", "MatMul", "silent", "sum", "a" * 5000, b"ab", [], [1], [1, 2], [[1], [2, 3]], [None], (), (1, 2), {},
    {"a": 1}, set(), object(), Faulty(), NoCapsule(), NoDevice(), np.float32(1), np.int64(0), np.zeros(3), np.array("x"),
    np.zeros((2, 2), ">f4"), np.zeros(3, bool), np.zeros((4, 4))[::2], np.dtype("f4"), int, lambda *_: None, lgpu, [-1],
    [1 << 40, 1 << 40], [0], [2, 2], range(3), ..., slice(0, 1)]


def members(owner, of):
    """The functions of a module or an object that a program may call."""
    for name in dir(owner):
        is_special = name.startswith("__") and not inspect.ismodule(owner) and not inspect.isclass(owner)
        if name in NOT_CALLED or name.startswith("_") and not is_special:
            continue
        member = getattr(owner, name, None)
        if callable(member) and (of is None or getattr(member, "__module__", "").startswith(of)):
            yield name, member


class WrongCallsTest(unittest.TestCase):
    maxDiff = None

    def setUp(self):
        faulthandler.enable()
        warnings.simplefilter("ignore")
        self.random = random.Random(SEED)
        self.ctx = lgpu.Context(devices=2, memory_limit="32MiB", endpoint=ENDPOINT, log_sink=lambda line: None)
        self.addCleanup(self.ctx.__exit__, None, None, None)
        self.ctx.__enter__()
        self.memory = self.ctx.memory("GPU:0")
        constant = self.ctx.constant
        self.tensors = [constant([1.0, 2.0]), constant([[1.0, 2.0], [3.0, 4.0]]), constant(3), constant(np.zeros((0, 3), np.float32)),
                        constant(np.ones((2, 2))), constant([1, 2], "int64"), constant([1.0], "bfloat16"), constant([1.0], "float16")]

    def functions(self):
        with_calls = [self.ctx, *self.tensors[:4:2], self.memory, lgpu.MirroredStrategy(self.ctx),
                      lgpu.Config(endpoint=ENDPOINT, log_sink=lambda line: None)]
        found = [(name, function) for name, function in members(lgpu, None)
                 if not (inspect.isclass(function) and issubclass(function, BaseException))]
        for module in (config, debugging, distribute):
            found += members(module, "lgpu")
        found += members(config.experimental, None)
        for owner in with_calls:
            found += [(f"{type(owner).__name__}.{name}", function) for name, function in members(owner, None)]
        return found

    def value(self):
        kind = self.random.random()
        if kind < 0.3:
            return self.random.choice(self.tensors)
        if kind < 0.4:
            return [self.random.choice(self.tensors) for _ in range(self.random.randint(0, 3))]
        if kind < 0.45:
            return [self.random.choice(VALUES) for _ in range(self.random.randint(0, 3))]
        return self.random.choice(VALUES + [self.ctx])

    def arguments(self, function):
        positional = [self.value() for _ in range(self.random.choice([0, 1, 1, 2, 2, 3, 4]))]
        named = {}
        if self.random.random() < 0.3:
            try:
                names = list(inspect.signature(function).parameters)
            except (TypeError, ValueError):
                names = []
            named = {name: self.value() for name in names if self.random.random() < 0.3}
        return positional, named

    def settle(self):
        """What calls have set, and what they have left."""
        config._forget()
        self.ctx.set_log_device_placement(False)
        self.ctx.set_soft_device_placement(True)
        self.ctx.set_device_policy("silent")
        gc.collect()

    def left(self):
        self.settle()
        self.ctx.trim()
        return ([self.ctx.memory_info(device)["current"] for device in ("GPU:0", "GPU:1")], self.ctx.exports(),
                len(os.listdir("/proc/self/fd")))

    def fault_of(self, name, call):
        """None: the call returned, or its error is meant for the caller."""
        try:
            made = call()
            if name == "LogicalMemory.allocate":
                self.memory.free(made, stream=0)
            elif name.endswith(".suspend"):
                self.ctx.resume()  # or most calls would only say that it is suspended
            elif isinstance(made, lgpu.Context) and made is not self.ctx or isinstance(made, lgpu.LogicalMemory):
                made.close()
        except OfTheUser:
            return None
        except errors.Error as error:
            return None if str(error) else repr(error)
        except Exception as error:
            return repr(error) if isinstance(error, FAULTS) or FOREIGN.search(str(error)) else None
        return None

    def test_each_call_returns_or_says_what_is_wrong(self):
        functions = self.functions()
        before = self.left()
        faults = {}
        for number in range(CALLS):
            name, function = self.random.choice(functions)
            positional, named = self.arguments(function)
            if TRACE:
                print(name, positional, named, flush=True)
            fault = self.fault_of(name, lambda: function(*positional, **named))
            if fault is not None:
                faults.setdefault(f"{name}: {fault}"[:200], f"{positional!r} {named!r}"[:300])
            if number % 500 == 0:
                self.settle()
        self.assertEqual(faults, {}, f"seed {SEED}")
        del function, positional, named
        self.assertEqual(self.left(), before)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
