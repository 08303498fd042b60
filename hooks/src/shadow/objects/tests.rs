mod hostile;
mod partial;
mod rules;

use super::*;
use crate::fixture::Scratch;

/// A host's repository `h`, and a shadow of it at `w/.git` with the work tree `w`, as a turn would see them.
struct Pair {
    s: Scratch,
    host: PathBuf,
    shadow: PathBuf,
    kind: gix::hash::Kind,
    promisor: bool,
    git: Git,
    dir: Dir,
}

impl Pair {
    fn new() -> Self {
        Self::with("sha1")
    }

    fn with(format: &str) -> Self {
        let s = Scratch::new();
        s.repository_with("h", &[&format!("--object-format={format}")]);
        Self::of(s, format)
    }

    /// Of a repository that is at `h` already.
    fn of(s: Scratch, format: &str) -> Self {
        s.git("", ["init", "-q", "-b", "main", &format!("--object-format={format}"), "w"]);
        let (host, shadow) = (s.path("h/.git"), s.path("w/.git"));
        s.write("w/.git/objects/info/alternates", &format!("{}\n", host.join("objects").display()));
        for name in ["config", "shallow"] {
            if host.join(name).exists() {
                std::fs::copy(host.join(name), shadow.join(name)).unwrap();
            }
        }
        let head = s.git("h", ["rev-parse", "HEAD"]);
        s.git("w", ["update-ref", "refs/heads/main", &head]);
        s.git("w", ["reset", "-q", "--hard"]);
        let kind = if format == "sha1" { gix::hash::Kind::Sha1 } else { gix::hash::Kind::Sha256 };
        let git = Git::find(&host, &[]).unwrap();
        let dir = Dir::open(&shadow).unwrap();
        std::fs::create_dir(s.path("state")).unwrap();
        Self { s, host, shadow, kind, promisor: false, git, dir }
    }

    fn store(&self) -> Store<'_> {
        Store::new(&self.git, &self.dir, &self.s.path("state/quarantine"), self.kind, self.promisor)
    }

    /// In the shadow.
    fn inside(&self, args: &[&str]) -> String {
        self.s.git("w", args)
    }

    /// On the host.
    fn outside(&self, args: &[&str]) -> String {
        self.s.git("h", args)
    }

    fn id(&self, revision: &str) -> ObjectId {
        ObjectId::from_hex(self.inside(&["rev-parse", revision]).as_bytes()).unwrap()
    }

    /// Commits a file in the shadow.
    fn commit(&self, name: &str, text: &str) -> ObjectId {
        self.s.write(Path::new("w").join(name), text);
        self.inside(&["add", name]);
        self.inside(&["commit", "-q", "-m", name]);
        self.id("HEAD")
    }

    /// Where a loose object of the shadow is.
    fn loose(&self, id: &ObjectId) -> PathBuf {
        at(&self.shadow, id)
    }

    fn has(&self, id: &ObjectId) -> bool {
        self.s.try_git("h", ["cat-file", "-e", &id.to_string()]).status.success()
    }

    /// Moves a branch of the host as an import would, and has git look at everything.
    fn land(&self, branch: &str, id: &ObjectId) {
        self.outside(&["update-ref", &format!("refs/heads/{branch}"), &id.to_string()]);
        self.check();
    }

    /// The host's repository is whole, and nothing of an import is left in it.
    fn check(&self) {
        self.outside(&["fsck", "--full", "--connectivity-only"]);
        let left: Vec<_> = self.files("tmp_");
        assert_eq!(left, Vec::<String>::new());
    }

    /// Files and directories in the host's objects whose names begin so.
    fn files(&self, prefix: &str) -> Vec<String> {
        let objects = self.host.join("objects");
        let names = |path: &Path| -> Vec<String> {
            let list = std::fs::read_dir(path).unwrap();
            list.map(|item| item.unwrap().file_name().into_string().unwrap()).collect()
        };
        let mut found = names(&objects);
        found.extend(names(&objects.join("pack")));
        found.retain(|name| name.starts_with(prefix));
        found
    }

    /// Brings these tips, which have to be admitted all.
    fn bring(&self, tips: &[ObjectId]) -> Admitted {
        let store = self.store();
        store.gather().unwrap();
        let admitted = store.admit(tips).unwrap();
        assert_eq!(admitted.refused().collect::<Vec<_>>(), []);
        assert!(tips.iter().all(|tip| admitted.has(tip)));
        assert!(store.connected(tips).unwrap());
        admitted
    }

    /// Tries to bring this tip, which has to be refused, and the host untouched; the reason is returned.
    fn refused(&self, tip: ObjectId) -> String {
        let store = self.store();
        store.gather().unwrap();
        let admitted = store.admit(&[tip]).unwrap();
        assert!(!admitted.has(&tip), "{tip} was admitted");
        assert!(!store.connected(&[tip]).unwrap());
        self.check();
        let (_, why) = admitted.refused().next().unwrap();
        why.to_owned()
    }
}

