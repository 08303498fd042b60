//! Builds the sandbox's mount tree from the bundle's `mounts`, before libcontainer starts.
//!
//! libcontainer mounts path by path, at about 66 system calls each, and ignores options it does not know.
//! Here each mount costs about five calls on descriptors, every option is either honoured or refused, and
//! neither source nor target may contain a symbolic link. What needs the new namespaces (`/proc`) is left
//! over for libcontainer.
//!
//! The attacker here is the previous turn: it may have left any names in the workspace and the home layer.

use std::cell::RefCell;
use std::collections::HashSet;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Component, Path, PathBuf};

use codeoid_spec::bundle::Fleeting;
use nix::errno::Errno;
use nix::fcntl::{OFlag, OpenHow, ResolveFlag, openat2};
use nix::mount::MsFlags;
use nix::sys::stat::{FileStat, Mode, fstat, mkdirat};
use oci_spec::runtime::Mount;

use crate::sys::{self, Context, mount as m};

/// Why the mount tree could not be built.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A system call failed.
    #[error("mount on {}", .target.display())]
    Mount {
        /// Where.
        target: PathBuf,
        /// What failed.
        source: sys::Error,
    },
    /// An option that this executor does not know. Ignoring it would be a silent weakening.
    #[error("mount on {}: option {option:?} of a {kind} mount is not supported", .target.display())]
    Option {
        /// Where.
        target: PathBuf,
        /// The option.
        option: String,
        /// The file system type.
        kind: String,
    },
    /// A file system type that a bundle of a turn never has.
    #[error("mount on {}: file system type {kind:?} is not supported", .target.display())]
    Kind {
        /// Where.
        target: PathBuf,
        /// The type.
        kind: String,
    },
    /// A mount without a source that needs one.
    #[error("mount on {}: no source", .target.display())]
    NoSource {
        /// Where.
        target: PathBuf,
    },
    /// A target that is not an absolute path without `..`.
    #[error("mount target {} is not an absolute, normal path", .0.display())]
    Target(PathBuf),
}

type Result<T> = std::result::Result<T, Error>;

/// The parsed options of one mount (runtime-spec config.md §Mounts, "Linux mount options").
#[derive(Debug, Default, PartialEq, Eq)]
struct Options<'a> {
    bind: bool,
    recursive: bool,
    attributes: m::Attributes,
    data: Vec<&'a str>,
}

/// Where the pieces of a staged tree lie.
pub struct Stage {
    /// A private tmpfs.
    pub dir: PathBuf,
    /// The root of the tree, attached below `dir`.
    root: OwnedFd,
    /// What is left out where it is gone.
    fleeting: Fleeting,
    /// The file systems of this sandbox alone, by device: only there is anything made.
    own: RefCell<HashSet<u64>>,
}

impl Stage {
    /// Attaches the bundle's root directory at `dir/root`, `dir` being a private tmpfs.
    pub fn new(dir: &Path, rootfs: &Path, fleeting: Fleeting) -> Result<Self> {
        let at = dir.join("root");
        let step = || -> sys::Result<OwnedFd> {
            let source = m::open_path(None, rootfs)?;
            let target = m::open_path(None, &at)?;
            m::bind(source.as_fd(), target.as_fd(), false, m::Attributes::NONE, rootfs)?;
            m::open_path(None, &at)
        };
        let root = step().map_err(|source| Error::Mount { target: PathBuf::from("/"), source })?;
        Ok(Self { dir: dir.to_owned(), root, fleeting, own: RefCell::default() })
    }

    /// Where the root of the staged tree is.
    pub fn root(&self) -> PathBuf {
        self.dir.join("root")
    }

    /// Makes the root directory's own mount read-only (`root.readonly`); mounts below keep their own state.
    pub fn seal(&self) -> Result<()> {
        let read_only = m::Attributes { set: libc::MOUNT_ATTR_RDONLY, clear: 0, recursive: false };
        m::set_attributes(self.root.as_fd(), read_only, Path::new("/"))
            .map_err(|source| Error::Mount { target: PathBuf::from("/"), source })
    }

