//! Makes what a bundle refers to and that is not the host's: the root directory's skeleton, the layers of
//! whiteouts, the stand-ins of masks, the session's home layer. Skeletons and whiteout layers are named by
//! their content and shared by all turns: made once, never changed.

use std::collections::HashSet;
use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use codeoid_spec::bundle::{HomeLayer, Layout};
use codeoid_spec::git::Repository;
use codeoid_spec::host::{Host, HostTree, Node, Tree};
use codeoid_spec::mount::Kind;
use codeoid_spec::plan::{Cover, Plan};
use codeoid_spec::state::StateDir;
use nix::sys::stat::{Mode, SFlag, mknod};

use crate::diagnostic::{Doing, Failure};

/// Makes all that the plan's bundle refers to. `own`: where to put it, for a bundle that has to stand alone;
/// else it lies in the runtime directory, for all turns. Not in the state directory: that is below the home,
/// and overlayfs takes no lower layer that lies in another one.
pub fn make(plan: &Plan, host: &Host, own: Option<&Path>) -> Result<Layout, Failure> {
    let state = &host.state;
    let base = own.unwrap_or(&host.layers);
    private_dir(base).doing(format!("make {}", base.display()))?;
    let rootfs_name = match own {
        Some(_) => "rootfs".to_owned(),
        None => format!("root-{}", skeleton_name(&plan.skeleton)),
    };
    let rootfs = base.join(&rootfs_name);
    once(&rootfs, |at| make_skeleton(at, &plan.skeleton)).doing("make the sandbox's root directory")?;
    let mut masks = Vec::new();
    for cover in &plan.covers {
        let at = base.join(format!("mask-{}", cover.content_name()));
        once(&at, |at| make_mask(at, cover)).doing("make the layer that hides")?;
        masks.push(at);
    }
    let (no_file, no_directory) = (base.join(NO_FILE), base.join(NO_DIRECTORY));
    let mut masked_directories = Vec::new();
    if !plan.masked.is_empty() {
        stand_ins(base)?;
        for path in &plan.masked {
            if matches!(HostTree.node(path), Some(Node::Directory { .. })) {
                masked_directories.push(path.clone());
            }
        }
    }
    // The entries of worktrees are known to be directories, and there may be a thousand of them.
    let entries: HashSet<PathBuf> = plan.guard.iter().flat_map(|guard| entries(&guard.repository)).collect();
    let files = plan.mounts.iter().filter_map(|mount| match &mount.kind {
        Kind::Bind { source, .. } if !entries.contains(source) => {
            (!fs::metadata(source).ok()?.is_dir()).then(|| source.clone())
        }
        _ => None,
    });
    let files = files.collect();
    let home = match plan.covers.iter().find(|cover| cover.upper) {
        Some(cover) => Some(make_home(&state.session(&plan.session), cover).doing("make the home layer")?),
        None => None,
    };
    Ok(Layout {
        rootfs: if own.is_some() { PathBuf::from(rootfs_name) } else { rootfs },
        masks,
        home,
        no_file,
        no_directory,
        state_dir: state.path().to_owned(),
        hook: hook_program(),
        masked_directories,
        files,
    })
}

/// What is seen instead of a masked file.
const NO_FILE: &str = "no-file";
/// What is seen instead of a masked directory.
const NO_DIRECTORY: &str = "no-directory";

/// Makes what is seen instead of what is masked, once: an empty file and an empty directory, both of mode 0000.
pub fn stand_ins(base: &Path) -> Result<(PathBuf, PathBuf), Failure> {
    let what = "make the stand-in of masks";
    private_dir(base).doing(format!("make {}", base.display()))?;
    let (no_file, no_directory) = (base.join(NO_FILE), base.join(NO_DIRECTORY));
    once(&no_directory, |at| fs::DirBuilder::new().mode(0o000).create(at)).doing(what)?;
    once(&no_file, |at| fs::OpenOptions::new().write(true).create_new(true).mode(0o000).open(at).map(drop))
        .doing(what)?;
    Ok((no_file, no_directory))
}

