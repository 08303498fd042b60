//! Repositories, made by real git in `tests/fixtures/repository.sh`, in every layout that git knows.

use std::collections::HashMap;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::{Finished, Place, Requires};

/// A layout.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Layout {
    /// The workspace is the main checkout.
    Main,
    /// The workspace is a directory below the main checkout's top.
    Below,
    /// The workspace is a linked worktree.
    Linked,
    /// The workspace is a worktree of a bare repository.
    Bare,
    /// The workspace is a submodule's checkout.
    Submodule,
    /// The main checkout's `.git` is a file (`git init --separate-git-dir`).
    GitFile,
    /// The workspace is a linked worktree with relative pointers (`worktree.useRelativePaths`, git 2.48; with
    /// older gits only the worktree's `.git` file is relative).
    Relative,
    /// Object names are SHA-256.
    Sha256,
    /// Refs are kept in tables (git 2.45).
    Reftable,
    /// Worktrees have a configuration of their own.
    WorktreeConfig,
    /// There is no repository.
    None,
}

impl Layout {
    /// All layouts that are a repository.
    pub const REPOSITORIES: [Self; 10] = [
        Self::Main,
        Self::Below,
        Self::Linked,
        Self::Bare,
        Self::Submodule,
        Self::GitFile,
        Self::Relative,
        Self::Sha256,
        Self::Reftable,
        Self::WorktreeConfig,
    ];

    /// Its name in `repository.sh`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Main => "main",
            Self::Below => "below",
            Self::Linked => "linked",
            Self::Bare => "bare",
            Self::Submodule => "submodule",
            Self::GitFile => "gitfile",
            Self::Relative => "relative",
            Self::Sha256 => "sha256",
            Self::Reftable => "reftable",
            Self::WorktreeConfig => "worktree-config",
            Self::None => "none",
        }
    }

    /// The first version of git that can make it.
    #[must_use]
    pub const fn since(self) -> (u32, u32) {
        match self {
            Self::Reftable => (2, 45),
            _ => (2, 34),
        }
    }
}

/// A git on this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Git {
    /// The directory that it lies in.
    pub directory: PathBuf,
    /// Major and minor version.
    pub version: (u32, u32),
}

impl Git {
    /// Every version of git on this machine, oldest first: in the usual directories and in those that
    /// `CODEOID_TESTS_GITS` lists, colon-separated.
    ///
    /// # Panics
    /// If there is none.
    #[must_use]
    pub fn all() -> Vec<Self> {
        let extra = std::env::var_os("CODEOID_TESTS_GITS").unwrap_or_default();
        let mut found: Vec<Self> = vec![];
        for directory in
            std::env::split_paths(&extra).chain(["/usr/local/bin", "/usr/bin"].map(PathBuf::from))
        {
            let Ok(output) = Command::new(directory.join("git")).arg("--version").output() else { continue };
            let text = String::from_utf8_lossy(&output.stdout).into_owned();
            let mut numbers = text.split(' ').nth(2).unwrap_or_default().split('.').flat_map(str::parse);
            let (Some(major), Some(minor)) = (numbers.next(), numbers.next()) else { continue };
            if !found.iter().any(|git| git.version == (major, minor)) {
                found.push(Self { directory, version: (major, minor) });
            }
        }
        found.sort_by_key(|git| git.version);
        assert!(!found.is_empty(), "there is no git");
        found
    }
}

/// A repository.
#[derive(Debug)]
pub struct Repo {
    /// Its layout.
    pub layout: Layout,
    /// The directory that holds all of it.
    pub top: PathBuf,
    /// What a session works in.
    pub workspace: PathBuf,
    /// The main checkout, where there is one.
    pub main: Option<PathBuf>,
    /// `$GIT_COMMON_DIR`.
    pub common: PathBuf,
    /// The bare repository that `origin` is.
    pub remote: PathBuf,
    /// Somebody else's worktree, with uncommitted work.
    pub human: PathBuf,
}

impl Repo {
    /// A repository of this layout below the home (`~/src`).
    ///
    /// # Panics
    /// If git cannot make it.
    #[must_use]
    pub fn new(place: &Place, layout: Layout) -> Self {
        Self::below(place, layout, "home/src")
    }

    /// A repository of this layout in this directory of the place.
    ///
    /// # Panics
    /// If git cannot make it.
    #[must_use]
    pub fn below(place: &Place, layout: Layout, directory: &str) -> Self {
        let top = place.make(directory);
        let printed = copy_of_template(place, layout, &top);
        let mut paths: HashMap<&str, PathBuf> = printed
            .lines()
            .filter_map(|line| line.split_once('='))
            .map(|(k, v)| (k, PathBuf::from(v)))
            .collect();
        let mut take = |name: &str| paths.remove(name).unwrap_or_default();
        let main = take("main");
        Self {
            layout,
            workspace: take("workspace"),
            main: (main != Path::new("")).then_some(main),
            common: take("common"),
            remote: take("remote"),
            human: take("human"),
            top,
        }
    }

