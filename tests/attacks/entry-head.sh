# A foreign worktree's HEAD names another branch: the next commit there lands on it.
attack() {
    echo "ref: refs/heads/feature" >"$ENTRY/HEAD"
}
human() {
    git -C "$VICTIM" commit -q --allow-empty -m "by the human"
}
harmed() {
    git log -1 --format=%s feature | grep -qx "by the human"
}
