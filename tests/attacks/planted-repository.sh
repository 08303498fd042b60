# A directory of the workspace is a repository: git runs its program as soon as somebody enters it.
# limit: a folder that the turn writes can hold anything; `safe.bareRepository=explicit` and a look before entering help
# finding: repository-planted
attack() {
    evil_common "$PWD/docs"
    git config -f docs/config core.worktree "$PWD/docs"
}
human() {
    cd docs && git status
}
harmed() {
    executed
}
