//! Reads what this host offers into [`Host`].

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use codeoid_spec::host::{Host, HostTree, Mounted, Node, Tree};
use codeoid_spec::state::StateDir;
use nix::sys::stat::{Mode, umask};
use nix::sys::statfs::{
    FUSE_SUPER_MAGIC, FsType, MSDOS_SUPER_MAGIC, NFS_SUPER_MAGIC, OVERLAYFS_SUPER_MAGIC, statfs,
};
use nix::unistd::{Uid, getgid, getuid, isatty};

use crate::diagnostic::{Doing, Failure};
use crate::sys;

/// Reads this host. `runtime` is `--root`, if given.
pub fn host(runtime: Option<&Path>) -> Result<Host, Failure> {
    let uid = getuid();
    let mut env = Vec::new();
    let mut env_refused = Vec::new();
    for (name, value) in std::env::vars_os() {
        let printable = name.to_string_lossy().escape_debug().to_string();
        match (name.into_string(), value.into_string()) {
            (Ok(name), Ok(value)) => env.push((name, value)),
            _ => env_refused.push(printable),
        }
    }
    let variable = |name: &str| env.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str());
    let (home, other_home) = homes(uid, variable("HOME"));
    let terminal = [isatty(std::io::stdin()), isatty(std::io::stdout()), isatty(std::io::stderr())]
        .map(|answer| answer.unwrap_or(false));
    let previous = umask(Mode::empty());
    umask(previous);
    let state = StateDir::new(state_dir(variable("XDG_STATE_HOME"), home.as_deref())?);
    let runtime = runtime_dir(runtime, uid, variable("XDG_RUNTIME_DIR"), home.as_deref())?;
    Ok(Host {
        uid: uid.as_raw(),
        gid: getgid().as_raw(),
        umask: previous.bits(),
        writable_layers: holds_layers(state.path()),
        layers: layers(&runtime, uid),
        state,
        runtime,
        session_runtime: variable("XDG_RUNTIME_DIR")
            .map(Path::new)
            .filter(|path| path.is_absolute())
            .and_then(|path| std::fs::canonicalize(path).ok()),
        home,
        other_home,
        sockets: sockets(),
        top: top()?,
        mounts: mounts()?,
        resolver: resolver(),
        window: window(terminal),
        terminal,
        env,
        env_refused,
    })
}

/// The caller's home: `$HOME`, else what the user database says.
pub fn home() -> Option<PathBuf> {
    homes(getuid(), std::env::var("HOME").ok().as_deref()).0
}

/// The home that the caller names, and the one that the user database has if it is another.
fn homes(uid: Uid, named: Option<&str>) -> (Option<PathBuf>, Option<PathBuf>) {
    let directory = |path: PathBuf| {
        let real = std::fs::canonicalize(path).ok()?;
        (real.is_dir() && real != Path::new("/")).then_some(real)
    };
    let named = named.map(PathBuf::from).filter(|path| path.is_absolute()).and_then(directory);
    let listed = || listed_home(uid.as_raw()).and_then(directory);
    match named {
        Some(named) => {
            let other = listed().filter(|listed| *listed != named);
            (Some(named), other)
        }
        None => (listed(), None),
    }
}

/// The home in /etc/passwd (passwd(5)). Not getpwuid(3): it loads the name service's modules into this
/// process, asks their daemons, and may start threads; whom /etc/passwd does not list has `$HOME`.
fn listed_home(uid: u32) -> Option<PathBuf> {
    let text = std::fs::read("/etc/passwd").ok()?;
    let uid = uid.to_string();
    text.split(|&byte| byte == b'\n').find_map(|line| {
        let fields: Vec<&[u8]> = line.split(|&byte| byte == b':').collect();
        (fields.len() == 7 && fields[2] == uid.as_bytes())
            .then(|| PathBuf::from(OsString::from_vec(fields[5].to_vec())))
    })
}

/// `${XDG_STATE_HOME:-~/.local/state}/codeoid-shim`, with what exists of it resolved.
pub fn state_dir(state_home: Option<&str>, home: Option<&Path>) -> Result<PathBuf, Failure> {
    let base = match state_home.map(Path::new).filter(|path| path.is_absolute()) {
        Some(base) => base.to_owned(),
        None => home
            .map(|home| home.join(".local/state"))
            .ok_or_else(|| Failure::new("find the state directory", "no home directory").hint("set HOME"))?,
    };
    Ok(resolve_existing(&base.join("codeoid-shim")))
}

