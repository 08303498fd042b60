//! Whole `config.json` files for hosts that are made up: what a plan becomes, byte for byte. After an intended
//! change run the tests with `UPDATE_GOLDEN=1` and read the difference.

#![cfg(test)]

use std::collections::{BTreeMap, HashSet};
use std::path::{Path, PathBuf};

use codeoid_spec::bundle::{self, HomeLayer, Layout};
use codeoid_spec::git::{Access, Bind, Checkout, Entry, Guard, Protection, Repository};
use codeoid_spec::host::{Host, Mounted, Node, Tree};
use codeoid_spec::id::TurnId;
use codeoid_spec::origin::Sourced;
use codeoid_spec::plan::{self, Plan, Request};
use codeoid_spec::policy::{self, Context, Key, Layer, Policy};
use codeoid_spec::state::StateDir;

struct Fake(BTreeMap<PathBuf, Node>);

impl Tree for Fake {
    fn node(&self, path: &Path) -> Option<Node> {
        self.0.get(path).cloned()
    }

    fn real(&self, path: &Path) -> Option<PathBuf> {
        match self.0.get(path)? {
            Node::Link(target) => self.real(&path.parent()?.join(target)),
            _ => Some(path.to_owned()),
        }
    }
}

fn tree(directories: &[&str]) -> Fake {
    let mut nodes = BTreeMap::new();
    for directory in directories {
        for at in Path::new(directory).ancestors() {
            nodes.insert(at.to_owned(), Node::Directory { mode: 0o755 });
        }
    }
    Fake(nodes)
}

fn host(uid: u32, home: &str) -> Host {
    let directory = || Node::Directory { mode: 0o755 };
    let mut top: BTreeMap<String, Node> =
        ["dev", "etc", "home", "proc", "root", "run", "srv", "sys", "tmp", "usr", "var"]
            .map(|name| (name.to_owned(), directory()))
            .into();
    top.insert("bin".to_owned(), Node::Link(PathBuf::from("usr/bin")));
    Host {
        uid,
        gid: uid,
        umask: 0o022,
        home: Some(PathBuf::from(home)),
        other_home: None,
        state: StateDir::new(PathBuf::from(home).join(".local/state/codeoid-shim")),
        runtime: PathBuf::from(format!("/run/user/{uid}/codeoid-shim")),
        top,
        mounts: ["/", "/proc", "/sys", "/dev", "/run"]
            .iter()
            .enumerate()
            .map(|(number, at)| Mounted {
                device: number.to_string(),
                root: PathBuf::from("/"),
                at: PathBuf::from(at),
            })
            .collect(),
        resolver: Some(PathBuf::from("/run/systemd/resolve")),
        env: [("PATH", "/usr/bin:/bin"), ("HOME", home), ("SSH_AUTH_SOCK", "/tmp/ssh/agent"), ("LANG", "C")]
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .into(),
        env_refused: Vec::new(),
        terminal: [false; 3],
        session_runtime: None,
        layers: PathBuf::from(format!("/run/user/{uid}/codeoid-shim/layers")),
        writable_layers: true,
        sockets: Vec::new(),
        window: None,
    }
}

fn policy(home: &str, workspace: &str, flags: &[(Key, &str)]) -> Policy {
    let mut layer = Layer::default();
    layer.flag(Key::Session, "s1").unwrap();
    layer.flag(Key::Workspace, workspace).unwrap();
    for (key, value) in flags {
        layer.flag(*key, value).unwrap();
    }
    let context = Context { cwd: PathBuf::from("/"), home: PathBuf::from(home) };
    policy::resolve(layer, Layer::default(), None, &context).unwrap()
}

fn secrets(paths: &[&str]) -> Vec<Sourced<PathBuf>> {
    paths.iter().map(|path| Sourced::default_rule(PathBuf::from(path))).collect()
}

fn resolve(
    policy: &Policy,
    host: &Host,
    tree: &Fake,
    guard: Option<Guard>,
    secrets: &[Sourced<PathBuf>],
) -> Result<Plan, plan::Error> {
    let workspace = plan::workspace(policy, host, tree)?;
    let turn: TurnId = "01890a5d-ac96-774b-bcce-b302099a8057".parse().unwrap();
    let request = Request {
        turn,
        command: vec!["sh".to_owned(), "-c".to_owned(), "true".to_owned()],
        workspace,
        guard,
        config_file: None,
    };
    plan::resolve(policy, host, tree, request, secrets)
}

