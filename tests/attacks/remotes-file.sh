# A legacy file names a remote whose hooks run on push.
attack() {
    git init -q --bare planted.git
    plant planted.git/hooks/pre-receive
    mkdir -p .git/remotes
    printf "URL: %s\nPush: refs/heads/main:refs/heads/main\n" "$PWD/planted.git" >.git/remotes/backup
}
human() {
    git push -q backup
}
harmed() {
    executed
}