/// The directories of the worktree entries that could be read as such.
fn entries(repository: &Repository) -> impl Iterator<Item = PathBuf> {
    let worktrees = repository.common_dir.join("worktrees");
    let readable = repository.entries.iter().filter(|entry| entry.worktree.is_some());
    readable.map(move |entry| worktrees.join(&entry.id))
}

/// The hook's program, beside this one.
fn hook_program() -> Option<PathBuf> {
    let beside = std::env::current_exe().ok()?.with_file_name("codeoid-hook");
    beside.is_file().then_some(beside)
}

/// Makes the state directory, if need be.
pub fn make_state(state: &StateDir) -> Result<(), Failure> {
    let path = state.path();
    private_dir(path)
        .doing(format!("use the state directory {}", path.display()))
        .map_err(|failure| failure.hint("set XDG_STATE_HOME to a directory of yours that you can write"))
}

/// Makes a directory that only the caller can enter, with its parents.
pub fn private_dir(path: &Path) -> io::Result<()> {
    match fs::DirBuilder::new().mode(0o700).create(path) {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            let meta = fs::symlink_metadata(path)?;
            use std::os::unix::fs::MetadataExt;
            if !meta.is_dir() {
                return Err(io::Error::other("it is not a directory"));
            }
            if meta.uid() != nix::unistd::geteuid().as_raw() {
                return Err(io::Error::other("it belongs to somebody else"));
            }
            if meta.mode() & 0o077 != 0 {
                fs::set_permissions(path, fs::Permissions::from_mode(0o700))?;
            }
            Ok(())
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            // Others may be making the same; then it is judged as one that was there.
            let parent = path.parent().ok_or(error)?;
            fs::DirBuilder::new().recursive(true).mode(0o700).create(parent)?;
            match fs::DirBuilder::new().mode(0o700).create(path) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => private_dir(path),
                // Once more the same answer although the parent is there, as in /proc: nothing can be made here.
                other => other,
            }
        }
        Err(error) => Err(error),
    }
}

/// Makes something at `path` at most once, whole or not at all: under another name, then renamed.
fn once(path: &Path, make: impl FnOnce(&Path) -> io::Result<()>) -> io::Result<()> {
    if fs::symlink_metadata(path).is_ok() {
        return Ok(());
    }
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or("layer");
    let draft = path.with_file_name(format!(".{name}.{}", std::process::id()));
    remove(&draft)?;
    make(&draft)?;
    match fs::rename(&draft, path) {
        Ok(()) => Ok(()),
        // Somebody else has just made the same.
        Err(_) if fs::symlink_metadata(path).is_ok() => remove(&draft),
        Err(error) => Err(error),
    }
}

fn remove(path: &Path) -> io::Result<()> {
    match fs::symlink_metadata(path) {
        Ok(meta) if meta.is_dir() => fs::remove_dir_all(path),
        Ok(_) => fs::remove_file(path),
        Err(_) => Ok(()),
    }
}

fn skeleton_name(entries: &[(PathBuf, Node)]) -> String {
    let text: String = entries.iter().map(|(path, node)| format!("{}\0{node:?}\0", path.display())).collect();
    codeoid_spec::id::hex8(&[text.as_bytes()]) + &codeoid_spec::id::hex8(&[b"3", text.as_bytes()])
}

fn make_skeleton(at: &Path, entries: &[(PathBuf, Node)]) -> io::Result<()> {
    fs::create_dir(at)?;
    fs::set_permissions(at, fs::Permissions::from_mode(0o755))?;
    for (path, node) in entries {
        let place = at.join(path.strip_prefix("/").unwrap_or(path));
        match node {
            Node::Directory { mode } => {
                fs::create_dir(&place)?;
                fs::set_permissions(&place, fs::Permissions::from_mode(*mode))?;
            }
            Node::File => drop(fs::File::create_new(&place)?),
            Node::Link(target) => symlink(target, &place)?,
            Node::Other => {}
        }
    }
    Ok(())
}

