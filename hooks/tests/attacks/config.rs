//! Configuration that makes git run something, or look elsewhere.

use super::{Attack, capture, checked, kinds, usual};
use crate::fixture::Scratch;

fn mark(s: &Scratch) -> String {
    s.trap("trap.sh", "PWNED");
    s.path("trap.sh").to_str().unwrap().to_owned()
}

/// Adds text to a configuration file as an attacker would.
fn add(s: &Scratch, file: &str, text: &str) {
    let path = s.path(file);
    let mut content = std::fs::read_to_string(&path).unwrap_or_default();
    content.push_str(&text.replace("TRAP", &mark(s)));
    std::fs::write(path, content).unwrap();
}

#[test]
fn keys_that_execute() {
    let host = |directory: &'static str, args: &'static [&'static str]| {
        move |s: &Scratch| {
            s.try_git(directory, args);
        }
    };
    let cases: Vec<(&str, Box<dyn Fn(&Scratch)>)> = vec![
        ("[core]\n\tfsmonitor = TRAP\n", Box::new(host("repo", &["status"]))),
        ("[alias]\n\tfoo = !TRAP\n", Box::new(host("repo", &["foo"]))),
        (
            "[core]\n\teditor = TRAP\n",
            Box::new(|s: &Scratch| {
                s.command("repo").env_remove("GIT_EDITOR").args(["commit", "--amend"]).output().unwrap();
            }),
        ),
        (
            "[core]\n\tsshCommand = TRAP\n[remote \"x\"]\n\turl = ssh://h/x\n",
            Box::new(host("repo", &["fetch", "x"])),
        ),
        ("[remote \"x\"]\n\turl = .\n\tuploadpack = TRAP\n", Box::new(host("repo", &["fetch", "x"]))),
        (
            "[protocol \"ext\"]\n\tallow = always\n[remote \"x\"]\n\turl = ext::TRAP\n",
            Box::new(host("repo", &["fetch", "x"])),
        ),
        (
            "[diff]\n\texternal = TRAP\n",
            Box::new(|s: &Scratch| {
                s.write("repo/file", "changed\n");
                s.try_git("repo", ["diff"]);
                s.git("repo", ["-c", "diff.external=", "checkout", "-q", "file"]);
            }),
        ),
        (
            "[filter \"x\"]\n\tclean = TRAP\n",
            Box::new(|s: &Scratch| {
                s.write("repo/.gitattributes", "*.x filter=x\n");
                s.write("repo/a.x", "x\n");
                s.try_git("repo", ["add", "a.x"]);
            }),
        ),
        (
            "[gpg]\n\tprogram = TRAP\n[commit]\n\tgpgSign = true\n",
            Box::new(host("repo", &["commit", "--allow-empty", "-m", "x"])),
        ),
        (
            "[include]\n\tpath = ../evil.inc\n",
            Box::new(|s: &Scratch| {
                add(s, "repo/evil.inc", "[core]\n\tfsmonitor = TRAP\n");
                s.try_git("repo", ["status"]);
            }),
        ),
        (
            "[core]\n\thooksPath = ../trap\n",
            Box::new(|s: &Scratch| {
                s.trap("trap/post-index-change", "PWNED");
                s.try_git("repo", ["update-index", "--force-write-index"]);
            }),
        ),
        (
            "[credential]\n\thelper = !TRAP\n",
            Box::new(|s: &Scratch| {
                let mut command = s.command("repo");
                command.args(["credential", "fill"]).env("GIT_TERMINAL_PROMPT", "0");
                let mut child = command
                    .stdin(std::process::Stdio::piped())
                    .stdout(std::process::Stdio::null())
                    .stderr(std::process::Stdio::null())
                    .spawn()
                    .unwrap();
                let text = b"protocol=https\nhost=h\n\n";
                std::io::Write::write_all(&mut child.stdin.take().unwrap(), text).unwrap();
                child.wait().unwrap();
            }),
        ),
    ];
    for (text, host) in &cases {
        println!("{text}");
        // Some of the keys are harmless alone, and stay.
        let lost = &["repo/.git/config"];
        let plant = |s: &Scratch| add(s, "repo/.git/config", text);
        let (findings, s) = Attack { plant: &plant, host: &**host, lost, ..Attack::default() }.undone();
        host(&s);
        assert!(!s.path("PWNED").exists(), "{text}");
        assert_eq!(s.git("repo", ["config", "user.name"]), "A Human", "{text}");
        assert_eq!(kinds(&findings), ["config-changed"], "{text}");
        assert!(findings[0].detail.contains("kept: "), "{:?}", findings[0]);
    }
}

