//! One test or more per rule, each with a reproduction of what goes wrong without it.

use super::*;

#[test]
fn rule_8_what_only_an_index_names() {
    let p = Pair::new();
    p.s.write("w/new", "new\n");
    p.inside(&["add", "new"]);
    let blob = p.id(":new");
    let known = p.id("HEAD:file");
    p.bring(&[blob, known]);
    assert_eq!(p.outside(&["cat-file", "blob", &blob.to_string()]), "new");
    // A tree that only an index's cache names, and a stash.
    let tree = ObjectId::from_hex(p.inside(&["write-tree"]).as_bytes()).unwrap();
    p.inside(&["stash", "-q"]);
    let stash = p.id("stash");
    let admitted = p.bring(&[tree, stash]);
    assert_eq!(admitted.tips.len(), 2);
    p.land("x", &stash);
}

#[test]
fn rule_8_a_blob_that_the_host_would_prune_is_made_young() {
    let p = Pair::new();
    p.s.write("new", "new\n");
    let id = p.outside(&["hash-object", "-w", p.s.path("new").to_str().unwrap()]);
    let blob = ObjectId::from_hex(id.as_bytes()).unwrap();
    let old = std::time::SystemTime::now() - std::time::Duration::from_secs(60 * 24 * 3600);
    std::fs::File::open(at(&p.host, &blob)).unwrap().set_modified(old).unwrap();
    p.bring(&[blob]);
    p.outside(&["prune", "--expire=2.weeks.ago"]);
    assert!(p.has(&blob));
    std::fs::File::open(at(&p.host, &blob)).unwrap().set_modified(old).unwrap();
    p.outside(&["prune", "--expire=2.weeks.ago"]);
    assert!(!p.has(&blob), "the control");
}

#[test]
fn rule_12_nothing_of_the_shadow_runs() {
    let p = Pair::new();
    let mark = p.s.trap("trap", "mark");
    let trap = p.s.path("trap");
    let trap = trap.to_str().unwrap();
    let tip = p.commit("file", "two\n");
    let missing = p.commit("file", "three\n");
    std::fs::remove_file(p.loose(&p.id("HEAD:file"))).unwrap();
    for (key, value) in [
        ("core.repositoryFormatVersion", "1"),
        ("extensions.partialClone", "o"),
        ("remote.o.promisor", "true"),
        ("remote.o.url", p.s.path("h").to_str().unwrap()),
        ("remote.o.uploadpack", trap),
        ("core.fsmonitor", trap),
        ("core.alternateRefsCommand", trap),
        ("core.sshCommand", trap),
        ("uploadpack.packObjectsHook", trap),
    ] {
        p.inside(&["config", key, value]);
    }
    for hook in ["pre-auto-gc", "reference-transaction", "post-index-change", "pre-receive", "update"] {
        std::fs::copy(trap, p.shadow.join("hooks").join(hook)).unwrap();
    }
    // Objects of a repository that the turn made elsewhere, which has a mind of its own.
    p.s.repository("w/other");
    let other = p.s.path("w/other/.git/objects");
    p.s.write("w/.git/objects/info/alternates", &format!("{}\n", other.display()));
    p.refused(missing);
    p.bring(&[tip]);
    assert!(!mark.exists());
    // The control: git in the shadow runs it.
    p.s.write("w/.git/objects/info/alternates", &format!("{}\n", p.host.join("objects").display()));
    p.s.try_git("w", ["cat-file", "-e", &format!("{missing}:file")]);
    assert!(mark.exists());
    p.land("main", &tip);
}

#[test]
fn rule_13_a_tip_whose_tree_the_host_has_lost() {
    let p = Pair::new();
    p.s.write("h/file", "lost\n");
    p.outside(&["commit", "-q", "-a", "-m", "lost"]);
    let broken = ObjectId::from_hex(p.outside(&["rev-parse", "HEAD"]).as_bytes()).unwrap();
    let tree = ObjectId::from_hex(p.outside(&["rev-parse", "HEAD^{tree}"]).as_bytes()).unwrap();
    p.outside(&["reset", "-q", "--hard", "HEAD^"]);
    std::fs::remove_file(at(&p.host, &tree)).unwrap();
    p.inside(&["update-ref", "refs/heads/evil", &broken.to_string()]);
    assert!(!p.store().connected(&[broken]).unwrap());
    let admitted = p.store().admit(&[broken]).unwrap();
    let (_, why) = admitted.refused().next().unwrap();
    assert!(why.contains(&tree.to_string()), "{why}");
    // The control: git's own compare-and-swap does not mind.
    p.outside(&["update-ref", "refs/heads/evil", &broken.to_string()]);
    assert!(!p.s.try_git("h", ["fsck"]).status.success());
}

