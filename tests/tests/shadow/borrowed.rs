//! Objects: what the session borrows from the host lasts as long as the session needs it, and what it makes arrives
//! whole, checked, and without a pack for every commit.

use codeoid_tests::{Layout, Place, Repo, each_identity};

use crate::{SHADOW, around, assert_clean, assert_no_findings, assert_sound, does, host, said, subjects};

fn rule_26_what_the_host_collects_lasts_for_the_session(place: &Place) {
    for packed in [true, false] {
        let repo = Repo::below(place, Layout::Main, if packed { "home/packed" } else { "home/loose" });
        let tip = host(
            place,
            &repo.workspace,
            if packed { "git repack -q -a -d; git rev-parse feature" } else { "git rev-parse feature" },
        );
        let after = "git log --format=%s feature | head -2; git checkout -q -b new feature; cat src/feature
            echo z >z; git add z; git commit -q -m agent; git fsck --no-progress --no-dangling; git checkout -q main";
        let outcome = around(place, &repo, "", after, || {
            let collect = "git remote remove origin; git branch -q -D feature; git reflog expire --expire=now --all; git gc -q --prune=now";
            host(place, &repo.workspace, collect);
            // The control: on the host it is gone.
            assert!(!place.sh(&repo.workspace, &format!("git cat-file -e {tip} 2>/dev/null")).ok());
        });
        assert_eq!(outcome.out(), "ready\nFeature two\nFeature one\nfeature", "{outcome}");
        assert_no_findings(&outcome);
        assert_eq!(subjects(place, &repo, "new"), ["agent", "Feature two", "Feature one", "Second", "First"]);
        assert!(
            !place.sh(&repo.workspace, "git rev-parse -q --verify feature").ok(),
            "deleted by the human: {outcome}"
        );
        let outcome = does(
            place,
            &repo,
            "git branch --format='%(refname:short)'; git fsck --no-progress --no-dangling",
        );
        assert_eq!(outcome.out(), "human\nmain\nnew\nrival", "{outcome}");
        assert_sound(place, &repo);
    }
}

fn rule_26_a_commit_on_what_the_host_has_deleted_is_kept_whole(place: &Place) {
    let repo = Repo::new(place, Layout::Main);
    let after = "git worktree add -q \"$CODEOID_WORKTREE_DIR/f\" feature; cd \"$CODEOID_WORKTREE_DIR/f\"
        echo z >z; git add z; git commit -q -m agent";
    let outcome = around(place, &repo, "", after, || {
        let collect = "git remote remove origin; git branch -q -D feature; git reflog expire --expire=now --all; git gc -q --prune=now";
        host(place, &repo.workspace, collect);
    });
    let refs = place.git(&repo.common, &["for-each-ref", "--format=%(refname)", "--sort=refname"]);
    let found: Vec<&str> = refs.lines().filter(|name| subjects(place, &repo, name)[0] == "agent").collect();
    assert_eq!(found.len(), 1, "{refs}\n{outcome}");
    assert_eq!(subjects(place, &repo, found[0]).len(), 5);
    assert_sound(place, &repo);
}

fn rule_28_objects_that_the_host_borrows_itself(place: &Place) {
    let repo = Repo::new(place, Layout::Main);
    // As deep as git goes; each adds a commit that only it has; every other pointer is relative.
    let chain = "from=$PWD; cd ..; for n in 1 2 3 4 5; do git clone -q --shared $from c$n; cd c$n
          git commit -q --allow-empty -m c$n
          [ $((n % 2)) -eq 0 ] || realpath --relative-to=.git/objects $from/.git/objects >.git/objects/info/alternates
          from=$PWD; cd ..; done; cat c*/.git/objects/info/alternates";
    let alternates = host(place, &repo.workspace, chain);
    assert!(alternates.starts_with("../"), "{alternates}");
    let last = repo.top.join("c5");
    let work = "git log --format=%s | head -7 | tr '\\n' ' '; git fsck --no-progress --no-dangling; git checkout -q -b agent
        echo 1 >f1; git add f1; git commit -q -m agent; git gc -q; git log --format=%s | wc -l";
    let outcome = place.turn(&last).options(SHADOW).sh(&format!("set -e; {work}")).run();
    assert_eq!(outcome.expect_ok().out(), "c5 c4 c3 c2 c1 Third Second 9", "{outcome}");
    assert_eq!(outcome.err(), "", "{outcome}");
    assert_no_findings(&outcome);
    assert_eq!(
        host(
            place,
            &last,
            "git log -2 --format=%s; git status --porcelain; git fsck --strict --no-progress --no-dangling"
        ),
        "agent\nc5"
    );
    assert_eq!(host(place, &last, "git count-objects -v | grep -c ^alternate"), "5");
}

fn rule_29_small_imports_make_no_packs(place: &Place) {
    let repo = Repo::new(place, Layout::Main);
    let packs = "ls .git/objects/pack | wc -l";
    let before = host(place, &repo.workspace, packs);
    let commits = "git worktree add -q -b mine \"$CODEOID_WORKTREE_DIR/mine\"; cd \"$CODEOID_WORKTREE_DIR/mine\"
        n=0; while [ $n -lt 12 ]; do n=$((n+1)); echo $n >f$n; git add f$n; git commit -q -m $n; sleep 0.3; done";
    let outcome = around(place, &repo, commits, "", || {
        // Live imports have taken place.
        assert!(subjects(place, &repo, "mine").len() > 10, "{:?}", subjects(place, &repo, "mine"));
    });
    assert_no_findings(&outcome);
    assert_eq!(host(place, &repo.workspace, packs), before, "{outcome}");
    assert_eq!(subjects(place, &repo, "mine").len(), 12 + 3);
    assert_sound(place, &repo);
}

