"""What editors and type checkers see of the package: mypy --strict passes on a user's program, functions have signatures, and
names are completed behind `lgpu.Context()`.

typing_test.py FOLDER: the environment of scripts/python-env with mypy."""

import ast
import inspect
import os
import pathlib
import subprocess
import sys
import unittest

import jedi

import lgpu
from lgpu import distribute

MYPY = pathlib.Path(sys.argv[1], "bin", "mypy")
PROGRAM = pathlib.Path(__file__).with_name("typed_program.py")
PACKAGE = pathlib.Path(lgpu.__file__).parent


def completed(code):
    return {completion.name for completion in jedi.Script(code).complete()}


def members(kind):
    return [getattr(kind, name) for name in dir(kind) if not name.startswith("_") and callable(getattr(kind, name))]


class TypingTest(unittest.TestCase):
    @unittest.skipUnless(MYPY.exists(), "mypy is not installed: scripts/python-env python/tests/requirements.txt installs it")
    def test_mypy_strict_passes_on_a_program(self):
        done = subprocess.run([MYPY, "--strict", "--follow-imports=silent", "--cache-dir=/dev/null", "--python-executable",
                               sys.executable, PROGRAM], capture_output=True, text=True, timeout=500,
                              env={**os.environ, "MYPYPATH": str(PACKAGE.parent)})
        self.assertEqual((done.returncode, done.stderr), (0, ""), done.stdout)

    @unittest.skipUnless(MYPY.exists(), "mypy is not installed")
    def test_mypy_knows_no_name_that_is_not_there(self):
        done = subprocess.run([MYPY, "--strict", "--follow-imports=silent", "--cache-dir=/dev/null", "--python-executable",
                               sys.executable, "-c", "import lgpu\nlgpu.torch.enable()\nlgpu.matmull"], capture_output=True,
                              text=True, timeout=500, env={**os.environ, "MYPYPATH": str(PACKAGE.parent)})
        self.assertEqual(done.returncode, 1)
        self.assertRegex(done.stdout, '^<string>:3: error: Module has no attribute "matmull"')

    def test_the_typed_program_runs(self):
        done = subprocess.run([sys.executable, PROGRAM], capture_output=True, text=True, timeout=60)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertIn("[10.0, 10.0]\n", done.stdout)

    def test_the_list_of_names_is_a_literal(self):
        tree = ast.parse((PACKAGE / "__init__.py").read_text())
        values = [node.value for node in tree.body if isinstance(node, ast.Assign) and node.targets[0].id == "__all__"]
        self.assertEqual([ast.literal_eval(value) for value in values], [sorted(lgpu.__all__)])
        self.assertEqual(set(lgpu.__all__) - set(vars(lgpu)), set(lgpu._HOME_OF) - set(vars(lgpu)))

    def test_functions_and_methods_have_signatures(self):
        self.assertEqual(str(inspect.signature(lgpu.matmul)), "(a, b, *, transpose_a=False, transpose_b=False)")
        self.assertEqual(str(inspect.signature(lgpu.reduce_sum)), "(input, axis=None, keepdims=False)")
        self.assertEqual(str(inspect.signature(lgpu.Tensor.reshape)), "(self, /, shape)")
        kinds = [getattr(lgpu, name) for name in lgpu.__all__] + [getattr(distribute, name) for name in distribute.__all__]
        kinds = [kind for kind in kinds if isinstance(kind, type) and not issubclass(kind, lgpu.Error)]
        functions = [value for module in (lgpu, distribute) for value in map(module.__dict__.get, module.__all__)
                     if callable(value) and not isinstance(value, type)]
        self.assertGreater((len(kinds), len(functions)), (10, 30))
        for function in [*functions, *(method for kind in kinds for method in members(kind))]:
            inspect.signature(function)

    def test_a_method_with_a_signature_is_called_as_before(self):
        with lgpu.Context(endpoint="local:1x64MiB") as ctx:
            tensor = ctx.constant([1.0, 2.0])
            self.assertEqual(str(inspect.signature(tensor.reshape)), "(shape)")
            self.assertEqual([tensor.reshape([2, 1]).shape, tensor.reshape(shape=[1, 2]).shape], [(2, 1), (1, 2)])
            self.assertEqual(lgpu.Tensor.tolist(tensor), [1, 2])
            for wrong in (lambda: tensor.reshape(), lambda: tensor.reshape([2], [2]), lambda: tensor.reshape(wrong=[2]),
                          lambda: lgpu.Tensor.tolist(1), lambda: tensor.reshape(*[[2]] * 20)):
                self.assertRaises(TypeError, wrong)
            self.assertIn("The same elements", lgpu.Tensor.reshape.__doc__)

    def test_names_are_completed(self):
        self.assertLessEqual(set(lgpu.__all__), completed("import lgpu\nlgpu."))
        self.assertLessEqual({"constant", "device", "memory_info"}, completed("import lgpu\nctx = lgpu.Context()\nctx."))
        for made in ("lgpu.Context().constant([1.0])", "lgpu.matmul(1, 2)", "lgpu.constant(1)"):
            self.assertLessEqual({"numpy", "shape", "reshape"}, completed(f"import lgpu\n{made}."))


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