fn at(git_dir: &Path, id: &ObjectId) -> PathBuf {
    let id = id.to_string();
    git_dir.join("objects").join(&id[..2]).join(&id[2..])
}

#[test]
fn commits_come_over() {
    for format in ["sha1", "sha256"] {
        let p = Pair::with(format);
        let mut tips: Vec<ObjectId> = (0..5).map(|count| p.commit("file", &format!("{count}\n"))).collect();
        p.inside(&["tag", "-a", "-m", "v", "v1"]);
        tips.push(p.id("v1"));
        let store = p.store();
        let gathered = store.gather().unwrap();
        assert_eq!(gathered, Gathered { objects: 16, ..Gathered::default() });
        assert!(store.gather().unwrap().is_empty(), "all is in the quarantine");
        assert!(!store.connected(&tips).unwrap());
        let admitted = store.admit(&tips).unwrap();
        assert_eq!(admitted.refused().count(), 0);
        assert_eq!((admitted.objects, admitted.keep), (16, false));
        assert!(tips.iter().all(|tip| admitted.has(tip)));
        assert!(store.connected(&tips).unwrap());
        p.land("main", &tips[4]);
        assert_eq!(p.outside(&["show", "main:file"]), "4");
        assert_eq!(p.files("pack-"), Vec::<String>::new(), "small imports leave no pack (rule 29)");
        // Nothing is left to do.
        assert_eq!(store.admit(&tips[4..5]).unwrap().objects, 0);
        store.clear().unwrap();
        assert!(!p.s.path("state/quarantine").exists());
        assert!(store.gather().unwrap().is_empty(), "the host has all");
    }
}

#[test]
fn a_turn_without_objects_costs_nothing() {
    let p = Pair::new();
    assert_eq!(p.store().gather().unwrap(), Gathered::default());
    assert_eq!(p.store().admit(&[]).unwrap(), Admitted::default());
    assert!(p.store().connected(&[]).unwrap());
    p.store().release().unwrap();
    p.store().clear().unwrap();
    assert_eq!(std::fs::read_dir(p.s.path("state")).unwrap().count(), 0, "nothing was made");
}

#[test]
fn packs_come_over_and_are_read_once() {
    for format in ["sha1", "sha256"] {
        let p = Pair::with(format);
        for count in 0..30 {
            p.commit("file", &format!("{count}\n"));
        }
        p.inside(&["gc", "-q"]);
        let tip = p.commit("file", "after\n");
        let store = p.store();
        let gathered = store.gather().unwrap();
        assert_eq!(gathered, Gathered { objects: 3, packs: 1, ..Gathered::default() });
        assert_eq!(store.gather().unwrap(), Gathered::default());
        // A quarantine that is gone takes with it what was seen.
        std::fs::remove_dir_all(p.s.path("state/quarantine")).unwrap();
        assert_eq!(store.gather().unwrap(), gathered);
        assert_eq!(store.admit(&[tip]).unwrap().objects, 93);
        p.land("main", &tip);
    }
}

