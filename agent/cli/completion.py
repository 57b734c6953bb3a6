"""Print the completion of all commands for bash or zsh.

For bash: `topolet completion bash > /etc/bash_completion.d/topolet`; for zsh: `topolet completion
zsh > DIR/_topolet` with a folder DIR of `fpath`.
"""

from __future__ import annotations

import argparse
import shlex

from agent.cli import options
from agent.cli.commands import COMMANDS
from agent.cli.options import Argument
from agent.view import format

USAGE = "topolet completion bash|zsh"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=("bash", "zsh"), metavar="bash|zsh")


def run(arguments: argparse.Namespace) -> int:
    of_commands = {name: options.arguments_of(name) for name in COMMANDS}
    head, end = (_BASH, _BASH_END) if arguments.shell == "bash" else (_ZSH, _ZSH_END)
    try:
        print(head + _words(of_commands) + end, end="", flush=True)
    except OSError as error:
        return format.unwritten("completion", error)
    return 0


def _words(of_commands: dict[str, list[Argument]]) -> str:
    """The shell function that prints the words which can follow. Its arguments: the command, empty
    for the first word, and the flag before the word, empty without one. It prints nothing if the
    word is a file or any text."""
    lines = ["_topolet_words() {", '  case "$1 $2" in']
    lines.append(f"  ' '*) echo {shlex.quote(' '.join(of_commands))} ;;")
    for command, found in of_commands.items():
        valued = [each for each in found if each.flags and each.metavar]
        for each in valued:
            pattern = "|".join(shlex.quote(f"{command} {flag}") for flag in each.flags)
            lines.append(f"  {pattern}) echo {shlex.quote(' '.join(each.values))} ;;")
        following = [flag for each in found for flag in each.flags]
        following += [value for each in found if not each.flags for value in each.values]
        lines.append(f"  {shlex.quote(command)}' '*) echo {shlex.quote(' '.join(following))} ;;")
    return "\n".join([*lines, "  esac", "}"]) + "\n"


_BASH = "# Completion of topolet for bash.\n"
_BASH_END = """_topolet() {
  local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]} command=
  [ "$COMP_CWORD" -gt 1 ] && command=${COMP_WORDS[1]}
  if [ "$before" = = ]; then before=${COMP_WORDS[COMP_CWORD-2]}; fi
  if [ "$word" = = ]; then word=; fi
  case $before in -*) ;; *) before= ;; esac
  local words=$(_topolet_words "$command" "$before")
  if [ -n "$words" ]; then
    COMPREPLY=($(compgen -W "$words" -- "$word"))
  else
    COMPREPLY=($(compgen -f -- "$word"))
  fi
}
complete -F _topolet topolet
"""
_ZSH = "#compdef topolet\n"
_ZSH_END = """_topolet() {
  local before=${words[CURRENT-1]} command=
  (( CURRENT > 2 )) && command=${words[2]}
  [[ $before == -* ]] || before=
  local -a found=(${=$(_topolet_words "$command" "$before")})
  if (( $#found )); then
    compadd -- $found
  else
    _files
  fi
}
if [[ $funcstack[1] == _topolet ]]; then
  _topolet "$@"
else
  compdef _topolet topolet
fi
"""
