# The branch that is checked out in somebody else's worktree is moved.
# limit: the turn writes refs; the log of the branch still names the old commit
attack() {
    git update-ref refs/heads/human feature
}
human() {
    :
}
harmed() {
    [ "$(git rev-parse human)" = "$(git rev-parse feature)" ]
}
