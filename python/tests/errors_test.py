"""Each exception is an lgpu.Error and one of Python's own, and survives pickle."""

import copy
import pickle
import unittest

import lgpu
from lgpu import errors

KINDS = {1: RuntimeError, 3: ValueError, 4: TimeoutError, 5: LookupError, 6: ValueError, 7: PermissionError, 8: RuntimeError,
         9: RuntimeError, 10: RuntimeError, 12: NotImplementedError, 13: RuntimeError, 14: ConnectionError,
         16: PermissionError}


class ErrorsTest(unittest.TestCase):
    def test_each_status_is_an_exception_of_pythons(self):
        self.assertEqual(set(KINDS), set(errors._BY_NUMBER))
        for number, kind in KINDS.items():
            error = errors._make(number, "what failed; why", None)
            self.assertIsInstance(error, kind)
            self.assertIsInstance(error, lgpu.Error)
            self.assertEqual((str(error), error.refusal), ("what failed; why", None))
        self.assertIs(type(errors._make(99, "x", None)), lgpu.Error)

    def test_errors_pickle_and_copy(self):
        kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, lgpu.Error)]
        self.assertGreater(len(kinds), 12)
        for kind in kinds:
            error = kind("no memory", {"reason": "limit", "holders": []})
            for made in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
                self.assertIs(type(made), kind)
                self.assertEqual((str(made), made.refusal, made.code), (str(error), error.refusal, error.code))

    def test_an_absent_daemon_is_a_connection_error(self):
        with self.assertRaises(ConnectionError) as caught:
            lgpu.Context(endpoint="/nonexistent/lgpu")
        self.assertEqual(caught.exception.code, "UNAVAILABLE")


if __name__ == "__main__":
    unittest.main()