fn much_comes_as_one_pack_without_a_keep_file(place: &Place) {
    let repo = Repo::new(place, Layout::Main);
    let work =
        "n=0; while [ $n -lt 400 ]; do n=$((n+1)); echo $n >f$n; done; git add .; git commit -q -m many
        head -c 3000000 /dev/urandom >big; git add big; git commit -q -m big; git gc -q";
    let outcome = does(place, &repo, work);
    assert_no_findings(&outcome);
    assert_eq!(
        host(place, &repo.workspace, "git status --porcelain; git log -2 --format=%s; git ls-files | wc -l"),
        "big\nmany\n406"
    );
    assert_sound(place, &repo);
}

fn rule_11_large_files_come_with_what_names_them(place: &Place) {
    // As git-lfs keeps them: `lfs/objects/<2>/<2>/<SHA-256>`; the session reads the host's beside the host's objects.
    let repo = Repo::new(place, Layout::Main);
    let store = "store() { name=$(printf %s \"$1\" | sha256sum | cut -c1-64); at=.git/lfs/objects/$(echo $name | cut -c1-2)/$(echo $name | cut -c3-4)
        mkdir -p $at; printf %s \"$2\" >$at/$name; echo $at/$name; }\n";
    let old = host(place, &repo.workspace, &format!("{store} store host host"));
    let at = old.strip_prefix(".git/").unwrap();
    let script = format!(
        "{store} cat /run/codeoid/git/{at}; echo; store agent agent; store forged other; ln -s /etc/passwd $(dirname $(store link link))/link
         echo pointer >p; git add p; git commit -q -m agent"
    );
    let outcome = does(place, &repo, &script);
    let lines: Vec<String> = outcome.out().lines().map(str::to_owned).collect();
    assert_eq!(lines[0], "host", "{outcome}");
    assert_eq!(host(place, &repo.workspace, &format!("cat {}", lines[1])), "agent", "{outcome}");
    assert!(!repo.workspace.join(&lines[2]).exists(), "content that is not what its name says: {outcome}");
    assert_eq!(host(place, &repo.workspace, "find .git/lfs -type l"), "");
    assert_eq!(subjects(place, &repo, "main")[0], "agent");
    assert_sound(place, &repo);
}

fn rule_13_a_ref_to_a_broken_object_of_the_host_is_refused(place: &Place) {
    let repo = Repo::new(place, Layout::Main);
    // A dangling commit whose tree was pruned, as an interrupted gc leaves it.
    let dangling = "blob=$(echo gone | git hash-object -w --stdin); tree=$(printf '100644 blob %s\\tgone\\n' $blob | git mktree)
        c=$(git commit-tree -p main -m broken $tree); rm .git/objects/$(echo $tree | cut -c1-2)/$(echo $tree | cut -c3-); echo $c";
    let broken = host(place, &repo.workspace, dangling);
    let control = format!(
        "git update-ref refs/heads/control {broken}; git rev-list --objects --all >/dev/null 2>&1 && exit 1; git update-ref -d refs/heads/control"
    );
    host(place, &repo.workspace, &control);
    let script = format!(
        "git update-ref refs/heads/evil {broken}; git branch good $(git commit-tree -p main -m good main^{{tree}})"
    );
    let outcome = does(place, &repo, &script);
    assert!(!place.sh(&repo.workspace, "git rev-parse -q --verify refs/heads/evil").ok(), "{outcome}");
    assert_eq!(subjects(place, &repo, "good")[0], "good", "{outcome}");
    assert!(said(&outcome).contains("refs/heads/evil stays with the session"), "{outcome}");
    host(place, &repo.workspace, "git rev-list --objects --all >/dev/null");
    assert_clean(place, &repo);
}

fn rule_17_one_bad_object_holds_up_nothing_else(place: &Place) {
    let repo = Repo::new(place, Layout::Main);
    // A tree with an entry named `.git`, which git on the host must never get.
    let script = "blob=$(echo x | git hash-object -w --stdin)
        tree=$(printf '100644 .git\\0%b' \"$(echo $blob | sed 's/../\\\\x&/g')\" | git hash-object -t tree -w --literally --stdin)
        git update-ref refs/heads/bad $(git commit-tree -p main -m bad $tree)
        echo 1 >f1; git add f1; git commit -q -m good";
    let outcome = crate::turn(place, &repo).command(["bash", "-c", &format!("set -e; {script}")]).run();
    outcome.expect_ok();
    assert!(!place.sh(&repo.workspace, "git rev-parse -q --verify refs/heads/bad").ok(), "{outcome}");
    assert_eq!(subjects(place, &repo, "main")[0], "good", "{outcome}");
    assert!(said(&outcome).contains("refs/heads/bad stays with the session"), "{outcome}");
    assert_sound(place, &repo);
}

each_identity! {
    rule_26_what_the_host_collects_lasts_for_the_session,
    rule_26_a_commit_on_what_the_host_has_deleted_is_kept_whole,
    rule_28_objects_that_the_host_borrows_itself,
    rule_29_small_imports_make_no_packs,
    much_comes_as_one_pack_without_a_keep_file,
    rule_11_large_files_come_with_what_names_them,
    rule_13_a_ref_to_a_broken_object_of_the_host_is_refused,
    rule_17_one_bad_object_holds_up_nothing_else,
}