fn runtime_dir(
    asked: Option<&Path>,
    uid: Uid,
    runtime_dir: Option<&str>,
    home: Option<&Path>,
) -> Result<PathBuf, Failure> {
    let path = match (asked, runtime_dir.map(Path::new).filter(|path| path.is_absolute())) {
        (Some(asked), _) => std::path::absolute(asked).doing("resolve --root")?,
        (None, _) if uid.is_root() => PathBuf::from("/run/codeoid-shim"),
        (None, Some(dir)) => dir.join("codeoid-shim"),
        // Without a runtime directory (cron, su): what would lie there lies with the state.
        (None, None) => state_dir(None, home)?.join("runtime"),
    };
    Ok(resolve_existing(&path))
}

/// Where whiteouts can be made: in the runtime directory, unless that lies on an overlay itself (as in a container),
/// which allows none in it (kernel, fs/overlayfs/dir.c, `ovl_mknod`).
fn layers(runtime: &Path, uid: Uid) -> PathBuf {
    let memory = Path::new("/dev/shm");
    if !holds_layers(runtime) && holds_layers(memory) {
        // One directory, not two: whose it is gets judged, and in a sticky one nobody else can take its place.
        return memory.join(format!("codeoid-shim-{uid}"));
    }
    runtime.join("layers")
}

/// Whether overlayfs can have a writable layer on the file system of a path, as far as it exists. Not on itself, not
/// on what another machine or another program may change (kernel, overlayfs.rst, "Upper and Lower").
fn holds_layers(path: &Path) -> bool {
    let foreign = [
        OVERLAYFS_SUPER_MAGIC,
        NFS_SUPER_MAGIC,
        FUSE_SUPER_MAGIC,
        MSDOS_SUPER_MAGIC,
        FsType(V9FS_MAGIC),
        FsType(CIFS_MAGIC),
        FsType(SMB2_MAGIC),
    ];
    let found = path.ancestors().find_map(|at| statfs(at).ok());
    found.is_none_or(|found| !foreign.contains(&found.filesystem_type()))
}

/// statfs(2), `f_type`.
const V9FS_MAGIC: nix::libc::__fsword_t = 0x0102_1997;
const CIFS_MAGIC: nix::libc::__fsword_t = 0xff53_4d42;
const SMB2_MAGIC: nix::libc::__fsword_t = 0xfe53_4d42;

/// Resolves the part of a path that exists; the rest is appended as it is.
pub fn resolve_existing(path: &Path) -> PathBuf {
    for ancestor in path.ancestors() {
        if let Ok(real) = std::fs::canonicalize(ancestor) {
            let rest = path.strip_prefix(ancestor).unwrap_or(Path::new(""));
            return if rest.as_os_str().is_empty() { real } else { real.join(rest) };
        }
    }
    path.to_owned()
}

fn top() -> Result<BTreeMap<String, Node>, Failure> {
    let mut top = BTreeMap::new();
    for entry in std::fs::read_dir("/").doing("list /")? {
        let entry = entry.doing("list /")?;
        // A name that is not UTF-8 cannot be in a bundle; it is then absent in the sandbox.
        let Ok(name) = entry.file_name().into_string() else { continue };
        if let Some(node) = HostTree.node(&Path::new("/").join(&name)) {
            top.insert(name, node);
        }
    }
    Ok(top)
}

/// A socket that can be connected to by a path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listening {
    /// Its number, as `/proc/PID/fd` has it.
    pub inode: u64,
    /// The path, as its program has named it.
    pub path: PathBuf,
}

/// The sockets of this network namespace that a path leads to. A path that a program gave relative to its own
/// directory, or that holds a line feed, cannot be told from the list.
pub fn listening() -> Vec<Listening> {
    std::fs::read("/proc/net/unix").map_or(Vec::new(), |text| parse_sockets(&text))
}

fn sockets() -> Vec<PathBuf> {
    listening().into_iter().map(|socket| socket.path).collect()
}