#[test]
fn core_worktree_overwrites_elsewhere() {
    let findings = Attack {
        setup: &|| {
            let s = usual();
            s.write("victim/file", "precious\n");
            s
        },
        plant: &|s| {
            let text = format!("[core]\n\tworktree = {}\n", s.path("victim").display());
            add(s, "repo/.git/config", &text);
        },
        host: &|s| {
            s.try_git("repo", ["checkout", "-f", "--", "file"]);
        },
        hit: &|s| s.text("victim/file") != "precious\n",
        ..Attack::default()
    }
    .fails();
    assert_eq!(kinds(&findings), ["config-changed"]);
}

#[test]
fn a_push_into_a_planted_repository_runs_its_hooks() {
    let plant = |s: &Scratch, text: &str| {
        s.git("", ["init", "-q", "--bare", "repo/planted"]);
        s.trap("repo/planted/hooks/pre-receive", "PWNED");
        add(s, "repo/.git/config", &text.replace("REPO", s.path("repo").to_str().unwrap()));
    };
    let push = |s: &Scratch| {
        s.try_git("repo", ["push"]);
    };
    let texts = [
        "[remote \"origin\"]\n\turl = REPO/planted\n[push]\n\tdefault = current\n",
        "[branch \"main\"]\n\tremote = planted\n\tmerge = refs/heads/main\n[push]\n\tdefault = current\n",
    ];
    for text in texts {
        let lost = &["repo/.git/config"];
        let attack = Attack { plant: &|s| plant(s, text), host: &push, lost, ..Attack::default() };
        let findings = attack.fails();
        assert!(kinds(&findings).contains(&"config-changed"), "{findings:?}");
    }
}

#[test]
fn config_worktree_of_the_main_checkout_and_of_an_entry() {
    let setup = || {
        let s = usual();
        s.git("repo", ["config", "extensions.worktreeConfig", "true"]);
        s
    };
    for (file, directory) in
        [("repo/.git/config.worktree", "repo"), ("repo/.git/worktrees/feat/config.worktree", "feat")]
    {
        let findings = Attack {
            setup: &setup,
            plant: &|s| add(s, file, "[core]\n\tfsmonitor = TRAP\n"),
            host: &|s| {
                s.try_git(directory, ["status"]);
            },
            ..Attack::default()
        }
        .fails();
        assert_eq!(kinds(&findings), ["config-added"], "{file}");
    }
}

#[test]
fn the_extension_that_wakes_a_config_worktree() {
    // The file lay there before, without effect; the turn turns it on.
    let findings = Attack {
        setup: &|| {
            let s = usual();
            s.write("repo/.git/config.worktree", "[core]\n\tquotePath = false\n");
            s
        },
        plant: &|s| {
            add(s, "repo/.git/config", "[extensions]\n\tworktreeConfig = true\n");
            add(s, "repo/.git/config.worktree", "[core]\n\tfsmonitor = TRAP\n");
        },
        // The extension itself is harmless, and people turn it on.
        lost: &["repo/.git/config"],
        ..Attack::default()
    }
    .fails();
    assert_eq!(kinds(&findings), ["config-changed"]);
}

#[test]
fn a_configuration_that_is_gone_comes_back() {
    for plant in [
        |s: &Scratch| std::fs::remove_file(s.path("repo/.git/config")).unwrap(),
        |s: &Scratch| {
            std::fs::remove_file(s.path("repo/.git/config")).unwrap();
            std::fs::create_dir(s.path("repo/.git/config")).unwrap();
        },
        |s: &Scratch| {
            let file = std::fs::File::create(s.path("repo/.git/config")).unwrap();
            file.set_len(1 << 30).unwrap();
        },
        |s: &Scratch| std::fs::write(s.path("repo/.git/config"), "[core\n").unwrap(),
    ] {
        let s = usual();
        s.git("repo", ["config", "core.pager", "less"]);
        let before = s.text("repo/.git/config");
        let baseline = capture(&s, "repo");
        plant(&s);
        let findings = checked(&s, &baseline);
        assert_eq!(s.text("repo/.git/config"), before, "{findings:?}");
        s.git("repo", ["status"]);
    }
}

