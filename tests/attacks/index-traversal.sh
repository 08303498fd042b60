# The index of the workspace's checkout holds a path inside `.git`: restoring files plants a hook.
# limit: the index of the workspace is the turn's to write; it is reported
# finding: index-hostile-path
attack() {
    blob=$(printf "#!/bin/sh\ntouch %s\n" "$MARK" | git hash-object -w --stdin)
    craft_index .git/index .git/hooks/pre-commit "$blob" 100755
}
human() {
    git checkout -q -- .
    git checkout-index -q -a -f
    git commit -q --allow-empty -m human
}
harmed() {
    executed
}