#[test]
fn a_large_import_is_a_pack_that_gc_leaves_until_it_is_released() {
    let p = Pair::new();
    for count in 0..600 {
        p.s.write(format!("w/many/{count}"), &format!("{count}\n"));
    }
    p.inside(&["add", "."]);
    let tip = p.commit("file", "two\n");
    let admitted = p.bring(&[tip]);
    assert!(admitted.keep);
    let keep = |p: &Pair| p.files("pack-").into_iter().filter(|name| name.ends_with(".keep")).count();
    assert_eq!(keep(&p), 1);
    // Rule 27: between the import and the ref.
    p.outside(&["gc", "--prune=now", "-q"]);
    p.land("main", &tip);
    // Another's are not ours.
    p.s.write("h/.git/objects/pack/pack-1.keep", "");
    p.s.write("h/.git/objects/pack/pack-2.keep", "codeoid-shim import 0123456789abcdef\n");
    p.store().release().unwrap();
    assert_eq!(keep(&p), 2);
    p.store().release().unwrap();
    p.outside(&["gc", "--prune=now", "-q"]);
    p.check();
}

#[test]
fn a_gc_without_the_keep_would_have_lost_it() {
    let p = Pair::new();
    for count in 0..600 {
        p.s.write(format!("w/many/{count}"), &format!("{count}\n"));
    }
    p.inside(&["add", "."]);
    let tip = p.commit("file", "two\n");
    p.bring(&[tip]);
    p.store().release().unwrap();
    p.outside(&["gc", "--prune=now", "-q"]);
    assert!(!p.has(&tip));
    // It is found again.
    p.bring(&[tip]);
    p.land("main", &tip);
}

#[test]
fn large_blobs_are_streamed() {
    let p = Pair::new();
    let mut text = String::new();
    for count in 0..7_000_000 {
        use std::fmt::Write as _;
        let _ = write!(text, "{count:x}");
    }
    assert!(text.len() > 40_000_000);
    let tip = p.commit("large", &text);
    p.bring(&[tip]);
    p.land("main", &tip);
    assert_eq!(p.outside(&["cat-file", "-s", "main:large"]), text.len().to_string());
}

#[test]
fn what_a_crash_left_is_cleared() {
    let p = Pair::new();
    let store = p.store();
    let left = p.host.join(format!("objects/tmp_objdir-codeoid-{}-1/pack", store.token()));
    let others = p.host.join("objects/tmp_objdir-codeoid-0123456789abcdef-1");
    std::fs::create_dir_all(&left).unwrap();
    std::fs::create_dir(&others).unwrap();
    store.clear().unwrap();
    assert!(!left.exists() && others.exists());
    // A damaged memory is none.
    let tip = p.commit("file", "two\n");
    p.s.write("state/gathered.json", "{\"packs\": 7");
    std::fs::remove_dir(&others).unwrap();
    p.bring(&[tip]);
    p.land("main", &tip);
}

#[test]
fn a_broken_branch_on_the_host_hinders_nobody() {
    let p = Pair::new();
    p.s.write("h/.git/refs/heads/broken", &format!("{}\n", "1".repeat(40)));
    let tip = p.commit("file", "two\n");
    p.bring(&[tip]);
    assert!(p.has(&tip));
}

#[test]
fn names_with_colons_and_quotes() {
    let p = Pair::new();
    let tip = p.commit("file", "two\n");
    let strange = p.s.path("state/a:b\"c\\d\u{fc}\n");
    std::fs::create_dir(&strange).unwrap();
    let store = Store::new(&p.git, &p.dir, &strange.join("quarantine"), p.kind, false);
    store.gather().unwrap();
    assert!(store.admit(&[tip]).unwrap().has(&tip));
    p.land("main", &tip);
}

#[test]
fn root_in_another_users_repository() {
    if !nix::unistd::Uid::effective().is_root() {
        println!("not run: only root can own what another user has");
        return;
    }
    let p = Pair::new();
    let tip = p.commit("file", "two\n");
    let chown = std::process::Command::new("chown").args(["-R", "1:1"]).arg(p.s.path("h")).status().unwrap();
    assert!(chown.success());
    // The control: git that finds the repository by itself refuses it.
    assert!(!p.s.try_git("h", ["rev-parse", "HEAD"]).status.success());
    p.bring(&[tip]);
    assert!(at(&p.host, &tip).exists());
}
