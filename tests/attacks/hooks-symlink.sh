# The directory of hooks becomes a symbolic link into the workspace.
attack() {
    mkdir h
    plant h/pre-commit
    mv .git/hooks .git/old
    ln -s "$PWD/h" .git/hooks
}
human() {
    git commit -q --allow-empty -m human
}
harmed() {
    executed
}
