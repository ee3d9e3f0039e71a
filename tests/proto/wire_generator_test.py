#!/usr/bin/env python3
"""wire_generator_test.py GENERATOR PROTOC: a message that proto/wire/encoding.h cannot code is an error that names the
field, and one that it can code becomes a struct. wire_encoding_test compares what the structs read and write."""

import pathlib
import subprocess
import sys
import tempfile

GENERATOR, PROTOC = sys.argv[1:]
REFUSED = {
    "message M { double x = 1; }": "p.M.x: proto/wire/encoding.h has no type for double",
    "message M { sint64 x = 1; }": "p.M.x: proto/wire/encoding.h has no type for sint64",
    "message M { map<string, int32> x = 1; }": "p.M.x: proto/wire/encoding.h has no type for message of a map",
    "message M { optional string x = 1; }": "p.M.x: proto/wire/encoding.h has no optional texts",
    "message M { repeated int32 x = 1 [packed = false]; }": "p.M.x: a list of numbers has to be packed",
    "message M { M x = 1; }": "p.M contains itself",
    "message M { oneof x { int32 a = 1; } }": "p.M.a: a oneof has messages, each once",
    "message A {} message M { oneof x { A a = 1; A b = 2; } }": "p.M.b: a oneof has messages, each once",
    "message A {} message B {} message M { oneof x { A a = 1; } oneof y { B b = 2; } }": "p.M: a message may have one oneof",
    "enum E { NONE = 0; } message M { E x = 1; }": "the names of p.E have to begin with E_",
    "message N {}": "there is no message p.M",
}
STRUCT = """\
/// p.M
struct M {
  enum class Kind : std::int32_t {
    kNone = 0,
    kOfTwoWords = 3,
  };
  /// p.M.Inner
  struct Inner {
    Blob b;
    static void Fields([[maybe_unused]] auto&& visit, [[maybe_unused]] auto& m) {
      visit(1, m.b);
    }
  };
  std::optional<std::uint32_t> late;
  std::vector<M::Inner> inner;
  M::Kind kind{};
  static void Fields([[maybe_unused]] auto&& visit, [[maybe_unused]] auto& m) {
    visit(1, m.inner);
    visit(2, m.kind);
    visit(9, m.late);
  }
};
"""


def generate(folder, text):
    (folder / "x.proto").write_text('syntax = "proto3"; package p;\n' + text)
    subprocess.run([PROTOC, f"--proto_path={folder}", f"--descriptor_set_out={folder}/x", "x.proto"], check=True)
    return subprocess.run([GENERATOR, folder / "x", folder, "p.M"], capture_output=True, text=True, check=False)


def main():
    failures = []
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        for text, expected in REFUSED.items():
            done = generate(folder, text)
            if done.returncode != 1 or done.stderr != f"lgpu_wire_generator: {expected}\n":
                failures.append(f"{text}\n  expected: {expected}\n  found: {done.returncode} {done.stderr}")
        done = generate(
            folder, "message M { optional uint32 late = 9; repeated Inner inner = 1; Kind kind = 2;"
            " message Inner { bytes b = 1; } enum Kind { KIND_NONE = 0; KIND_OF_TWO_WORDS = 3; } }")
        found = (folder / "proto/wire/x_messages.h").read_text() if done.returncode == 0 else done.stderr
        if STRUCT not in found:
            failures.append(f"expected:\n{STRUCT}\nfound:\n{found}")
    print("\n".join(failures) or "all as expected")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
