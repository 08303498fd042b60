# A rebase in progress in the workspace's checkout has a line that runs a program.
attack() {
    evil
    git checkout -q feature
    GIT_SEQUENCE_EDITOR="sed -i 1s/^pick/edit/" git rebase -q -i HEAD~2
    echo "exec $EVIL" >>.git/rebase-merge/git-rebase-todo
}
human() {
    git rebase --continue
}
harmed() {
    executed
}