fn make_mask(at: &Path, cover: &Cover) -> io::Result<()> {
    fs::create_dir(at)?;
    let mut whiteouts = Whiteouts::default();
    for (path, entry) in &cover.entries {
        let place = at.join(path);
        match entry {
            codeoid_spec::plan::Entry::Directory { .. } => fs::create_dir(&place)?,
            codeoid_spec::plan::Entry::Whiteout => whiteouts.make(place)?,
        }
    }
    // Last and innermost first: a directory that its owner may not write could not be filled.
    for (path, entry) in cover.entries.iter().rev() {
        if let codeoid_spec::plan::Entry::Directory { mode } = entry {
            fs::set_permissions(at.join(path), fs::Permissions::from_mode(*mode))?;
        }
    }
    fs::set_permissions(at, fs::Permissions::from_mode(cover.mode))
}

/// Makes whiteouts: overlayfs's mark for "not here", a character device 0:0, which an ordinary user may make too
/// (mknod(2), Linux 5.8). All of a layer are one inode under many names, as overlayfs does it itself: there are
/// hundreds, and a disk takes its time for an inode.
#[derive(Debug, Default)]
pub struct Whiteouts {
    first: Option<PathBuf>,
}

impl Whiteouts {
    /// Makes one at `place`.
    pub fn make(&mut self, place: PathBuf) -> io::Result<()> {
        // A file system may allow no links, or no more of them.
        if self.first.as_ref().is_some_and(|first| fs::hard_link(first, &place).is_ok()) {
            return Ok(());
        }
        mknod(&place, SFlag::S_IFCHR, Mode::empty(), 0)?;
        self.first = Some(place);
        Ok(())
    }
}

fn make_home(session: &Path, cover: &Cover) -> io::Result<HomeLayer> {
    let base = session.join("home");
    private_dir(&base)?;
    let layer = HomeLayer { upper: base.join("upper"), work: base.join("work"), merged: base.join("merged") };
    for path in [&layer.upper, &layer.work, &layer.merged] {
        match fs::create_dir(path) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => continue,
            Err(error) => return Err(error),
        }
        if *path == layer.upper {
            // The top layer's attributes are the merged directory's.
            fs::set_permissions(path, fs::Permissions::from_mode(cover.mode))?;
        }
    }
    Ok(layer)
}

/// Takes away the mark by which the kernel refuses a layer that was mounted `volatile` before: it cannot know
/// whether the machine has crashed since. For us that is no reason to throw the layer away; it holds what any
/// program leaves that does not wait for the disk. At a turn's end it goes too, for other runtimes and older versions.
/// Returns whether no mark is left.
pub fn forget_volatile(work: &Path) -> bool {
    let gone = |result: io::Result<()>| match result {
        Ok(()) => true,
        Err(error) => error.kind() == io::ErrorKind::NotFound,
    };
    let mark = work.join("work/incompat/volatile");
    gone(fs::remove_file(mark.join("dirty"))) && gone(fs::remove_dir(mark))
}

