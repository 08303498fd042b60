//! The harness itself: fixtures are what they claim to be, and snapshots see what changes.

#![cfg(test)]

use std::fs;

use codeoid_tests::{Layout, Place, Repo, Snapshot, each_identity};

fn every_layout_is_a_sound_repository(place: &Place) {
    for layout in Layout::REPOSITORIES {
        for git in layout.gits() {
            let mut place = codeoid_tests::Place::new(place.identity(), layout.name());
            place.prefer(&git.directory);
            let repo = Repo::new(&place, layout);
            repo.assert_sound(&place);
            assert!(place.sh(&repo.workspace, "git log --oneline main feature rival").ok());
            assert_eq!(place.git(&repo.workspace, &["status", "--porcelain"]), "", "{layout:?}");
            assert!(repo.common.join("worktrees/human/gitdir").exists(), "{layout:?}");
        }
    }
}

fn a_thousand_worktrees_are_seen_by_git(place: &Place) {
    let repo = Repo::new(place, Layout::Main);
    repo.add_worktrees(place, 1000);
    let list = place.git(&repo.workspace, &["worktree", "list", "--porcelain"]);
    assert_eq!(list.matches("worktree ").count(), 1002);
    assert!(!list.contains("prunable"), "{}", &list[..2000]);
    place.git(&repo.top.join("many/w999"), &["rev-parse", "HEAD"]);
}

fn a_snapshot_sees_every_kind_of_change(place: &Place) {
    place.write("t/kept", "same");
    place.write("t/edited", "before");
    place.write("t/removed", "x");
    place.write("t/mode", "x");
    let before = Snapshot::of(&place.at("t"));
    before.assert_same(&Snapshot::of(&place.at("t")), "nothing");
    place.write("t/edited", "after!");
    place.write("t/new/deep", "x");
    fs::remove_file(place.at("t/removed")).unwrap();
    place.sh(&place.at("t"), "chmod 600 mode; ln -s kept link; mkfifo fifo").expect_ok();
    let after = Snapshot::of(&place.at("t"));
    let changes = before.changes(&after).join("\n");
    for expected in ["~ edited", "- removed", "~ mode", "+ new/deep", "+ link", "+ fifo"] {
        assert!(changes.contains(expected), "{expected}:\n{changes}");
    }
    assert!(!changes.contains("kept:"), "{changes}");
}

each_identity! {
    every_layout_is_a_sound_repository,
    a_thousand_worktrees_are_seen_by_git,
    a_snapshot_sees_every_kind_of_change,
}
