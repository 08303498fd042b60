# `rebase-merge` is a symbolic link to a directory of the user, whose contents git deletes.
attack() {
    ln -s "$PRECIOUS_DIR" .git/rebase-merge
}
human() {
    git rebase --quit
    git rebase --abort
}
harmed() {
    [ ! -e "$PRECIOUS_DIR/file" ]
}
