_brigade() {
    local value about
    COMPREPLY=()
    while IFS=$'\t' read -r value about; do
        if [[ $value == :files ]]; then
            compopt -o default 2>/dev/null
        else
            COMPREPLY+=("$value")
        fi
    done < <(brigade complete -- "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null)
}
complete -F _brigade brigade
