//! Starts the sandbox with bubblewrap: the bundle's `config.json`, translated to arguments. bubblewrap makes
//! the namespaces and mounts; process 1 is our own init, as with libcontainer, so that signals, terminals and
//! exit codes are the same.
//!
//! Order of the arguments: namespaces and process options, the root directory's skeleton, the mounts in the
//! bundle's order, masks of `/proc` (as root), the filter, the command.

use std::collections::HashMap;
use std::ffi::CString;
use std::io::Write;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use codeoid_spec::bundle::{self, Fleeting};
use nix::errno::Errno;
use nix::fcntl::{OFlag, open};
use nix::sys::stat::Mode;
use nix::unistd::Pid;
use oci_spec::runtime::{LinuxNamespaceType, Mount, Spec};

use super::engine::{self, Engine};
use super::message::Message;
use super::stage::Overlay;
use crate::sys::{self, Context, mount as m, process};
use crate::turn::stop;

/// What bubblewrap's arguments cannot say.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A mount option.
    #[error("mount on {}: bubblewrap has no word for option {option:?}", .target.display())]
    Option {
        /// Where.
        target: PathBuf,
        /// The option.
        option: String,
    },
    /// A file system type.
    #[error("mount on {}: bubblewrap has no word for file system type {kind:?}", .target.display())]
    Kind {
        /// Where.
        target: PathBuf,
        /// The type.
        kind: String,
    },
    /// A path with a NUL or that is not UTF-8.
    #[error("path {} cannot be an argument", .0.display())]
    Path(PathBuf),
    /// The bundle's lists of paths.
    #[error(transparent)]
    Bundle(#[from] bundle::Error),
}

/// One entry of the root directory's skeleton.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Entry {
    /// A directory with its permission bits.
    Directory(u32),
    /// A symbolic link.
    Link(PathBuf),
}

/// The arguments for a bundle: everything before the command. A pure function; `overlays` says where the
/// engine has mounted the overlay for a target.
pub fn arguments(
    spec: &Spec,
    skeleton: &[(PathBuf, Entry)],
    overlays: &HashMap<PathBuf, PathBuf>,
) -> Result<Vec<String>, Error> {
    let mut args: Vec<String> = Vec::new();
    let mut say = |words: &[&str]| args.extend(words.iter().map(|&word| word.to_owned()));
    let kinds: Vec<LinuxNamespaceType> = spec
        .linux()
        .as_ref()
        .and_then(|linux| linux.namespaces().as_ref())
        .map(|list| list.iter().map(oci_spec::runtime::LinuxNamespace::typ).collect())
        .unwrap_or_default();
    for (kind, option) in [
        (LinuxNamespaceType::Pid, "--unshare-pid"),
        (LinuxNamespaceType::Ipc, "--unshare-ipc"),
        (LinuxNamespaceType::Uts, "--unshare-uts"),
        (LinuxNamespaceType::Cgroup, "--unshare-cgroup-try"),
    ] {
        if kinds.contains(&kind) {
            say(&[option]);
        }
    }
    // The engine has made the user and network namespaces; bubblewrap's own user namespace is one more.
    if kinds.contains(&LinuxNamespaceType::User) {
        let (uid, gid) = bundle::ids(spec).unwrap_or((0, 0));
        say(&["--unshare-user", "--uid", &uid.to_string(), "--gid", &gid.to_string()]);
    }
    say(&["--as-pid-1", "--die-with-parent", "--cap-drop", "ALL"]);
    for (path, entry) in skeleton {
        let path = word(path)?;
        match entry {
            Entry::Directory(mode) => say(&["--perms", &format!("{mode:04o}"), "--dir", path]),
            Entry::Link(target) => say(&["--symlink", word(target)?, path]),
        }
    }
    // Bubblewrap would end, or make the mount point, in the host's own directory.
    let fleeting = Fleeting::of(spec)?;
    for mount in spec.mounts().as_deref().unwrap_or_default() {
        if fleeting.depends_on(mount).is_none_or(|path| path.symlink_metadata().is_ok()) {
            translate(mount, overlays, &mut say)?;
        }
    }
    let linux = spec.linux().as_ref();
    for path in linux.and_then(|linux| linux.readonly_paths().as_deref()).unwrap_or_default() {
        say(&["--ro-bind-try", path, path]);
    }
    for path in linux.and_then(|linux| linux.masked_paths().as_deref()).unwrap_or_default() {
        let path = Path::new(path);
        if path.is_dir() {
            say(&["--tmpfs", word(path)?, "--remount-ro", word(path)?]);
        } else if path.exists() {
            say(&["--ro-bind", "/dev/null", word(path)?]);
        }
    }
    say(&["--remount-ro", "/"]);
    if let Some(process) = spec.process() {
        say(&["--chdir", word(process.cwd())?]);
    }
    Ok(args)
}