    /// Performs one mount of the bundle. `Ok(false)`: it needs the new namespaces; libcontainer does it.
    /// `home` gives, for an overlay with an upper layer, the mount of it that all turns of a session share.
    pub fn mount(
        &self,
        mount: &Mount,
        home: &mut dyn FnMut(&Overlay<'_>) -> sys::Result<PathBuf>,
    ) -> Result<bool> {
        let target = mount.destination();
        let normal = target.is_absolute()
            && target.components().all(|part| matches!(part, Component::RootDir | Component::Normal(_)));
        if !normal {
            return Err(Error::Target(target.clone()));
        }
        let kind = mount.typ().as_deref().unwrap_or("none");
        let options = parse(mount, kind)?;
        let failed = |source| Error::Mount { target: target.clone(), source };
        if options.bind {
            let (mut fleeting, mut may_be_gone) = (false, false);
            if let Some(path) = self.fleeting.depends_on(mount) {
                fleeting = true;
                // A mask hides what the sandbox would see; everything else is looked for on the host.
                may_be_gone = mount.source().as_deref() == Some(path);
                let there = m::open_path(Some(self.root.as_fd()), path);
                if !may_be_gone && there.is_err_and(|error| error.is_gone()) {
                    return Ok(true);
                }
            }
            let source = mount.source().as_deref().ok_or(Error::NoSource { target: target.clone() })?;
            let from = match m::open_path(None, source) {
                Err(error) if may_be_gone && error.is_gone() => return Ok(true),
                other => other.map_err(failed)?,
            };
            let pin = self.fleeting.is_pin(mount);
            return match self.bind(from.as_fd(), source, target, &options, pin) {
                // It has gone since.
                Err(error) if fleeting && error.errno == Errno::ENOENT => Ok(true),
                other => other.map_err(failed).map(|()| true),
            };
        }
        match kind {
            "proc" | "mqueue" | "sysfs" => Ok(false),
            "tmpfs" | "devpts" => {
                let at = self.target(target, true).map_err(failed)?;
                let flags = to_flags(options.attributes.set);
                m::mount_new(kind, kind, at.as_fd(), flags, &options.data.join(","), target)
                    .map_err(failed)?;
                self.may_make_in(target).map_err(failed)?;
                Ok(true)
            }
            "overlay" => {
                let overlay = Overlay::parse(&options.data).ok_or_else(|| Error::Option {
                    target: target.clone(),
                    option: options.data.join(","),
                    kind: kind.to_owned(),
                })?;
                let merged = home(&overlay).map_err(failed)?;
                let bind = Options { recursive: false, ..options };
                let from = m::open_path(None, &merged).map_err(failed)?;
                self.bind(from.as_fd(), &merged, target, &bind, false).map_err(failed)?;
                self.may_make_in(target).map_err(failed)?;
                Ok(true)
            }
            other => Err(Error::Kind { target: target.clone(), kind: other.to_owned() }),
        }
    }

    fn bind(
        &self,
        from: BorrowedFd<'_>,
        source: &Path,
        target: &Path,
        options: &Options<'_>,
        pin: bool,
    ) -> sys::Result<()> {
        let is_dir = stat(from, source)?.st_mode & libc::S_IFMT == libc::S_IFDIR;
        let to =
            if pin { m::open_path(Some(self.root.as_fd()), target)? } else { self.target(target, is_dir)? };
        m::bind(from, to.as_fd(), options.recursive, options.attributes, source)
    }

    /// What is mounted at `target` is the sandbox's alone.
    fn may_make_in(&self, target: &Path) -> sys::Result<()> {
        let mounted = m::open_path(Some(self.root.as_fd()), target)?;
        self.own.borrow_mut().insert(stat(mounted.as_fd(), target)?.st_dev);
        Ok(())
    }

    /// Opens a mount target in the staged tree. What is missing is made in a file system of the sandbox's own, and
    /// nowhere else (ENOENT): a directory of the host that is to be written would keep it.
    fn target(&self, path: &Path, directory: bool) -> sys::Result<OwnedFd> {
        match m::open_path(Some(self.root.as_fd()), path) {
            Err(error) if error.errno == Errno::ENOENT => {}
            other => return other,
        }
        let mut at = m::open_path(Some(self.root.as_fd()), Path::new("."))?;
        let parts: Vec<_> = m::relative(path).iter().collect();
        for (index, part) in parts.iter().enumerate() {
            let how = OpenHow::new()
                .flags(OFlag::O_PATH | OFlag::O_CLOEXEC)
                .resolve(ResolveFlag::RESOLVE_NO_SYMLINKS | ResolveFlag::RESOLVE_BENEATH);
            let next = match openat2(at.as_fd(), *part, how) {
                Err(Errno::ENOENT) => {
                    let device = stat(at.as_fd(), path)?.st_dev;
                    if !self.own.borrow().contains(&device) {
                        return Err(sys::Error::new("openat2", path.display(), Errno::ENOENT));
                    }
                    if index + 1 == parts.len() && !directory {
                        let flags = OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_CLOEXEC | OFlag::O_NOFOLLOW;
                        nix::fcntl::openat(at.as_fd(), *part, flags, Mode::from_bits_truncate(0o644))
                            .on("openat", path.display())?;
                    } else {
                        mkdirat(at.as_fd(), *part, Mode::from_bits_truncate(0o755))
                            .on("mkdirat", path.display())?;
                    }
                    openat2(at.as_fd(), *part, how)
                }
                other => other,
            };
            at = next.on("openat2", path.display())?;
        }
        Ok(at)
    }
}

fn stat(fd: BorrowedFd<'_>, what: &Path) -> sys::Result<FileStat> {
    fstat(fd).on("fstat", what.display())
}

/// The layers of an overlay mount, as its options name them.
#[derive(Debug, PartialEq, Eq)]
pub struct Overlay<'a> {
    /// Lower layers, topmost first.
    pub lower: Vec<PathBuf>,
    /// Upper layer and work directory; absent: read-only.
    pub upper: Option<(PathBuf, PathBuf)>,
    /// Options that are passed on as they are (`userxattr`…).
    pub rest: Vec<&'a str>,
}

