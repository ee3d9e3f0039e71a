# shellcheck shell=bash
# What the scripts share; to be sourced.

ROOT=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd -P)
export ROOT

say() { printf '%s\n' "$*"; }
note() { printf '%s\n' "$*" >&2; }
die() {
  printf '%s: error: %s\n' "$(basename -- "$0")" "$*" >&2
  exit 1
}

# One job per core, and no more than memory allows: a file that includes gRPC takes more than 1 GiB to compile.
build_jobs() {
  local cores kib fit
  cores=$(nproc)
  kib=$(awk '/^MemAvailable:/ {print $2}' /proc/meminfo)
  fit=$((kib / 1500000))
  if ((fit < 1)); then fit=1; fi
  if ((fit < cores)); then say "$fit"; else say "$cores"; fi
}

# Twice as many tests at a time: half of their time they wait for processes and clocks.
test_jobs() { say "$((2 * $(build_jobs)))"; }

# Ends the script where this tree cannot be written into.
writable() {
  [[ -w $ROOT && (! -e $ROOT/build || -w $ROOT/build) ]] ||
    die "$ROOT cannot be written into by ${USER:-user $(id -u)}, and the build goes to its folder build; clone it to a" \
      "folder of your own (git clone $ROOT lgpu), or, where it is built already, use scripts/demo --no-build"
}

# build PRESET [TARGET ...]: configures and builds in build/PRESET. LGPU_CONFIGURE_FLAGS: more flags for cmake.
# CONFIGURE_ONLY=1: only the first half.
build() {
  local preset=$1 log flags=()
  shift
  writable
  mkdir -p "$ROOT/build"
  log="$ROOT/build/$preset.configure.log"
  read -ra flags <<<"${LGPU_CONFIGURE_FLAGS:-}"
  if ! (cd "$ROOT" && cmake --preset "$preset" "${flags[@]}") >"$log" 2>&1; then
    cat "$log" >&2
    die "cmake cannot configure preset $preset"
  fi
  sed -n 's/^-- \(GPUs: .*\)/\1/p' "$log" >&2
  if [[ ${CONFIGURE_ONLY:-} ]]; then return 0; fi
  (cd "$ROOT" && cmake --build --preset "$preset" -j "$(build_jobs)" ${1:+--target "$@"}) ||
    die "preset $preset does not build"
}

# run_ctest PRESET [ARGUMENT ...]: runs tests of a build, and writes down what skipped_tests wants to know. What ctest prints is
# in ctest.log beside them.
run_ctest() {
  (cd "$ROOT" && ctest --preset "$1" -j "$(test_jobs)" --output-junit "$ROOT/build/$1/Testing/tests.xml" \
    --output-log "$ROOT/build/$1/ctest.log" "${@:2}")
}

# skipped_tests BUILD ...: the tests that were skipped in these build folders, with their reasons: a line for each case that
# skipped itself, and for a test whose program said as a whole that it cannot run here its last line.
skipped_tests() {
  local build
  for build in "$@"; do
    [[ -e $build/Testing/tests.xml && -e $build/Testing/Temporary/LastTest.log ]] || continue
    awk -v build="$(basename "$build")" '
      function skipped(name, reason) {
        print "  " build ": " name ": " (reason == "" ? "no reason given" : reason)
        told = 1
      }
      FNR == NR {
        if (/<testcase name=.* status="notrun"/) {split($0, part, "\""); whole[part[2]] = 1}
        next
      }
      /^[0-9]+\/[0-9]+ Testing: / {test = $3; told = 0; last = ""}
      /: Skipped$/ {reason = ""; reading = 1; next}
      /^\[  SKIPPED \] .* \([0-9]+ ms\)$/ {skipped($4, reason); reading = 0; next}
      /^<end of output>/ {if (test in whole && !told) skipped(test, last); next}
      reading && NF {reason = reason (reason == "" ? "" : " ") $0}
      NF {last = $0}' "$build/Testing/tests.xml" "$build/Testing/Temporary/LastTest.log"
  done | sort -u | grep . || say "  none"
}

# An interpreter of Python 3.$1 that runs: of PATH, or of pyenv.
newer_python() {
  local candidate
  for candidate in "$(command -v "python3.$1" || true)" "${PYENV_ROOT:-$HOME/.pyenv}/versions/3.$1".*/bin/python3; do
    if "$candidate" -c 'import venv' 2>/dev/null; then
      say "$candidate"
      return 0
    fi
  done
  return 1
}
