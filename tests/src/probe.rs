//! What tests ask of the host and of a sandbox: sockets that answer, programs that try to reach them,
//! processes that should be gone.

use std::fs;
use std::io::{Read, Write};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use nix::unistd::Pid;

/// Python: tries to connect to the socket whose path is the first argument; prints `hello` (what a
/// [`Listener`] says) or the name of the error.
pub const CONNECT: &str = "\
import errno, socket, sys
s = socket.socket(socket.AF_UNIX)
s.settimeout(5)
try:
    s.connect(sys.argv[1])
    print(s.recv(16).decode().strip() or 'connected')
except OSError as e:
    print(errno.errorcode.get(e.errno, str(e)))
";

/// Python: as [`CONNECT`], for a name in the abstract namespace.
pub const ABSTRACT_CONNECT: &str = "\
import errno, socket, sys
s = socket.socket(socket.AF_UNIX)
s.settimeout(5)
try:
    s.connect('\\0' + sys.argv[1])
    print(s.recv(16).decode().strip() or 'connected')
except OSError as e:
    print(errno.errorcode.get(e.errno, str(e)))
";

/// A socket of the host that says `hello` to everybody who connects, and counts them.
#[derive(Debug)]
pub struct Listener {
    served: Arc<AtomicU32>,
}

impl Listener {
    /// At this path, open to every user.
    ///
    /// # Panics
    /// If the path cannot be bound.
    #[must_use]
    pub fn at(path: &Path) -> Self {
        let listener = UnixListener::bind(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        fs::set_permissions(path, fs::Permissions::from_mode(0o777)).expect("it was just made");
        Self::serve(listener)
    }

    /// Under this name in the abstract namespace (unix(7)).
    ///
    /// # Panics
    /// If the name is taken.
    #[must_use]
    pub fn named(name: &str) -> Self {
        let address = SocketAddr::from_abstract_name(name).expect("a short name");
        Self::serve(UnixListener::bind_addr(&address).unwrap_or_else(|error| panic!("@{name}: {error}")))
    }

    /// How many have connected.
    #[must_use]
    pub fn served(&self) -> u32 {
        self.served.load(Ordering::SeqCst)
    }

    fn serve(listener: UnixListener) -> Self {
        let served = Arc::new(AtomicU32::new(0));
        let count = Arc::clone(&served);
        std::thread::spawn(move || {
            for client in listener.incoming() {
                count.fetch_add(1, Ordering::SeqCst);
                if let Ok(mut client) = client {
                    let _ = client.write_all(b"hello\n");
                }
            }
        });
        Self { served }
    }
}

/// Whether this process exists and is not merely waiting to be reaped.
#[must_use]
pub fn is_alive(pid: Pid) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(')').is_some_and(|(_, rest)| !rest.trim_start().starts_with(['Z', 'X']))
}

/// All living processes whose environment or command line holds this text. Zombies have neither.
#[must_use]
pub fn processes_with(text: &str) -> Vec<Pid> {
    let contains = |path: String| {
        let mut bytes = vec![];
        let read = fs::File::open(path).and_then(|mut file| file.read_to_end(&mut bytes));
        read.is_ok() && bytes.windows(text.len()).any(|part| part == text.as_bytes())
    };
    pids()
        .filter(|pid| pid.as_raw() != i32::try_from(std::process::id()).unwrap_or(0))
        .filter(|pid| contains(format!("/proc/{pid}/environ")) || contains(format!("/proc/{pid}/cmdline")))
        .filter(|pid| is_alive(*pid))
        .collect()
}

/// The children of a process, their children, and so on.
#[must_use]
pub fn descendants(of: Pid) -> Vec<Pid> {
    let parent = |pid: Pid| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let (_, rest) = stat.rsplit_once(')')?;
        rest.split_whitespace().nth(1)?.parse().ok().map(Pid::from_raw)
    };
    let all: Vec<(Pid, Pid)> = pids().filter_map(|pid| Some((pid, parent(pid)?))).collect();
    let mut found = vec![of];
    let mut next = 0;
    while next < found.len() {
        let above = found[next];
        found.extend(all.iter().filter(|(_, parent)| *parent == above).map(|(pid, _)| *pid));
        next += 1;
    }
    found.split_off(1)
}

fn pids() -> impl Iterator<Item = Pid> {
    fs::read_dir("/proc").into_iter().flatten().flatten().filter_map(|entry| {
        let name = entry.file_name();
        std::str::from_utf8(name.as_bytes()).ok()?.parse().ok().map(Pid::from_raw)
    })
}
