# Completion of `tern` in bash. Verbs and options are those that --help prints.
_tern_complete() {
    local word=${COMP_WORDS[COMP_CWORD]} all=
    if [ "$COMP_CWORD" -eq 1 ]; then
        all=$("$1" --help 2>/dev/null | sed -n 's/^tern \([-a-z]*\).*/\1/p')
    elif [[ $word == -* ]]; then
        all=$("$1" "${COMP_WORDS[1]}" --help 2>/dev/null | grep -o -e '--[a-z][-a-z0-9]*')
    fi
    mapfile -t COMPREPLY < <(compgen -W "$all" -- "$word" | sort -u)
}
complete -o default -F _tern_complete tern # anything else is a file
