# The directory of all entries is moved away, and another takes its place.
attack() {
    evil_common "$PWD/.evil"
    cp -r "$COMMON/worktrees" "$COMMON/other"
    echo "$PWD/.evil" >"$COMMON/other/human/commondir"
    mv "$COMMON/worktrees" "$COMMON/aside"
    mv "$COMMON/other" "$COMMON/worktrees"
}
human() {
    git -C "$VICTIM" status
}
harmed() {
    executed
}