fn compare(name: &str, plan: &Plan, files: &[&str]) {
    let base = PathBuf::from("/run/user/layers");
    let home = plan.covers.iter().find(|cover| cover.upper).map(|cover| {
        let base = cover.root.join(".local/state/codeoid-shim/sessions/s1/home");
        HomeLayer { upper: base.join("upper"), work: base.join("work"), merged: base.join("merged") }
    });
    let layout = Layout {
        rootfs: base.join("root"),
        masks: (0..plan.covers.len()).map(|number| base.join(format!("mask{number}"))).collect(),
        home,
        no_file: base.join("no-file"),
        no_directory: base.join("no-directory"),
        state_dir: PathBuf::from("/state"),
        hook: Some(PathBuf::from("/usr/bin/codeoid-hook")),
        masked_directories: Vec::new(),
        files: files.iter().map(PathBuf::from).collect::<HashSet<_>>(),
    };
    let spec = bundle::config(plan, &layout).unwrap();
    // By way of a value: the annotations' order in memory is not the same twice.
    let value = serde_json::to_value(&spec).unwrap();
    let text = serde_json::to_string_pretty(&value).unwrap() + "\n";
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name);
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::write(&path, &text).unwrap();
    }
    let golden = std::fs::read_to_string(&path).unwrap_or_default();
    if golden != text {
        let difference = golden.lines().zip(text.lines()).enumerate().find(|(_, (old, new))| old != new);
        panic!("{} differs: {difference:?}", path.display());
    }
}

const SECRETS: &[&str] = &["/home/u/.ssh", "/home/u/.config/gcloud", "/etc/shadow"];

#[test]
fn an_ordinary_user_outside_a_repository() {
    let tree = tree(&["/home/u/w", "/home/u/.config", "/var/tmp", "/run/systemd/resolve", "/etc"]);
    let host = host(1000, "/home/u");
    let policy = policy("/home/u", "/home/u/w", &[]);
    let plan = resolve(&policy, &host, &tree, None, &secrets(&SECRETS[..2])).unwrap();
    compare("user.json", &plan, &[]);
}

#[test]
fn root_with_limits_and_a_closed_network() {
    let tree = tree(&["/srv/w", "/root", "/var/tmp", "/etc", "/run/systemd/resolve"]);
    let host = host(0, "/root");
    let flags = [(Key::Network, "off"), (Key::Memory, "512M"), (Key::Cpus, "1.5"), (Key::Pids, "100")];
    let policy = policy("/root", "/srv/w", &flags);
    let plan = resolve(&policy, &host, &tree, None, &secrets(SECRETS)).unwrap();
    compare("root.json", &plan, &[]);
}

#[test]
fn rules_of_the_policy_and_their_order() {
    let tree =
        tree(&["/home/u/w/secret", "/home/u/data", "/home/u/out", "/home/u/.ssh", "/var/tmp", "/srv/x"]);
    let host = host(1000, "/home/u");
    let flags = [
        (Key::Home, "readonly"),
        (Key::Read, "/home/u/data"),
        (Key::Write, "/home/u/out"),
        (Key::Hide, "/home/u/w/secret"),
        (Key::Hide, "/srv/x"),
        (Key::Env, "A=1"),
        (Key::PassEnv, "SSH_AUTH_SOCK"),
    ];
    let policy = policy("/home/u", "/home/u/w", &flags);
    let plan = resolve(&policy, &host, &tree, None, &secrets(&SECRETS[..1])).unwrap();
    compare("rules.json", &plan, &[]);
}

