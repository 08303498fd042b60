# The directory of all entries becomes a symbolic link to a copy.
attack() {
    evil_common "$PWD/.evil"
    cp -r "$COMMON/worktrees" .copies
    echo "$PWD/.evil" >.copies/human/commondir
    mv "$COMMON/worktrees" "$COMMON/aside" || rm -rf "$COMMON/worktrees"
    ln -s "$PWD/.copies" "$COMMON/worktrees"
}
human() {
    git -C "$VICTIM" status
}
harmed() {
    executed
}
