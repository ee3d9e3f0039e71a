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
