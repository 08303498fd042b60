# `MERGE_HEAD` makes the next commit of the workspace's checkout a merge.
# limit: an operation in progress in the workspace belongs to the turn
attack() {
    git rev-parse rival >.git/MERGE_HEAD
    echo planted >.git/MERGE_MSG
}
human() {
    git commit -q --allow-empty -m human
}
harmed() {
    git rev-parse -q --verify HEAD^2
}
