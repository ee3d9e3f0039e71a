# shellcheck shell=bash
# The steps of gpu-check-run: their order, which of them run, their limits of time and their verdicts. To be sourced by
# it, with `logs` (a folder), `only` and `skip` (lists of patterns, with commas), `seconds` (0: no limit) and write_report.
# shellcheck disable=SC2034,SC2154

# By worth: a run that is ended early has the most important ones.
all_steps=(kernels contract ledger e2e doctor verify verify-driver runtime torch torch-expandable torch-async training jax cupy
  numba triton two killed restart module adaptor-torch adaptor-torch-pool adaptor-cupy adaptor-rmm adaptor-numba memory
  own-kernel cuda-gdb nsys compute-sanitizer bench kernels-bench probe suspend)
declare -A verdicts=() codes=() durations=()
running=

# Prints how many verdicts begin so.
count() {
  local name sum=0
  for name in "${!verdicts[@]}"; do
    if [[ ${verdicts[$name]} == "$1"* ]]; then sum=$((sum + 1)); fi
  done
  printf '%d' "$sum"
}
# Prints the names of the steps whose verdicts begin so, with commas.
names_of() {
  local name names=
  for name in "${all_steps[@]}"; do
    if [[ ${verdicts[$name]:-} == "$1"* ]]; then names+=,$name; fi
  done
  printf '%s' "${names#,}"
}
# Prints "N passed, N failed, N skipped", and how many had no time.
counts() {
  local no_time
  no_time=$(count 'not run')
  printf '%d passed, %d failed, %d skipped' "$(count passed)" "$(count failed)" "$(count skipped)"
  if ((no_time)); then printf ', %d not run' "$no_time"; fi
}

# in_list NAME LIST: whether one of the patterns has the name.
in_list() {
  local pattern patterns
  IFS=, read -ra patterns <<<"$2"
  for pattern in "${patterns[@]}"; do
    # shellcheck disable=SC2053  # a pattern
    if [[ $1 == $pattern ]]; then return 0; fi
  done
  return 1
}
wanted() { { [[ ! $only ]] || in_list "$1" "$only"; } && ! in_list "$1" "$skip"; }
any_wanted() {
  local name
  for name in "$@"; do
    if wanted "$name"; then return 0; fi
  done
  return 1
}
# Ends the script where a pattern has no step.
check_list() {
  local pattern patterns name
  IFS=, read -ra patterns <<<"$1"
  for pattern in "${patterns[@]}"; do
    for name in "${all_steps[@]}"; do
      if in_list "$name" "$pattern"; then continue 2; fi
    done
    printf 'run: error: there is no step "%s"; the steps are: %s\n' "$pattern" "${all_steps[*]}" >&2
    exit 2
  done
}

# How many seconds a step may take that has the limit $1; 0: no time is left.
time_for() {
  if ((seconds == 0)); then
    printf '%d' "$1"
    return
  fi
  local left=$((seconds - SECONDS))
  if ((left < 0)); then left=0; fi
  printf '%d' $((left < $1 ? left : $1))
}

has_time() { ((seconds == 0 || SECONDS < seconds)); }
# out_of_time NAME: whether no time is left for a step, which then has this verdict. The report is not written anew for it.
out_of_time() {
  if has_time; then return 1; fi
  verdicts[$1]='not run: no time'
  note "gpu-check: $1: ${verdicts[$1]}"
}

# Whether a benchmark's output has a figure and no error.
has_figures() {
  ! grep -q 'ERROR OCCURRED' "$1" && grep -qE '^BM_.* (ns|us|ms) |[0-9]\.[0-9]+ +[0-9.]+ +[0-9.]+$' "$1"
}
# judge NAME CODE LIMIT TIME: prints the verdict on a step that ended with the code, which had so many seconds of its limit.
judge() {
  local name=$1 code=$2 limit=$3 time=$4 log=$logs/$1.log
  if ((code == 77)); then
    printf 'skipped: %s' "$(tail -n 1 "$log")"
  elif ((time < limit && (code == 124 || code == 137))); then
    printf 'not run: no time to the end (%d s)' "$time"
  elif ((code != 0)); then
    printf 'failed (%d)' "$code"
  elif [[ $name == *bench ]] && ! has_figures "$log"; then
    printf 'failed (errors, or no figures)'
  elif [[ $name == compute-sanitizer ]] && ! grep -q 'ERROR SUMMARY: 0 errors' "$log"; then
    printf 'failed (no line "ERROR SUMMARY: 0 errors")'
  else
    printf 'passed'
  fi
}

# settle NAME VERDICT
settle() {
  verdicts[$1]=$2
  running=
  note "gpu-check: $1: $2"
  write_report
}
step_pid=
# end_step CODE: on a signal. The step that runs ends with its processes, and then this script.
end_step() {
  trap - INT TERM
  if [[ $step_pid ]]; then
    kill "$step_pid" 2>/dev/null
    wait "$step_pid"
  fi
  exit "$1"
}
# step NAME SECONDS COMMAND ...: runs it with a limit of time; its output is in $logs/NAME.log.
step() {
  local name=$1 limit=$2 time start=$SECONDS code=0
  shift 2
  wanted "$name" && ! out_of_time "$name" || return 0
  time=$(time_for "$limit")
  running=$name
  : >"$logs/$name.log"
  write_report
  note "gpu-check: $name"
  # In the background, so that a signal to this script ends the step at once (end_step).
  timeout -k 5 "$time" "$@" >"$logs/$name.log" 2>&1 </dev/null &
  step_pid=$!
  wait "$step_pid" || code=$?
  step_pid=
  codes[$name]=$code
  durations[$name]=$((SECONDS - start))
  settle "$name" "$(judge "$name" "$code" "$limit" "$time")"
  if [[ ${verdicts[$name]} == failed* ]]; then tail -n 30 "$logs/$name.log" >&2; fi
}
# skip_step NAME REASON: a step that this machine cannot run.
skip_step() {
  if wanted "$1"; then settle "$1" "skipped: $2"; fi
}
# fail_step NAME REASON: a step that this machine could run, and the bundle cannot.
fail_step() {
  if wanted "$1"; then settle "$1" "failed: $2"; fi
}
