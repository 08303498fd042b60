//! Rule 15: partial clones, whose objects may be missing where a remote has promised them.

use super::*;

/// A partial clone of `origin` without the blobs of its older commits.
fn partial() -> Pair {
    let s = Scratch::new();
    s.repository("origin");
    s.write("origin/other", "other\n");
    s.git("origin", ["add", "."]);
    s.git("origin", ["commit", "-q", "-m", "two"]);
    s.git("origin", ["config", "uploadpack.allowFilter", "true"]);
    s.git("origin", ["config", "uploadpack.allowAnySHA1InWant", "true"]);
    let url = format!("file://{}", s.path("origin").display());
    s.git("", ["clone", "-q", "--filter=blob:none", "--no-checkout", &url, "h"]);
    let mut p = Pair::of(s, "sha1");
    p.promisor = true;
    p
}

#[test]
fn rule_15_a_partial_clone() {
    let p = partial();
    // The checkout inside fetched blobs, which the host lacks.
    assert!(!p.s.try_git("h", ["rev-list", "--objects", "--missing=print", "HEAD"]).stdout.is_empty());
    let tip = p.commit("file", "mine\n");
    let admitted = p.bring(&[tip]);
    assert!(admitted.keep, "of what was fetched");
    assert!(at(&p.host, &tip).exists(), "small imports leave no pack (rule 29)");
    p.outside(&["update-ref", "refs/heads/mine", &tip.to_string()]);
    p.outside(&["fsck"]);
    p.store().release().unwrap();
    // What was fetched is marked as promised, on the host too, and what was made here is not.
    assert!(p.files("pack-").iter().any(|name| name.ends_with(".promisor")));
    assert!(at(&p.shadow, &tip).exists());
    std::fs::rename(p.s.path("origin"), p.s.path("away")).unwrap();
    assert_eq!(p.outside(&["show", "mine:other"]), "other");
    assert_eq!(p.outside(&["show", "mine:file"]), "mine");
}

#[test]
fn rule_15_a_line_changed_beside_blobs_that_nobody_has() {
    let p = partial();
    // A commit that names the other blob without having it.
    p.s.write("new", "new\n");
    let blob = p.inside(&["hash-object", "-w", p.s.path("new").to_str().unwrap()]);
    p.inside(&["read-tree", "HEAD"]);
    p.inside(&["update-index", "--cacheinfo", &format!("100644,{blob},file")]);
    let tree = p.inside(&["write-tree", "--missing-ok"]);
    let commit = p.inside(&["commit-tree", &tree, "-p", "HEAD", "-m", "three"]);
    // Without what the checkout fetched.
    let packs = p.shadow.join("objects/pack");
    std::fs::remove_dir_all(&packs).unwrap();
    std::fs::create_dir(&packs).unwrap();
    std::fs::rename(p.s.path("origin"), p.s.path("away")).unwrap();
    let tip = ObjectId::from_hex(commit.as_bytes()).unwrap();
    let admitted = p.bring(&[tip]);
    assert_eq!(admitted.objects, 3);
    p.outside(&["update-ref", "refs/heads/mine", &commit]);
    p.outside(&["fsck"]);
    // The control: index-pack --strict, as where all is there, refuses it.
    let mut p = p;
    p.outside(&["update-ref", "-d", "refs/heads/mine"]);
    p.promisor = false;
    assert!(!p.store().admit(&[tip]).unwrap().has(&tip));
    p.promisor = true;
    // What nobody promised is missed all the same.
    let absent = "1".repeat(40);
    p.inside(&["update-index", "--cacheinfo", &format!("100644,{absent},file")]);
    let tree = p.inside(&["write-tree", "--missing-ok"]);
    let commit = p.inside(&["commit-tree", &tree, "-p", "HEAD", "-m", "four"]);
    p.refused(ObjectId::from_hex(commit.as_bytes()).unwrap());
}

/// Puts a pack of these objects into an objects directory, as if it had been fetched.
fn fetched(p: &Pair, objects: &[&str], into: &str) {
    let mut command = p.s.command("w");
    command.args(["pack-objects", "-q", "--no-reuse-delta"]).arg(p.s.path(into).join("objects/pack/pack"));
    let hash = hostile::output_of(&mut command, format!("{}\n", objects.join("\n")).as_bytes());
    p.s.write(p.s.path(into).join(format!("objects/pack/pack-{hash}.promisor")), "");
}

#[test]
fn rule_15_a_turn_that_says_its_own_commits_were_fetched() {
    for control in [false, true] {
        let p = partial();
        // Something that only the host has, and a commit of the turn's upon it.
        p.outside(&["reset", "-q", "--mixed"]);
        p.s.write("h/local", "local\n");
        p.outside(&["add", "local"]);
        p.outside(&["commit", "-q", "-m", "local"]);
        p.outside(&["repack", "-q", "-d"]);
        let local = p.outside(&["rev-parse", "HEAD"]);
        let tree = p.outside(&["rev-parse", "HEAD^{tree}"]);
        let evil = p.inside(&["commit-tree", &tree, "-p", &local, "-m", "evil"]);
        let tip = ObjectId::from_hex(evil.as_bytes()).unwrap();
        fetched(&p, &[&evil], if control { "h/.git" } else { "w/.git" });
        if !control {
            std::fs::remove_file(p.loose(&tip)).unwrap();
            p.bring(&[tip]);
        }
        p.outside(&["update-ref", "refs/heads/evil", &evil]);
        p.outside(&["reflog", "expire", "--expire=now", "--all"]);
        p.store().release().unwrap();
        let gc = p.s.try_git("h", ["gc", "-q", "--prune=now"]);
        let lost = !gc.status.success() || !p.s.try_git("h", ["ls-tree", &tree]).status.success();
        if control {
            assert!(lost, "git {} keeps it; the rule may go", p.outside(&["version"]));
        } else {
            assert!(!lost, "{gc:?}");
            assert_eq!(p.outside(&["cat-file", "-t", &local]), "commit");
        }
    }
}

#[test]
fn rule_15_promises_that_are_not_believed() {
    let p = partial();
    let head = p.inside(&["rev-parse", "HEAD"]);
    let first = p.inside(&["rev-parse", "HEAD^"]);
    let tree = p.inside(&["rev-parse", "HEAD^{tree}"]);
    let honest = p.inside(&["commit-tree", &tree, "-p", &head, "-m", "honest"]);
    // A parent that is nowhere.
    let gone = p.inside(&["commit-tree", &tree, "-p", &first, "-m", "gone"]);
    let orphan = p.inside(&["commit-tree", &tree, "-p", &gone, "-m", "orphan"]);
    for commits in [[&honest], [&orphan]] {
        fetched(&p, &[commits[0]], "w/.git");
    }
    for commit in [&honest, &gone, &orphan] {
        std::fs::remove_file(p.loose(&ObjectId::from_hex(commit.as_bytes()).unwrap())).unwrap();
    }
    let store = p.store();
    store.gather().unwrap();
    let [honest, orphan] = [&honest, &orphan].map(|id| ObjectId::from_hex(id.as_bytes()).unwrap());
    let promisors = |p: &Pair| p.files("pack-").iter().filter(|name| name.ends_with(".promisor")).count();
    let before = promisors(&p);
    let admitted = store.admit(&[honest, orphan]).unwrap();
    assert!(admitted.has(&honest) && !admitted.has(&orphan), "{admitted:?}");
    assert!(promisors(&p) > before);
    assert!(!p.has(&orphan));
}