#[test]
fn a_second_name_for_the_configuration_is_cut_off() {
    let s = usual();
    let baseline = capture(&s, "repo");
    std::fs::hard_link(s.path("repo/.git/config"), s.path("repo/innocent")).unwrap();
    let findings = checked(&s, &baseline);
    assert_eq!(kinds(&findings), ["config-linked"]);
    add(&s, "repo/innocent", "[core]\n\tfsmonitor = TRAP\n");
    s.git("repo", ["status"]);
    assert!(!s.path("PWNED").exists());
}

#[test]
fn a_human_and_an_attacker_in_one_file() {
    let s = usual();
    let baseline = capture(&s, "repo");
    s.git("repo", ["remote", "add", "backup", "https://example.com/x.git"]);
    s.git("repo", ["config", "user.email", "me@example.com"]);
    let mine = s.text("repo/.git/config");
    add(&s, "repo/.git/config", "[core]\n\tfsmonitor = TRAP\n[user]\n\tname = Both\n");
    let findings = checked(&s, &baseline);
    assert_eq!(kinds(&findings), ["config-changed"]);
    let now = s.text("repo/.git/config");
    assert!(now.starts_with(&mine), "{now}");
    assert_eq!(s.git("repo", ["config", "user.name"]), "Both");
    assert!(!s.try_git("repo", ["config", "core.fsmonitor"]).status.success());
    // What was taken out can be looked up.
    let kept: Vec<_> = std::fs::read_dir(s.path("kept")).unwrap().collect();
    assert_eq!(kept.len(), 1);
    assert!(std::fs::read_to_string(kept[0].as_ref().unwrap().path()).unwrap().contains("fsmonitor"));
}

#[test]
fn a_remote_that_was_moved_is_reported() {
    let s = usual();
    s.git("repo", ["remote", "add", "origin", "https://example.com/x.git"]);
    let baseline = capture(&s, "repo");
    s.git("repo", ["remote", "set-url", "origin", "https://evil.example/x.git"]);
    let before = super::picture(&s.root);
    let findings = checked(&s, &baseline);
    assert_eq!(kinds(&findings), ["remote-changed"]);
    super::same(&super::picture(&s.root), &before);
}

#[test]
fn hooks_and_includes_elsewhere_in_the_git_dir() {
    let setup = || {
        let s = usual();
        s.write("repo/.git/mine/hooks/pre-push", "#!/bin/sh\n");
        s.write("repo/.git/mine/config", "[user]\n\tname = Included\n");
        s.git("repo", ["config", "core.hooksPath", ".git/mine/hooks"]);
        s.git("repo", ["config", "include.path", "mine/config"]);
        s
    };
    let commit = |s: &Scratch| {
        s.try_git("repo", ["commit", "--allow-empty", "-m", "x"]);
    };
    let hook = |s: &Scratch| {
        s.trap("repo/.git/mine/hooks/pre-commit", "PWNED");
    };
    let include = |s: &Scratch| add(s, "repo/.git/mine/config", "[core]\n\tfsmonitor = TRAP\n");
    for (plant, kind) in [(&hook as &dyn Fn(&Scratch), "hook-added"), (&include, "file-changed")] {
        let findings = Attack { setup: &setup, plant, host: &commit, ..Attack::default() }.fails();
        assert_eq!(kinds(&findings), [kind]);
    }
    let session = "s1".parse().unwrap();
    let s = setup();
    let repository = codeoid_hooks::layout::find(&s.path("repo"), &session, &[]).unwrap().unwrap();
    let guard = codeoid_hooks::shared::guard(&repository).unwrap();
    for name in ["mine/hooks", "mine/config"] {
        assert!(guard.binds.iter().any(|bind| bind.target == s.path("repo/.git").join(name)), "{name}");
    }
}
