# A recorded resolution with planted content is replayed in the human's merge.
# limit: the turn writes `rr-cache`; a replayed resolution is in the working tree, to be looked at before it is committed
# finding: resolution-recorded
prepare() {
    git config rerere.enabled true
}
attack() {
    git config rerere.enabled true
    git checkout -q -b tmp feature
    git -c rerere.enabled=true merge -q rival
    echo PLANTED >src/text
    git -c rerere.enabled=true rerere
    git -c rerere.enabled=true commit -q -a -m x
    git checkout -q main
    git branch -q -D tmp
}
human() {
    git checkout -q -b by-human feature
    git merge -q rival
}
harmed() {
    grep -q PLANTED src/text
}
