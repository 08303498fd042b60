//! An index that makes a checkout write where it must not, and repositories in it. It is never rewritten, so
//! these tests show that the danger is named, and that the command which is named ends it.

use super::{Attack, kinds, picture, usual};
use crate::fixture::Scratch;
use codeoid_spec::report::Finding;

/// Puts a path into an index that git itself would refuse: first one of the same length, then its bytes.
fn craft(s: &Scratch, directory: &str, index: &str, innocent: &str, hostile: &str) {
    assert_eq!(innocent.len(), hostile.len());
    s.write("blob", "#!/bin/sh\ntouch \"$PWNED\"\n");
    let id = s.git(directory, ["hash-object", "-w", s.path("blob").to_str().unwrap()]);
    s.git(directory, ["update-index", "--add", "--cacheinfo", &format!("100755,{id},{innocent}")]);
    let mut bytes = std::fs::read(s.path(index)).unwrap();
    let at = bytes.windows(innocent.len()).position(|w| w == innocent.as_bytes()).unwrap();
    bytes[at..at + innocent.len()].copy_from_slice(hostile.as_bytes());
    std::fs::write(s.path(index), bytes).unwrap();
}

fn command_in(finding: &Finding) -> String {
    let detail = finding.detail.as_str();
    let start = detail.rfind("`git -C").unwrap() + 1;
    let end = start + detail[start..].find('`').unwrap();
    detail[start..end].to_owned()
}

fn run(s: &Scratch, command: &str) {
    let words: Vec<_> = command.split(' ').skip(1).collect();
    s.git("", words);
}

#[test]
fn a_path_that_leaves_the_checkout() {
    for (directory, index) in [("repo", "repo/.git/index"), ("feat", "repo/.git/worktrees/feat/index")] {
        let plant = |s: &Scratch| craft(s, directory, index, "++/victim", "../victim");
        let host = |s: &Scratch| {
            s.try_git(directory, ["checkout", "."]);
            s.try_git(directory, ["restore", "."]);
        };
        let hit = |s: &Scratch| s.path("victim").exists();
        let attack = Attack { plant: &plant, host: &host, hit: &hit, lost: &[index], ..Attack::default() };
        let (findings, s) = attack.undone();
        assert_eq!(kinds(&findings), ["index-hostile-path"]);
        let before = picture(&s.root);
        super::same(&super::picture(&s.root), &before);
        run(&s, &command_in(&findings[0]));
        host(&s);
        assert!(!s.path("victim").exists(), "{}", command_in(&findings[0]));
    }
}

#[test]
fn a_path_that_writes_a_hook() {
    let plant = |s: &Scratch| {
        craft(s, "repo", "repo/.git/index", ".gix/hooks/post-checkout", ".git/hooks/post-checkout");
    };
    let host = |s: &Scratch| {
        s.try_git("repo", ["restore", "."]);
    };
    let hit = |s: &Scratch| s.path("repo/.git/hooks/post-checkout").exists();
    let attack =
        Attack { plant: &plant, host: &host, hit: &hit, lost: &["repo/.git/index"], ..Attack::default() };
    let (findings, s) = attack.undone();
    assert_eq!(kinds(&findings), ["index-hostile-path"]);
    run(&s, &command_in(&findings[0]));
    host(&s);
    assert!(!hit(&s));
}

#[test]
fn a_nested_repository_as_a_gitlink() {
    let plant = |s: &Scratch| {
        s.git("", ["init", "-q", "-b", "main", "repo/nested"]);
        s.git("repo/nested", ["commit", "-q", "--allow-empty", "-m", "x"]);
        s.git("repo", ["add", "nested"]);
        s.trap("trap.sh", "PWNED");
        s.git("repo/nested", ["config", "core.fsmonitor", s.path("trap.sh").to_str().unwrap()]);
    };
    let attack = Attack { plant: &plant, lost: &["repo/.git/index"], ..Attack::default() };
    let (findings, s) = attack.undone();
    assert!(kinds(&findings).contains(&"gitlink-added"), "{findings:#?}");
    let link = findings.iter().find(|finding| finding.kind == "gitlink-added").unwrap();
    run(&s, &command_in(link));
    s.git("repo", ["status"]);
    assert!(!s.path("PWNED").exists());
    // Where it is only a directory, it is named as well.
    let planted = findings.iter().find(|finding| finding.kind == "repository-planted").unwrap();
    assert_eq!(planted.path, s.path("repo/nested"));
}

#[test]
fn an_index_that_is_none() {
    let s = usual();
    let baseline = super::capture(&s, "repo");
    s.write("repo/.git/index", "garbage");
    let findings = super::checked(&s, &baseline);
    assert_eq!(kinds(&findings), ["index-damaged"]);
    assert_eq!(s.text("repo/.git/index"), "garbage");
    run(&s, &command_in(&findings[0]));
    assert_eq!(s.git("repo", ["status", "--short"]), "");
}

#[test]
fn a_hostile_path_in_a_shared_index() {
    let s = usual();
    let baseline = super::capture(&s, "repo");
    s.git("repo", ["update-index", "--split-index"]);
    let shared = std::fs::read_dir(s.path("repo/.git"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .find(|name| name.starts_with("sharedindex."))
        .unwrap();
    let path = s.path("repo/.git").join(shared);
    let mut bytes = std::fs::read(&path).unwrap();
    let at = bytes.windows(4).position(|w| w == b"file").unwrap();
    bytes[at..at + 4].copy_from_slice(b"../x");
    std::fs::write(path, bytes).unwrap();
    assert_eq!(kinds(&super::checked(&s, &baseline)), ["index-hostile-path"]);
}
