#compdef brigade
_brigade() {
    local value about
    local -a candidates
    while IFS=$'\t' read -r value about; do
        if [[ $value == :files ]]; then
            _files
        else
            candidates+=("${value//:/\\:}${about:+:$about}")
        fi
    done < <(brigade complete -- "${(@Q)words[2,CURRENT]}" 2>/dev/null)
    (( $#candidates )) && _describe -V brigade candidates
}
if [[ $funcstack[1] == _brigade ]]; then
    _brigade "$@"
else
    compdef _brigade brigade
fi
