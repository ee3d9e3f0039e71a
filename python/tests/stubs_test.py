"""The stub of the module in C++ is what nanobind makes of it, and every name of the package is documented and typed.

stubs_test.py FOLDER [--write]: FOLDER holds _core.pyi; --write renews it."""

import inspect
import pathlib
import re
import sys
import unittest

import lgpu
from lgpu import _core
from nanobind.stubgen import StubGen

FOLDER = pathlib.Path(sys.argv[1])


def stub():
    """Before the package gives the module's functions signatures that nanobind does not read."""
    generator = StubGen(_core, include_docstrings=True)
    generator.put(_core)
    # mypy --strict takes no bare containers, which is all that nanobind knows.
    items = {"dict": "dict[str, Any]", "list": "list[Any]", "tuple": "tuple[Any, ...]"}
    return re.sub(r"(?<=[ (])(dict|list|tuple)(?=[:,)])", lambda match: items[match[1]], generator.get())


STUB = stub()


class StubsTest(unittest.TestCase):
    def test_the_stub_is_what_the_module_is(self):
        self.assertEqual((FOLDER / "_core.pyi").read_text(), STUB, "renew it with stubs_test.py FOLDER --write")
        self.assertTrue((FOLDER / "py.typed").exists())

    def test_every_name_is_there_and_documented(self):
        self.assertEqual([name for name in lgpu.__all__ if getattr(lgpu, name, None) is None], [])
        undocumented = [name for name in lgpu.__all__ if not (getattr(lgpu, name).__doc__ or "").strip()]
        self.assertEqual(undocumented, [])
        for kind in (lgpu.Context, lgpu.Config):
            members = [name for name, member in inspect.getmembers(kind, callable)
                       if not name.startswith("_") and not name.startswith("get_") and not member.__doc__]
            self.assertEqual(members, [])

    def test_there_is_one_version(self):
        root = FOLDER.parents[1]
        for file, pattern in (("CMakeLists.txt", r"project\(lgpu VERSION ([0-9.]+)"), ("pyproject.toml", r'version = "([0-9.]+)"')):
            self.assertEqual(re.search(pattern, (root / file).read_text()).group(1), lgpu.__version__, file)

    def test_a_name_that_is_not_there(self):
        with self.assertRaisesRegex(AttributeError, "no attribute 'nothing'"):
            lgpu.nothing
        self.assertLessEqual(set(lgpu.__all__), set(dir(lgpu)))


if __name__ == "__main__":
    if sys.argv[2:] == ["--write"]:
        (FOLDER / "_core.pyi").write_text(STUB)
    else:
        unittest.main(argv=sys.argv[:1])
