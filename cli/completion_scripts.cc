// The scripts that `lgpu completion SHELL` prints. They know nothing of lgpu: they ask `lgpu __complete`.

#include "cli/completion.h"

namespace lgpu::cli {
namespace {

constexpr std::string_view kBash =
    R"bash(# bash completion of lgpu; load it with: source <(lgpu completion bash)
_lgpu() {
  local line=${COMP_LINE:0:COMP_POINT} words=() found=() also value current prefix i
  # COMP_WORDS are cut at colons and equal signs, which device names and flags have.
  read -ra words <<<"$line"
  [[ $line == *[[:space:]] ]] && words+=("")
  current=${words[-1]}
  mapfile -t found < <(lgpu __complete bash -- "${words[@]:1}" 2>/dev/null)
  COMPREPLY=()
  ((${#found[@]})) || return 0
  also=${found[-1]}
  unset 'found[-1]'
  # Readline replaces only what is behind the last of its word breaks.
  prefix=
  [[ $COMP_WORDBREAKS == *:* && $current == *:* ]] && prefix=${current%"${current##*:}"}
  [[ $COMP_WORDBREAKS == *=* && ${current#"$prefix"} == *=* ]] && prefix=${current%"${current##*=}"}
  for value in "${found[@]}"; do
    value=${value%%$'\t'*}
    COMPREPLY+=("${value#"$prefix"}")
  done
  case $also in
    :files) mapfile -t COMPREPLY < <(compgen -f -- "$current") && compopt -o filenames 2>/dev/null ;;
    :directories) mapfile -t COMPREPLY < <(compgen -d -- "$current") && compopt -o filenames 2>/dev/null ;;
    :command)
      for ((i = 1; i < ${#words[@]}; ++i)); do [[ ${words[i]} == -- ]] && break; done
      if ((i + 2 == ${#words[@]})); then
        mapfile -t COMPREPLY < <(compgen -c -- "$current")
      else
        mapfile -t COMPREPLY < <(compgen -f -- "$current") && compopt -o filenames 2>/dev/null
      fi
      ;;
  esac
  return 0
}
complete -F _lgpu lgpu
)bash";

constexpr std::string_view kZsh = R"zsh(#compdef lgpu
# zsh completion of lgpu; load it with: source <(lgpu completion zsh), after compinit
_lgpu() {
  local -a found
  local also marker
  found=("${(@f)$(lgpu __complete zsh -- "${(@)words[2,CURRENT]}" 2>/dev/null)}")
  also=${found[-1]}
  found=("${(@)found[1,-2]}")
  if (( ${#found} )); then
    _describe -t lgpu lgpu found
  fi
  case $also in
    :files) _files ;;
    :directories) _files -/ ;;
    :command)
      marker=${words[(i)--]}
      shift marker words
      (( CURRENT -= marker ))
      _normal
      ;;
  esac
}
if [[ $funcstack[1] == _lgpu ]]; then
  _lgpu "$@"
else
  compdef _lgpu lgpu
fi
)zsh";

constexpr std::string_view kFish =
    R"fish(# fish completion of lgpu; load it with: lgpu completion fish | source
function __lgpu_complete
    set -l words (commandline -opc)
    set -l current (commandline -ct)
    set -l found (lgpu __complete fish -- $words[2..-1] "$current" 2>/dev/null)
    test (count $found) -gt 0; or return
    switch $found[-1]
        case :files
            __fish_complete_path "$current"
        case :directories
            __fish_complete_directories "$current"
        case :command
            __fish_complete_subcommand --fcs-skip=(contains --index -- -- $words)
    end
    set -e found[-1]
    printf '%s\n' $found
end
complete -c lgpu -f -a '(__lgpu_complete)'
)fish";

}  // namespace

std::string_view CompletionScript(std::string_view shell) {
  if (shell == "bash") return kBash;
  if (shell == "zsh") return kZsh;
  if (shell == "fish") return kFish;
  return {};
}

}  // namespace lgpu::cli
