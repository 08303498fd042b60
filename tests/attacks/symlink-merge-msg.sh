# `MERGE_MSG` is a symbolic link to a file of the user.
attack() {
    rm -f .git/MERGE_MSG
    ln -s "$PRECIOUS" .git/MERGE_MSG
}
human() {
    git merge -q --no-commit --no-ff feature
}
harmed() {
    overwritten
}