fn translate(
    mount: &Mount,
    overlays: &HashMap<PathBuf, PathBuf>,
    say: &mut impl FnMut(&[&str]),
) -> Result<(), Error> {
    let target = mount.destination();
    let kind = mount.typ().as_deref().unwrap_or("none");
    let options: Vec<&str> = mount.options().iter().flatten().map(String::as_str).collect();
    let unknown = |option: &str| Error::Option { target: target.clone(), option: option.to_owned() };
    let place = word(target)?;
    match kind {
        "bind" => {
            let mut read_only = false;
            for option in options {
                match option {
                    "bind" | "rbind" => {}
                    "ro" | "rro" => read_only = true,
                    other => return Err(unknown(other)),
                }
            }
            let source = mount.source().as_deref().unwrap_or(target);
            say(&[if read_only { "--ro-bind" } else { "--bind" }, word(source)?, place]);
        }
        "tmpfs" if target == Path::new("/dev") => say(&["--dev", "/dev"]),
        "tmpfs" => {
            // bubblewrap's are nosuid and nodev.
            let mode = options.iter().find_map(|option| option.strip_prefix("mode="));
            if let Some(mode) = mode {
                say(&["--perms", &format!("{mode:0>4}")]);
            }
            for option in options {
                if !option.starts_with("mode=") && !["nosuid", "nodev"].contains(&option) {
                    return Err(unknown(option));
                }
            }
            say(&["--tmpfs", place]);
        }
        // With `--dev`, as is /dev/shm's mount point.
        "devpts" if target == Path::new("/dev/pts") => {}
        "proc" => say(&["--proc", place]),
        "overlay" => {
            let merged = overlays
                .get(target)
                .ok_or_else(|| Error::Kind { target: target.clone(), kind: kind.to_owned() })?;
            say(&["--bind", word(merged)?, place]);
        }
        other => return Err(Error::Kind { target: target.clone(), kind: other.to_owned() }),
    }
    Ok(())
}

fn word(path: &Path) -> Result<&str, Error> {
    path.to_str().filter(|text| !text.contains('\0')).ok_or_else(|| Error::Path(path.to_owned()))
}

/// Replaces the engine by bubblewrap; returns only on failure.
pub fn start(engine: &Engine<'_>, program: &Path) -> Result<Pid, engine::Error> {
    let rootfs = engine.spec.root().as_ref().map_or_else(|| Path::new("rootfs"), |root| root.path());
    let mut overlays = HashMap::new();
    for mount in engine.spec.mounts().as_deref().unwrap_or_default() {
        if mount.typ().as_deref() == Some("overlay") {
            let number = u32::try_from(overlays.len()).unwrap_or(u32::MAX) + 1;
            if let Some(overlay) = Overlay::of(mount)? {
                let merged = engine.overlay(&overlay, number).map_err(engine::Error::Mounts)?;
                overlays.insert(mount.destination().clone(), merged);
            }
        }
    }
    let failed = engine::Error::Bubblewrap;
    let skeleton = read_skeleton(&engine.bundle.join(rootfs)).map_err(failed)?;
    let fleeting = Fleeting::of(engine.spec).map_err(Error::from)?;
    let mut spec = engine.spec.clone();
    if let Some(mounts) = spec.mounts_mut() {
        // Bubblewrap's binds are recursive, so a mask in these namespaces is in the sandbox too; and here one whose
        // path is gone can be left out. Not a mask around something that is still to be bound: then the path is there.
        let mut needed: Vec<PathBuf> = mounts.iter().filter_map(|mount| mount.source().clone()).collect();
        needed.push(engine.stage.clone());
        needed.extend(overlays.values().cloned());
        let here = |mount: &Mount| {
            let around =
                |path: &PathBuf| path != mount.destination() && path.starts_with(mount.destination());
            fleeting.is_mask(mount) && !needed.iter().any(around)
        };
        for mask in mounts.iter().filter(|mount| here(mount)) {
            mask_here(mask).map_err(failed)?;
        }
        mounts.retain(|mount| !here(mount));
    }
    let filter =
        engine.filter.as_ref().map(|bytes| memory_file("seccomp", bytes)).transpose().map_err(failed)?;
    let init = memory_file(
        "init",
        &serde_json::to_vec(&engine.init).map_err(|error| engine::Error::Config(Box::new(error)))?,
    )
    .map_err(failed)?;
    // Executed by its descriptor: so it needs no name in the sandbox.
    let program_of_init = open("/proc/self/exe", OFlag::O_PATH | OFlag::O_CLOEXEC, Mode::empty())
        .on("open", "/proc/self/exe")
        .map_err(failed)?;
    engine.wait_for_go()?;
    // As late as can be: bubblewrap ends where a path has gone since.
    let mut args = arguments(&spec, &skeleton, &overlays)?;
    // Init takes the bounding set away, which needs this capability, and then this too.
    args.extend(["--cap-add".to_owned(), "CAP_SETPCAP".to_owned()]);
    if let Some(filter) = &filter {
        args.extend(["--seccomp".to_owned(), filter.as_raw_fd().to_string()]);
    }
    let arguments = memory_file("arguments", &nul_separated(&args)).map_err(failed)?;
    stop::at("arguments");
    let kept = [&engine.status, &engine.alive, &arguments, &init, &program_of_init];
    for fd in kept.into_iter().chain(&filter).chain(&engine.stderr) {
        process::keep_on_exec(fd.as_raw_fd()).on("fcntl", "F_SETFD").map_err(failed)?;
    }
    if let Some(said) = &engine.said {
        nix::unistd::dup2_stderr(said).on("dup2", "stderr").map_err(failed)?;
    }
    engine.send(&Message::Joinable);
    let argv = [
        "bwrap".to_owned(),
        "--args".to_owned(),
        arguments.as_raw_fd().to_string(),
        "--".to_owned(),
        m::fd_path(program_of_init.as_fd()),
        super::init::REEXEC.to_owned(),
        init.as_raw_fd().to_string(),
    ];
    let strings = argv.map(|text| CString::new(text).expect("no NUL in these words"));
    let pointers: Vec<_> = strings.iter().map(|text| text.as_ptr()).chain([std::ptr::null()]).collect();
    let path = CString::new(program.as_os_str().as_bytes()).expect("a path that was found has no NUL");
    let errno = process::execve(&path, &pointers, &[c"PATH=/usr/bin:/bin".as_ptr(), std::ptr::null()]);
    Err(failed(sys::Error::new("execve", program.display(), errno)))
}