#[test]
fn rule_16_beyond_a_shallow_boundary() {
    let s = Scratch::new();
    s.repository("origin");
    for count in 0..4 {
        s.write("origin/file", &format!("{count}\n"));
        s.git("origin", ["commit", "-q", "-a", "-m", "more"]);
    }
    let url = format!("file://{}", s.path("origin").display());
    s.git("", ["clone", "-q", "--depth=1", &url, "h"]);
    let p = Pair::of(s, "sha1");
    let mine = p.commit("mine", "mine\n");
    // A history of its own, cut off inside.
    p.s.git("origin", ["checkout", "-q", "-b", "side", "HEAD~2"]);
    p.s.write("origin/side", "1\n");
    p.s.git("origin", ["add", "."]);
    p.s.git("origin", ["commit", "-q", "-m", "side"]);
    p.inside(&["fetch", "-q", "--depth=1", &url, "side:side"]);
    let side = p.id("side");
    let store = p.store();
    store.gather().unwrap();
    let admitted = store.admit(&[mine, side]).unwrap();
    assert!(admitted.has(&mine), "{admitted:?}");
    let (refused, why) = admitted.refused().next().unwrap();
    assert_eq!(*refused, side);
    assert!(why.contains(&p.inside(&["cat-file", "-p", "side"])[53..93]), "the parent is named: {why}");
    p.land("main", &mine);
    // A history that goes below the host's boundary inside is not brought further than to it.
    p.inside(&["fetch", "-q", "--unshallow", &url]);
    let more = p.commit("mine", "more\n");
    assert_eq!(p.bring(&[more]).objects, 3);
    p.land("main", &more);
}

/// A commit of a tree that holds what the turn wrote there itself.
fn commit_of_tree(p: &Pair, tree: &[u8]) -> ObjectId {
    let mut command = p.s.command("w");
    command.args(["hash-object", "-w", "-t", "tree", "--literally", "--stdin"]);
    let id = hostile::output_of(&mut command, tree);
    let commit = p.inside(&["commit-tree", &id, "-p", "HEAD", "-m", "tree"]);
    ObjectId::from_hex(commit.as_bytes()).unwrap()
}

/// An entry of a tree.
fn entry(mode: &str, name: &str, id: &ObjectId) -> Vec<u8> {
    [mode.as_bytes(), b" ", name.as_bytes(), b"\0", id.as_slice()].concat()
}

#[test]
fn rule_17_old_faults_pass_and_dangerous_ones_do_not() {
    let p = Pair::new();
    let good = p.commit("file", "good\n");
    let (blob, tree) = (p.id("HEAD:file"), p.id("HEAD^{tree}"));
    let padded = commit_of_tree(&p, &entry("040000", "d", &tree));
    let bad: Vec<ObjectId> = [
        entry("40000", ".git", &tree),
        entry("40000", ".GIT", &tree),
        entry("40000", "git~1", &tree),
        entry("40000", "..", &tree),
        entry("40000", ".", &tree),
        entry("100644", "a/b", &blob),
        entry("100644", "", &blob),
        entry("120000", ".gitmodules", &blob),
        [entry("100644", "b", &blob), entry("100644", "a", &blob)].concat(),
        [entry("100644", "a", &blob), entry("100644", "a", &blob)].concat(),
        [entry("120000", "a", &blob), entry("40000", "a", &tree)].concat(),
        entry("100644", "a", &ObjectId::null(p.kind)),
        b"100644".to_vec(),
    ]
    .iter()
    .map(|tree| commit_of_tree(&p, tree))
    .collect();
    let commit = |text: &str| {
        let mut command = p.s.command("w");
        command.args(["hash-object", "-w", "-t", "commit", "--literally", "--stdin"]);
        ObjectId::from_hex(hostile::output_of(&mut command, text.as_bytes()).as_bytes()).unwrap()
    };
    let who = "A <a@b> 1700000000";
    let old =
        commit(&format!("tree {tree}\nauthor {who} +051800\ncommitter A a@b 1700000000 +0000\n\nold\n"));
    let mut tips = vec![good, padded, old];
    tips.extend(&bad);
    let store = p.store();
    store.gather().unwrap();
    let admitted = store.admit(&tips).unwrap();
    assert!(admitted.has(&good));
    assert!(admitted.has(&padded) && admitted.has(&old), "{admitted:?}");
    for tip in &bad {
        assert!(!admitted.has(tip), "{}", p.inside(&["ls-tree", &tip.to_string()]));
        assert!(!p.has(tip));
    }
    p.land("main", &good);
    p.land("padded", &padded);
    // The same where there are too many objects to unpack.
    for count in 0..600 {
        p.s.write(format!("w/many/{count}"), &format!("{count}\n"));
    }
    p.inside(&["add", "."]);
    let large = p.commit("file", "large\n");
    let tree = p.id("HEAD^{tree}");
    let bad = commit_of_tree(&p, &entry("40000", ".git", &tree));
    let padded = commit_of_tree(&p, &entry("040000", "d", &tree));
    store.gather().unwrap();
    let why = store.admit(&[bad]).unwrap();
    let why = why.refused().next().unwrap().1;
    assert!(why.contains("hasDotgit"), "{why}");
    assert!(!p.has(&bad) && !p.has(&large));
    p.check();
    let admitted = store.admit(&[bad, padded, large]).unwrap();
    assert!(admitted.has(&padded) && admitted.has(&large) && !admitted.has(&bad) && admitted.keep);
    p.land("main", &large);
}

