# A foreign worktree's log is a symbolic link to a file of the user.
attack() {
    rm "$ENTRY/logs/HEAD"
    ln -s "$PRECIOUS" "$ENTRY/logs/HEAD"
}
human() {
    git -C "$VICTIM" commit -q --allow-empty -m human
}
harmed() {
    overwritten
}