/// Makes a mask in the engine's own mount namespace.
fn mask_here(mask: &Mount) -> sys::Result<()> {
    let Some(source) = mask.source() else { return Ok(()) };
    let target = mask.destination();
    let to = match m::open_path(None, target) {
        Err(error) if error.is_gone() => return Ok(()),
        other => other?,
    };
    let from = m::open_path(None, source)?;
    match m::bind_read_only(from.as_fd(), to.as_fd(), target) {
        // Removed since: nothing can be mounted on it any more.
        Err(error) if error.errno == Errno::ENOENT => Ok(()),
        other => other,
    }
}

/// The arguments for a bundle that is written down, one a line. An overlay stands there as its lower
/// directory: what the engine mounts for a turn, whoever runs these arguments has to mount.
pub fn written(spec: &Spec, bundle: &Path) -> Result<String, Error> {
    let rootfs = spec.root().as_ref().map_or_else(|| Path::new("rootfs"), |root| root.path());
    let mut overlays = HashMap::new();
    for mount in spec.mounts().as_deref().unwrap_or_default() {
        if mount.typ().as_deref() == Some("overlay") {
            overlays.insert(mount.destination().clone(), mount.destination().clone());
        }
    }
    let skeleton = read_skeleton(&bundle.join(rootfs)).map_err(|_| Error::Path(bundle.join(rootfs)))?;
    let mut lines = arguments(spec, &skeleton, &overlays)?;
    lines.push("--".to_owned());
    lines.extend(spec.process().iter().flat_map(|process| process.args().iter().flatten().cloned()));
    Ok(lines.join("\n") + "\n")
}

fn nul_separated(args: &[String]) -> Vec<u8> {
    args.iter().flat_map(|word| word.bytes().chain([0])).collect()
}

/// A file in memory alone.
pub fn memory_file(name: &str, bytes: &[u8]) -> sys::Result<OwnedFd> {
    let fd = nix::sys::memfd::memfd_create(name, nix::sys::memfd::MFdFlags::MFD_CLOEXEC)
        .on("memfd_create", name)?;
    let mut file = std::fs::File::from(fd);
    file.write_all(bytes).on("write", name)?;
    std::io::Seek::rewind(&mut file).on("lseek", name)?;
    Ok(file.into())
}

/// The root directory's own entries, from the bundle.
fn read_skeleton(rootfs: &Path) -> sys::Result<Vec<(PathBuf, Entry)>> {
    let mut found = Vec::new();
    let mut left = vec![PathBuf::from("/")];
    while let Some(dir) = left.pop() {
        let host = rootfs.join(dir.strip_prefix("/").unwrap_or(&dir));
        for entry in std::fs::read_dir(&host).on("open", host.display())? {
            let entry = entry.on("readdir", host.display())?;
            let meta = entry.metadata().on("lstat", entry.path().display())?;
            let path = dir.join(entry.file_name());
            if meta.is_symlink() {
                let target = std::fs::read_link(entry.path()).on("readlink", entry.path().display())?;
                found.push((path, Entry::Link(target)));
            } else if meta.is_dir() {
                found.push((path.clone(), Entry::Directory(meta.permissions().mode() & 0o7777)));
                left.push(path);
            }
        }
    }
    found.sort_by(|(one, _), (other, _)| one.cmp(other));
    Ok(found)
}