impl<'a> Overlay<'a> {
    /// The layers that a mount names.
    pub fn of(mount: &'a Mount) -> Result<Option<Self>> {
        Ok(Self::parse(&parse(mount, "overlay")?.data))
    }

    fn parse(data: &[&'a str]) -> Option<Self> {
        let (mut lower, mut upper, mut work, mut rest) = (Vec::new(), None, None, Vec::new());
        for option in data {
            match option.split_once('=') {
                Some(("lowerdir", value)) => lower = split_layers(value),
                Some(("upperdir", value)) => upper = Some(PathBuf::from(unescape(value))),
                Some(("workdir", value)) => work = Some(PathBuf::from(unescape(value))),
                _ => rest.push(*option),
            }
        }
        let upper = match (upper, work) {
            (Some(upper), Some(work)) => Some((upper, work)),
            (None, None) => None,
            _ => return None,
        };
        (!lower.is_empty()).then_some(Self { lower, upper, rest })
    }
}

/// Splits `lowerdir` at its unescaped colons (overlayfs: `\:` is a colon in a name).
fn split_layers(value: &str) -> Vec<PathBuf> {
    let mut layers = vec![String::new()];
    let mut chars = value.chars();
    while let Some(c) = chars.next() {
        let last = layers.last_mut().expect("never empty");
        match c {
            '\\' => last.extend(chars.next()),
            ':' => layers.push(String::new()),
            c => last.push(c),
        }
    }
    layers.into_iter().map(PathBuf::from).collect()
}

fn unescape(value: &str) -> String {
    let mut text = String::with_capacity(value.len());
    let mut chars = value.chars();
    while let Some(c) = chars.next() {
        if c == '\\' { text.extend(chars.next()) } else { text.push(c) }
    }
    text
}

fn parse<'a>(mount: &'a Mount, kind: &str) -> Result<Options<'a>> {
    let mut parsed = Options { bind: kind == "bind", ..Options::default() };
    for option in mount.options().as_deref().unwrap_or_default() {
        let attributes = &mut parsed.attributes;
        match option.as_str() {
            "bind" => parsed.bind = true,
            "rbind" => (parsed.bind, parsed.recursive) = (true, true),
            "ro" => attributes.set |= libc::MOUNT_ATTR_RDONLY,
            "rro" => {
                attributes.set |= libc::MOUNT_ATTR_RDONLY;
                attributes.recursive = true;
            }
            "nosuid" => attributes.set |= libc::MOUNT_ATTR_NOSUID,
            "nodev" => attributes.set |= libc::MOUNT_ATTR_NODEV,
            "noexec" => attributes.set |= libc::MOUNT_ATTR_NOEXEC,
            // The defaults, and what a private mount namespace is anyway.
            "rw" | "suid" | "dev" | "exec" | "relatime" | "private" | "rprivate" | "strictatime" => {}
            other if matches!(kind, "tmpfs" | "devpts" | "overlay") && !parsed.bind => {
                parsed.data.push(other)
            }
            // proc takes its options from libcontainer.
            _ if matches!(kind, "proc" | "mqueue" | "sysfs") => {}
            other => {
                return Err(Error::Option {
                    target: mount.destination().clone(),
                    option: other.to_owned(),
                    kind: kind.to_owned(),
                });
            }
        }
    }
    Ok(parsed)
}

