"""How the state of a shell is carried from one run of a session to the next.

Each run is a shell of its own. It reads the state of the last run and its code from standard input, and writes its
own state, when it exits, to what was its standard error at the start; both are files in memory. Neither is ever mixed
with output, and a run that is killed, or replaced by `exec`, leaves the state as it was.

The shell's copy of the second descriptor is closed while code runs, and close-on-exec: no program inherits it.
"""

from typing import Final

__all__ = ["MAX_VALUE_CHARACTERS", "main_line", "read_saved", "shell_input"]

MAX_VALUE_CHARACTERS: Final = 8 * 1024
"""Variables with longer values are not carried on."""

# Bash reads two strings that end in NUL. The code is on the first line of what it runs, so line numbers are right.
_BASH_MAIN: Final = (
    'IFS= read -r -d "" __sm_setup; IFS= read -r -d "" __sm_code; exec 9>&2 2>&1 </dev/null; '
    'eval "$__sm_setup" >/dev/null 2>&1; builtin eval -- "$__sm_prefix$__sm_code" 9>&-'
)

# `builtin` throughout, since the code's functions may have the names of what is called here.
_BASH_FUNCTIONS: Final = r"""
__sm_emit() {
  builtin printf '%s\0' "${PWD-}"
  builtin shopt -p
  builtin umask -p
  for __sm_c in _ a b c d e f g h i j k l m n o p q r s t u v w x y z \
      A B C D E F G H I J K L M N O P Q R S T U V W X Y Z; do
    builtin eval "__sm_names=(\"\${!$__sm_c@}\")"
    for __sm_n in "${__sm_names[@]}"; do
      case $__sm_n in
        BASH | BASH_* | BASHOPTS | BASHPID | COMP_* | DIRSTACK | EPOCH* | EUID | FUNCNAME | GROUPS | HISTCMD | \
        HOSTTYPE | LINENO | MACHTYPE | OSTYPE | PIPESTATUS | PPID | PROMPT_COMMAND | PS[0-4] | PWD | RANDOM | \
        SANDMILL_EXECUTION_ID | SECONDS | SHELLOPTS | SHLVL | SRANDOM | UID | _ | __sm_*) builtin continue ;;
      esac
      builtin eval "__sm_v=\"\${$__sm_n[*]-}\""
      if [[ ${#__sm_v} -le @MAX@ ]]; then builtin declare -p -- "$__sm_n"; fi
    done
  done
  builtin unset -f trap __sm_emit __sm_save
  builtin declare -f
  builtin declare -Fx
  builtin alias -p
  builtin printf '__sm_options=%s\n\0' "$__sm_o"
}
__sm_save() {
  __sm_o=$SHELLOPTS
  builtin set +eufvx
  builtin trap - DEBUG ERR RETURN
  # While code runs, 9 is closed and a copy is where the shell put it: there is a word in it to know it by.
  for __sm_fd in 9 10 11 12 13; do
    if IFS= builtin read -r -d '' -t 1 -u "$__sm_fd" __sm_v && [[ $__sm_v == "$__sm_token" ]]; then
      __sm_emit >&"$__sm_fd"
      builtin break
    fi
  done
  builtin return "$1"
}
trap() {
  if [[ $BASHPID != "$$" ]]; then builtin trap "$@"; builtin return; fi
  builtin local __sm_r=0 __sm_s
  if [[ -n ${__sm_theirs+x} ]]; then builtin trap -- "$__sm_theirs" EXIT; else builtin trap - EXIT; fi
  builtin trap "$@" || __sm_r=$?
  if [[ ${1-} == -- ]]; then builtin shift; fi
  if [[ $# -ge 1 && $1 != -[lpP]* ]]; then
    if [[ $# -eq 1 || $1 =~ ^[0-9]+$ ]]; then builtin set -- - "$@"; fi
    for __sm_s in "${@:2}"; do
      case $__sm_s in
        0 | [Ee][Xx][Ii][Tt] | [Ss][Ii][Gg][Ee][Xx][Ii][Tt])
          if [[ $1 == - ]]; then builtin unset __sm_theirs; else __sm_theirs=$1; fi ;;
      esac
    done
  fi
  builtin trap -- "$__sm_ours"${__sm_theirs+$'\n'"$__sm_theirs"} EXIT
  builtin return "$__sm_r"
}
__sm_ours='{ __sm_save "$?"; } >/dev/null 2>&1'
builtin trap -- "$__sm_ours" EXIT
__sm_prefix=
__sm_options=braceexpand:hashall:interactive-comments
shopt -s expand_aliases
""".replace("@MAX@", str(MAX_VALUE_CHARACTERS))

# Last of all, since the options of the user's code are not for ours. A trace begins with the code itself.
_BASH_OPTIONS: Final = r"""
for __sm_n in braceexpand hashall interactive-comments; do
  case :$__sm_options: in *:$__sm_n:*) ;; *) builtin set +o "$__sm_n" ;; esac
done
case :$__sm_options: in *:verbose:*) __sm_prefix='set -v; ' ;; esac
case :$__sm_options: in *:xtrace:*) __sm_prefix+='set -x; ' ;; esac
for __sm_n in allexport errtrace functrace keyword noclobber noglob nounset physical pipefail posix errexit; do
  case :$__sm_options: in *:$__sm_n:*) builtin set -o "$__sm_n" ;; esac
done
"""

_SH_MAIN: Final = (
    'exec 9>&2 2>/dev/null; . /proc/self/fd/0 >/dev/null; exec 2>&1 </dev/null; eval "$__sm_code" 9>&-'
)

# Any shell has this much: exported variables, the umask, the directory.
_SH_BEFORE: Final = """
__sm_emit() { printf '%s\\0' "$PWD"; printf 'umask '; umask; export -p; printf '\\0'; }
trap '__sm_emit >&9 2>/dev/null' EXIT
__sm_id=$SANDMILL_EXECUTION_ID __sm_pwd=$PWD
"""
_SH_AFTER: Final = """
SANDMILL_EXECUTION_ID=$__sm_id
cd "$__sm_pwd" || :
"""


def main_line(shell: str) -> str:
    """What the shell ("bash" or "sh") is told to run by its -c option."""
    return _BASH_MAIN if shell == "bash" else _SH_MAIN


def shell_input(shell: str, *, state: bytes, code: str, token: str) -> bytes:
    """What the shell reads from its standard input. state: of the last run; token: what its second file begins with."""
    script = code.encode("utf-8")
    if shell == "bash":
        setup = [
            _BASH_FUNCTIONS.encode(),
            b"__sm_token=",
            token.encode(),
            b"\n",
            state,
            _BASH_OPTIONS.encode(),
        ]
        return b"".join([*setup, b"\0", script, b"\0"])
    quoted = b"'" + script.replace(b"'", b"'\\''") + b"'"
    return b"".join([b"__sm_code=", quoted, _SH_BEFORE.encode(), state, _SH_AFTER.encode()])


def read_saved(data: bytes, *, token: str) -> tuple[bytes, bytes] | None:
    """Give the directory and the state that a shell has written; None if it did not come to its end."""
    if not data.startswith(token.encode() + b"\0"):
        return None
    parts = data.split(b"\0")
    if len(parts) != 4 or parts[3]:
        return None
    return parts[1], parts[2]