#[test]
fn rule_17_submodules_that_would_run_something() {
    for padding in [0, 600] {
        let p = Pair::new();
        let base = p.id("HEAD").to_string();
        for text in [
            "[submodule \"a\"]\n\tpath = a\n\turl = -u./x\n",
            "[submodule \"a\"]\n\tpath = -a\n\turl = https://example.com/\n",
            "[submodule \"../../a\"]\n\tpath = a\n\turl = https://example.com/\n",
            "[submodule \"a\"]\n\tpath = a\n\turl = https://example.com/\n\tupdate = !touch x\n",
        ] {
            p.inside(&["reset", "-q", "--hard", &base]);
            // At first under a name that means nothing; that is admitted.
            for count in 0..padding {
                p.s.write(format!("w/many/{count}"), &format!("{count}\n"));
            }
            p.inside(&["add", "."]);
            p.commit("harmless", text);
            let first = p.id("HEAD");
            p.bring(&[first]);
            p.outside(&["update-ref", "refs/heads/first", &first.to_string()]);
            for count in 0..padding {
                p.s.write(format!("w/many/{count}"), &format!("{count} more\n"));
            }
            p.inside(&["add", "."]);
            p.inside(&["mv", "harmless", ".gitmodules"]);
            p.inside(&["commit", "-q", "-m", "renamed"]);
            let why = p.refused(p.id("HEAD"));
            assert!(why.contains("gitmodules"), "{text}: {why}");
        }
    }
}

#[test]
fn rule_18_replacements_and_grafts_inside_change_nothing() {
    let p = Pair::new();
    let first = p.commit("file", "two\n");
    let tip = p.commit("file", "three\n");
    let other = p.inside(&["commit-tree", "HEAD^{tree}", "-m", "unrelated"]);
    p.inside(&["replace", &tip.to_string(), &other]);
    p.inside(&["replace", &first.to_string(), &other]);
    p.s.write("w/.git/info/grafts", &format!("{tip}\n"));
    p.inside(&["-c", "core.commitGraph=true", "commit-graph", "write", "--reachable"]);
    let admitted = p.bring(&[tip]);
    assert_eq!(admitted.objects, 6);
    p.land("main", &tip);
    assert_eq!(p.outside(&["rev-list", "--count", "main"]), "3");
}

#[test]
fn rule_18_replacements_and_grafts_of_the_host_hide_nothing() {
    let p = Pair::new();
    p.commit("file", "two\n");
    let tip = p.commit("file", "three\n");
    p.s.write("h/.git/info/grafts", &format!("{tip}\n"));
    let other = p.outside(&["commit-tree", "HEAD^{tree}", "-m", "unrelated"]);
    p.outside(&["replace", "HEAD", &other]);
    p.bring(&[tip]);
    std::fs::remove_file(p.host.join("info/grafts")).unwrap();
    p.land("main", &tip);
}

#[test]
fn rule_26_what_the_host_has_lost_comes_from_the_snapshot() {
    let p = Pair::new();
    p.s.write("h/lost", "lost\n");
    p.outside(&["add", "."]);
    p.outside(&["commit", "-q", "-m", "lost"]);
    let lost = p.outside(&["rev-parse", "HEAD"]);
    std::process::Command::new("cp")
        .args(["-al", p.host.join("objects").to_str().unwrap(), p.s.path("snapshot").to_str().unwrap()])
        .status()
        .unwrap();
    p.inside(&["reset", "-q", "--hard", &lost]);
    let tip = p.commit("file", "two\n");
    p.outside(&["reset", "-q", "--hard", "HEAD^"]);
    p.outside(&["reflog", "expire", "--expire=now", "--all"]);
    p.outside(&["gc", "-q", "--prune=now"]);
    p.refused(tip);
    let store = p.store().borrowing(vec![p.s.path("snapshot")]);
    assert!(store.admit(&[tip]).unwrap().has(&tip));
    p.land("main", &tip);
}