fn guard() -> Guard {
    let at = |path: &str| PathBuf::from(path);
    let bind = |path: &str, access| Bind {
        source: at(path),
        target: at(path),
        access,
        reason: "a reason".to_owned(),
    };
    Guard {
        protection: Protection::Shared,
        repository: Repository {
            common_dir: at("/home/u/r/.git"),
            git_dir: at("/home/u/r/.git"),
            checkout: Checkout::Main { top: at("/home/u/r") },
            main_checkout: Some(at("/home/u/r")),
            entries: vec![
                Entry { id: "human".to_owned(), worktree: Some(at("/home/u/r-human")), own: false },
                Entry {
                    id: "mine".to_owned(),
                    worktree: Some(at("/home/u/r-worktrees/s1-x/mine")),
                    own: true,
                },
            ],
            worktrees_root: at("/home/u/r-worktrees"),
            session_folders: vec![at("/home/u/r-worktrees/s1-x")],
            other_roots: Vec::new(),
        },
        binds: vec![
            bind("/home/u/r/.git", Access::Write),
            bind("/home/u/r/.git/worktrees", Access::Write),
            bind("/home/u/r/.git/worktrees/human", Access::Read),
            bind("/home/u/r/.git/config", Access::Read),
        ],
        env: vec![
            ("GIT_CONFIG_COUNT".to_owned(), "1".to_owned()),
            ("GIT_CONFIG_KEY_0".to_owned(), "gc.auto".to_owned()),
            ("GIT_CONFIG_VALUE_0".to_owned(), "0".to_owned()),
        ],
        watch: vec![at("/home/u/r/.git/commondir")],
    }
}

#[test]
fn a_repository_with_worktrees_of_others() {
    let tree = tree(&["/home/u/r/.git/worktrees/human", "/home/u/r-human", "/home/u/r-worktrees/s1-x/mine"]);
    let host = host(1000, "/home/u");
    let policy = policy("/home/u", "/home/u/r", &[]);
    let plan = resolve(&policy, &host, &tree, Some(guard()), &secrets(&SECRETS[..1])).unwrap();
    compare("repository.json", &plan, &["/home/u/r/.git/config"]);
}

#[test]
fn what_must_not_be_a_workspace() {
    let tree = tree(&[
        "/home/u/.ssh/x",
        "/tmp/ok",
        "/var/tmp",
        "/run/user/1000/codeoid-shim",
        "/dev/shm",
        "/proc/1",
    ]);
    let host = host(1000, "/home/u");
    for path in [
        "/",
        "/home",
        "/home/u",
        "/tmp",
        "/var/tmp",
        "/run",
        "/dev/shm",
        "/proc/1",
        "/run/user/1000/codeoid-shim",
        "/nowhere",
    ] {
        let policy = policy("/home/u", path, &[]);
        let error = resolve(&policy, &host, &tree, None, &[]).unwrap_err();
        assert!(matches!(error, plan::Error::Workspace { .. }), "{path}: {error}");
    }
    let inside = policy("/home/u", "/home/u/.ssh/x", &[]);
    let error = resolve(&inside, &host, &tree, None, &secrets(SECRETS)).unwrap_err();
    assert!(matches!(error, plan::Error::WorkspaceHidden { .. }), "{error}");
    resolve(&policy("/home/u", "/tmp/ok", &[]), &host, &tree, None, &[]).unwrap();
}

#[test]
fn what_is_hidden_by_default_is_shown_only_as_a_widening() {
    let tree = tree(&["/home/u/w", "/home/u/.ssh/config.d", "/var/tmp"]);
    let host = host(1000, "/home/u");
    let shown = policy("/home/u", "/home/u/w", &[(Key::Read, "/home/u/.ssh")]);
    let plan = resolve(&shown, &host, &tree, None, &secrets(&SECRETS[..1])).unwrap();
    assert_eq!(plan.widened.len(), 1);
    assert_eq!(plan.access(Path::new("/home/u/.ssh/key")).0, Some(Access::Read));
    let flags = [(Key::Read, "/home/u/.ssh"), (Key::Hide, "/home/u/.ssh")];
    let hidden = policy("/home/u", "/home/u/w", &flags);
    let plan = resolve(&hidden, &host, &tree, None, &secrets(&SECRETS[..1])).unwrap();
    assert!(plan.widened.is_empty());
    assert_eq!(plan.access(Path::new("/home/u/.ssh/key")).0, None, "hide beats read");
}