/// Those that wait for a connection, or that take datagrams (proc_net(5), "/proc/net/unix": `Flags`, `Type`).
fn parse_sockets(text: &[u8]) -> Vec<Listening> {
    const LISTENS: &[u8] = b"00010000";
    const DATAGRAMS: &[u8] = b"0002";
    let lines = text.split(|&byte| byte == b'\n').skip(1);
    let found = lines.filter_map(|line| {
        // Seven fields, padded with spaces, and behind one more space the name, which may hold spaces itself.
        let mut rest = line;
        let mut fields = [&[][..]; 7];
        for field in &mut fields {
            rest = rest.trim_ascii_start();
            let end = rest.iter().position(|&byte| byte == b' ')?;
            (*field, rest) = rest.split_at(end);
        }
        let name = rest.strip_prefix(b" ").filter(|name| name.starts_with(b"/"))?;
        let [_, _, _, flags, kind, _, inode] = fields;
        let inode = std::str::from_utf8(inode).ok()?.parse().ok()?;
        let path = PathBuf::from(OsString::from_vec(name.to_vec()));
        (flags == LISTENS || kind == DATAGRAMS).then_some(Listening { inode, path })
    });
    found.collect()
}

/// The mounts of this mount namespace.
fn mounts() -> Result<Vec<Mounted>, Failure> {
    let text = std::fs::read("/proc/self/mountinfo").doing("read /proc/self/mountinfo")?;
    Ok(parse_mounts(&text).collect())
}

/// The mounts in a mountinfo file (proc_pid_mountinfo(5)): third to fifth field, with octal escapes.
fn parse_mounts(text: &[u8]) -> impl Iterator<Item = Mounted> {
    text.split(|&byte| byte == b'\n').filter_map(|line| {
        let mut fields = line.split(|&byte| byte == b' ').skip(2);
        let device = String::from_utf8_lossy(fields.next()?).into_owned();
        let root = PathBuf::from(unescape(fields.next()?));
        Some(Mounted { device, root, at: PathBuf::from(unescape(fields.next()?)) })
    })
}

/// The mount points in a mountinfo file.
pub fn parse_mount_points(text: &[u8]) -> Vec<PathBuf> {
    parse_mounts(text).map(|mount| mount.at).collect()
}

fn unescape(field: &[u8]) -> OsString {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&first, tail)) = rest.split_first() {
        let code = (first == b'\\' && tail.len() >= 3)
            .then(|| std::str::from_utf8(&tail[..3]).ok().and_then(|text| u8::from_str_radix(text, 8).ok()))
            .flatten();
        match code {
            Some(code) => {
                bytes.push(code);
                rest = &tail[3..];
            }
            None => {
                bytes.push(first);
                rest = tail;
            }
        }
    }
    OsString::from_vec(bytes)
}

/// The directory below `/run` that `/etc/resolv.conf` leads into: a fresh `/run` would leave it dangling.
fn resolver() -> Option<PathBuf> {
    let real = std::fs::canonicalize("/etc/resolv.conf").ok()?;
    let dir = real.parent()?;
    (dir.starts_with("/run") && dir != Path::new("/run")).then(|| dir.to_owned())
}

fn window(terminal: [bool; 3]) -> Option<(u16, u16)> {
    let number = terminal.iter().position(|&is| is)?;
    let size = sys::tty::window_size(sys::process::borrow(i32::try_from(number).ok()?)).ok()?;
    Some((size.ws_row, size.ws_col))
}

/// Whether a path is a child of `/` of the given name; only for tests of this module.
#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sockets_that_can_be_connected_to_are_found() {
        let text = b"Num       RefCount Protocol Flags    Type St Inode Path\n\
            0000000000000000: 00000002 00000000 00010000 0001 01 20 /srv/a socket\n\
            0000000000000000: 00000003 00000000 00000000 0001 03 21 /srv/connected\n\
            0000000000000000: 00000002 00000000 00000000 0002 01 22 /srv/log\n\
            0000000000000000: 00000002 00000000 00010000 0005 01 23 @/abstract\n\
            0000000000000000: 00000002 00000000 00010000 0001 01 24 relative/x\n\
            0000000000000000: 00000003 00000000 00000000 0001 03 25\n";
        let socket = |inode, path| Listening { inode, path: PathBuf::from(path) };
        assert_eq!(parse_sockets(text), [socket(20, "/srv/a socket"), socket(22, "/srv/log")]);
    }

    #[test]
    fn mountinfo_escapes_are_undone() {
        let text = b"36 35 98:0 /mnt1 /mnt/a\\040b\\134c rw,noatime master:1 - ext3 /dev/root rw\n";
        assert_eq!(parse_mount_points(text), [PathBuf::from("/mnt/a b\\c")]);
    }

    #[test]
    fn the_missing_end_of_a_path_is_kept() {
        assert_eq!(resolve_existing(Path::new("/proc/self/../nowhere/x")), Path::new("/proc/nowhere/x"));
    }
}