fn to_flags(attributes: u64) -> MsFlags {
    let mut flags = MsFlags::empty();
    for (bit, flag) in [
        (libc::MOUNT_ATTR_RDONLY, MsFlags::MS_RDONLY),
        (libc::MOUNT_ATTR_NOSUID, MsFlags::MS_NOSUID),
        (libc::MOUNT_ATTR_NODEV, MsFlags::MS_NODEV),
        (libc::MOUNT_ATTR_NOEXEC, MsFlags::MS_NOEXEC),
    ] {
        flags.set(flag, attributes & bit != 0);
    }
    flags
}

#[cfg(test)]
mod tests {
    use super::*;
    use oci_spec::runtime::MountBuilder;

    fn mount(kind: &str, options: &[&str]) -> Mount {
        MountBuilder::default()
            .destination("/x")
            .typ(kind)
            .source("/y")
            .options(options.iter().map(|&o| o.to_owned()).collect::<Vec<_>>())
            .build()
            .unwrap()
    }

    #[test]
    fn an_unknown_option_is_refused_not_ignored() {
        for (kind, option) in [("bind", "nosymfollow"), ("bind", "sync"), ("none", "x"), ("bind", "rshared")]
        {
            let mount = mount(kind, &["bind", option]);
            assert!(matches!(parse(&mount, kind), Err(Error::Option { option: o, .. }) if o == option));
        }
    }

    #[test]
    fn recursive_read_only_is_recursive() {
        let mount = mount("bind", &["rbind", "rro"]);
        let options = parse(&mount, "bind").unwrap();
        assert!(options.bind && options.recursive);
        assert_eq!(options.attributes, m::Attributes::READ_ONLY);
    }

    #[test]
    fn overlay_layers_keep_colons_and_backslashes_in_names() {
        let data = [r"lowerdir=/a\:b:/c\\d", "upperdir=/u", "workdir=/w", "userxattr"];
        let overlay = Overlay::parse(&data).unwrap();
        assert_eq!(overlay.lower, [PathBuf::from("/a:b"), PathBuf::from(r"/c\d")]);
        assert_eq!(overlay.upper, Some((PathBuf::from("/u"), PathBuf::from("/w"))));
        assert_eq!(overlay.rest, ["userxattr"]);
        assert_eq!(
            Overlay::parse(&["lowerdir=/a", "upperdir=/u"]),
            None,
            "an upper without a work directory"
        );
    }
}