    /// Registers many worktrees (`tests/fixtures/many-worktrees.sh`) below `<top>/many`.
    ///
    /// # Panics
    /// If git does not see them all.
    pub fn add_worktrees(&self, place: &Place, count: u32) {
        let repo = self.main.clone().unwrap_or_else(|| self.common.clone());
        script(
            place,
            &self.top,
            include_str!("../fixtures/many-worktrees.sh"),
            &[
                repo.to_str().expect("places have plain names"),
                self.top.join("many").to_str().expect("places have plain names"),
                &count.to_string(),
            ],
        )
        .expect_ok();
    }

    /// The human's entry in the repository's bookkeeping.
    #[must_use]
    pub fn human_entry(&self) -> PathBuf {
        self.common.join("worktrees/human")
    }

    /// Asserts that git finds nothing wrong with the repository, and that the human's worktree and the work in
    /// it are as the fixture made them.
    ///
    /// # Panics
    /// If they are not.
    #[track_caller]
    pub fn assert_sound(&self, place: &Place) {
        let fsck = place.sh(&self.common, "git fsck --no-progress --no-dangling 2>&1");
        assert!(fsck.ok() && !fsck.out().contains("error"), "fsck in {}: {fsck}", self.common.display());
        assert_eq!(
            place.git(&self.human, &["status", "--porcelain=v1"]),
            " M src/third\n?? uncommitted",
            "the human's worktree"
        );
        assert_eq!(place.git(&self.human, &["symbolic-ref", "HEAD"]), "refs/heads/human");
        let list = place.git(&self.workspace, &["worktree", "list", "--porcelain"]);
        assert!(list.contains(&format!("worktree {}\n", self.human.display())), "{list}");
    }
}

/// Fills a directory with a copy of the layout's repository, and returns where things are in it.
///
/// git makes each layout once for each identity and PATH; the many tests that want one get a copy, in which the
/// paths that git keeps (`gitdir`, `.git` files, remotes) are rewritten. Making takes a quarter of a second.
fn copy_of_template(place: &Place, layout: Layout, top: &Path) -> String {
    let text = include_str!("../fixtures/repository.sh");
    let mut hash = DefaultHasher::new();
    (text, place.path(), layout.name(), place.identity().uid().as_raw()).hash(&mut hash);
    let templates = crate::place::base().join("fixtures");
    let template = templates.join(format!("{}-{:x}", layout.name(), hash.finish()));
    if !template.exists() {
        fs::create_dir_all(&templates).unwrap_or_else(|error| panic!("{}: {error}", templates.display()));
        let draft = templates.join(format!(".{}-{:?}", std::process::id(), std::thread::current().id()));
        let files = place.make(draft.join("files"));
        let finished = script(place, &files, text, &[layout.name(), files.to_str().expect("a plain name")]);
        assert!(finished.ok(), "fixture {}: {finished}", layout.name());
        place.write(draft.join("where"), finished.out());
        place.write(draft.join("made-in"), files.to_str().expect("a plain name"));
        if fs::rename(&draft, &template).is_err() {
            // Another test was faster.
            let _ = fs::remove_dir_all(&draft);
        }
    }
    let read = |name: &str| fs::read_to_string(template.join(name)).expect("the template is complete");
    let (printed, made_in) = (read("where"), read("made-in"));
    let copy = r#"cp -a "$1/." "$2" && { grep -rlF --include=config --include=gitdir --include=.git \
        --include=.gitmodules "$3" "$2" | xargs -r sed -i "s|$3|$2|g"; }"#;
    let from = template.join("files");
    let words = [&from, top].map(|path| path.to_str().expect("a plain name").to_owned());
    script(place, top, copy, &[&words[0], &words[1], &made_in]).expect_ok();
    printed.replace(&made_in, &words[1])
}

/// Runs a script with arguments in a directory, as the place's identity.
#[must_use]
pub(crate) fn script(place: &Place, directory: &Path, text: &str, arguments: &[&str]) -> Finished {
    let mut command = place.command("/bin/sh");
    command.args(["-c", text, "fixture"]).args(arguments).current_dir(directory);
    Finished(command.output().expect("a shell starts"))
}

impl Layout {
    /// The gits that can make this layout. Empty only after that was said, or is a failure.
    #[must_use]
    pub fn gits(self) -> Vec<Git> {
        let gits: Vec<Git> = Git::all().into_iter().filter(|git| git.version >= self.since()).collect();
        if gits.is_empty() && !Requires::Git("can make this layout").met() {
            return vec![];
        }
        gits
    }
}
