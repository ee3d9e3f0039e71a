"""The notebook runs, and shows what it says; the programs of docs/python.md do, too.

notebook_test.py NOTEBOOK PAGE"""

import contextlib
import io
import re
import sys
import tempfile
import unittest

import nbclient
import nbformat
import traitlets.config

NOTEBOOK, PAGE = sys.argv[1:]


class NotebookTest(unittest.TestCase):
    def test_the_notebook_runs(self):
        with open(NOTEBOOK, encoding="utf-8") as file:
            notebook = nbformat.read(file, as_version=4)
        nbformat.validate(notebook)
        self.assertFalse([cell for cell in notebook.cells if cell.get("outputs")], "keep no outputs in the file")
        # Over unix sockets: for TCP the client picks ports that are free now, and the kernel takes them seconds later.
        with tempfile.TemporaryDirectory(prefix="lgpu-", dir="/tmp") as folder:
            sockets = traitlets.config.Config({"KernelManager": {"transport": "ipc", "ip": f"{folder}/kernel"}})
            nbclient.NotebookClient(notebook, timeout=120, kernel_name="python3", config=sockets).execute()
        outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
        text = "\n".join(output.get("text", "") + output.get("data", {}).get("text/plain", "") for output in outputs)
        html = "\n".join(output.get("data", {}).get("text/html", "") for output in outputs)
        for expected in ("Executing op MatMul in device /job:localhost/replica:0/task:0/device:GPU:1",
                         "device=CPU:0 [[ 3. 6.] [ 9. 24.]]", "memory limit reached on /device:GPU:0", "'reason': 'limit'",
                         "writeable: False", "1 array (8B) still uses", "goes down: True", "It does not run here: "):
            self.assertIn(expected, text)
        self.assertFalse([output.text for output in outputs if output.get("name") == "stderr"], "which notebooks show in red")
        self.assertEqual(html.count("32.00MiB limit"), 4)  # two devices, shown twice

    def test_the_pages_programs_print_what_they_say(self):
        with open(PAGE, encoding="utf-8") as file:
            programs = re.findall(r"```python\n(.*?)```", file.read(), re.DOTALL)
        self.assertEqual(len(programs), 2)
        for program in programs:
            said = [line.split("# ")[-1].removesuffix(", without a copy").strip()
                    for line in program.splitlines() if line.strip().startswith("print(")]
            out = io.StringIO()
            with contextlib.redirect_stdout(out):
                exec(compile(program, PAGE, "exec"), {})
            self.assertEqual(out.getvalue().splitlines(), said)
            self.assertGreater(len(said), 0)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
