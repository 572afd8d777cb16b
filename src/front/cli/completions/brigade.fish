function __brigade_complete
    set -l words (commandline -opc) (commandline -ct)
    set -l candidates (brigade complete -- $words[2..-1] 2>/dev/null)
    if test "$candidates" = :files
        __fish_complete_path (commandline -ct)
    else
        printf '%s\n' $candidates
    end
end
complete -c brigade -f -k -a '(__brigade_complete)'
