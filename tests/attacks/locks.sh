# Lock files are left behind: nobody can write the repository any more.
attack() {
    : >.git/index.lock
    : >.git/HEAD.lock
    : >.git/config.lock
    : >.git/packed-refs.lock
    : >.git/shallow.lock
    : >.git/refs/heads/main.lock
}
human() {
    :
}
harmed() {
    ! { git add -A && git commit -q --allow-empty -m human && git pack-refs --all && git config human.key value; }
}