/// Takes out of the session's home layer what is hidden now and was not at its last turn: the layer lies above
/// the whiteouts, and an earlier turn may have copied it up. It is kept aside in the session's directory.
/// Returns what was taken out. The caller holds the session's lock, and no turn of it is running.
pub fn take_out_hidden(session: &Path, cover: &Cover) -> io::Result<Vec<PathBuf>> {
    use std::ffi::OsString;
    use std::os::unix::ffi::{OsStrExt, OsStringExt};
    let known_path = session.join("home/hidden");
    let known: std::collections::HashSet<OsString> = match fs::read(&known_path) {
        Ok(text) => text.split(|&byte| byte == 0).map(|name| OsString::from_vec(name.to_vec())).collect(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => std::collections::HashSet::new(),
        Err(error) => return Err(error),
    };
    let hidden: Vec<&OsString> = cover
        .entries
        .iter()
        .filter(|(_, entry)| matches!(entry, codeoid_spec::plan::Entry::Whiteout))
        .map(|(name, _)| name)
        .collect();
    if hidden.len() == known.len().saturating_sub(1) && hidden.iter().all(|name| known.contains(*name)) {
        return Ok(Vec::new());
    }
    let mut taken = Vec::new();
    for name in hidden.iter().filter(|name| !known.contains(**name)) {
        let from = session.join("home/upper").join(name);
        if fs::symlink_metadata(&from).is_err() {
            continue;
        }
        let aside = session.join("home/aside");
        private_dir(&aside)?;
        let to = (0..).map(|n: u32| {
            aside.join(format!("{}.{n}", Path::new(name).file_name().unwrap_or_default().display()))
        });
        let to = to.into_iter().find(|to| fs::symlink_metadata(to).is_err()).unwrap_or(aside);
        fs::rename(&from, to)?;
        taken.push(cover.root.join(name));
    }
    let mut text = Vec::new();
    for name in hidden {
        text.extend_from_slice(name.as_bytes());
        text.push(0);
    }
    let draft = session.join("home/.hidden");
    fs::write(&draft, text)?;
    fs::rename(draft, known_path)?;
    Ok(taken)
}

/// Copies a session's home layer for a fork, with the permissions, times and links of what is in it. The two
/// are independent from then on.
pub fn copy_home(from: &Path, to: &Path) -> Result<(), Failure> {
    let source = from.join("home/upper");
    if fs::symlink_metadata(&source).is_err() {
        return Ok(());
    }
    let what = "copy the home layer";
    private_dir(&to.join("home")).doing(what)?;
    for name in ["work", "merged"] {
        fs::DirBuilder::new().mode(0o700).recursive(true).create(to.join("home").join(name)).doing(what)?;
    }
    copy_tree(&source, &to.join("home/upper")).doing(what)
}

fn copy_tree(from: &Path, to: &Path) -> io::Result<()> {
    use std::os::unix::fs::{FileTypeExt, MetadataExt};
    let meta = fs::symlink_metadata(from)?;
    let kind = meta.file_type();
    if kind.is_dir() {
        fs::create_dir(to)?;
        for entry in fs::read_dir(from)? {
            let entry = entry?;
            copy_tree(&entry.path(), &to.join(entry.file_name()))?;
        }
        copy_attributes(from, to)?;
        fs::set_permissions(to, meta.permissions())?;
    } else if kind.is_symlink() {
        symlink(fs::read_link(from)?, to)?;
    } else if kind.is_file() {
        fs::copy(from, to)?;
        let times = fs::FileTimes::new().set_modified(meta.modified()?).set_accessed(meta.accessed()?);
        fs::File::options().write(true).open(to).and_then(|file| file.set_times(times)).or_else(|error| {
            // A file that its owner may not write keeps its content and loses its times.
            if error.kind() == io::ErrorKind::PermissionDenied { Ok(()) } else { Err(error) }
        })?;
    } else if kind.is_char_device() && meta.rdev() == 0 {
        // A whiteout: what the session deleted stays deleted in the fork.
        mknod(to, SFlag::S_IFCHR, Mode::empty(), 0)?;
    }
    // Sockets and FIFOs of ended programs are of no use to anybody.
    Ok(())
}

/// overlayfs's own attributes of a directory: without `opaque`, what was deleted with a directory that was
/// made anew would come back (kernel, overlayfs.rst, "whiteouts and opaque directories").
fn copy_attributes(from: &Path, to: &Path) -> io::Result<()> {
    for name in [c"trusted.overlay.opaque", c"user.overlay.opaque"] {
        crate::sys::xattr::copy(from, to, name)?;
    }
    Ok(())
}

/// Removes a session's directory. overlayfs leaves a directory that nobody may enter in its work directory, and
/// a turn can leave more of the kind; links are not followed.
pub fn remove_session(dir: &Path) -> io::Result<()> {
    unlock(dir)?;
    fs::remove_dir_all(dir)
}

/// Gives the owner back the right to enter and change every directory of a tree.
fn unlock(dir: &Path) -> io::Result<()> {
    fs::set_permissions(dir, fs::Permissions::from_mode(0o700))?;
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            unlock(&entry.path())?;
        }
    }
    Ok(())
}
