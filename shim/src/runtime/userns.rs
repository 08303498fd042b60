//! A user namespace whose maps have several ranges. libcontainer leaves those to newuidmap(1), whose refusal it does
//! not notice, and which root has no ranges for; root writes them itself. So the namespace is made beforehand, and
//! libcontainer joins it.

use std::fs::{self, File};
use std::os::fd::{AsRawFd, OwnedFd};

use nix::fcntl::OFlag;
use nix::sched::{CloneFlags, unshare};
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::waitpid;
use nix::unistd::{ForkResult, Pid, pipe2, read, write};
use serde::Deserialize;
use serde_json::{Value, json};

use super::error::{Error, Result};
use crate::sys::process as sys;

/// A range of a map (user_namespaces(7)).
#[derive(Debug, Clone, Copy, Deserialize)]
struct Range {
    #[serde(rename = "containerID")]
    inside: u32,
    #[serde(rename = "hostID")]
    outside: u32,
    size: u32,
}

/// Makes the namespace, where a configuration asks for one with several ranges, and names it in there. It lasts as long
/// as the descriptor is open, or a process is in it.
pub fn make(config: &mut Value) -> Result<Option<OwnedFd>> {
    let several = |config: &Value, name: &str| {
        config.pointer(name).and_then(Value::as_array).is_some_and(|list| list.len() > 1)
    };
    let wanted = several(config, "/linux/uidMappings") || several(config, "/linux/gidMappings");
    let new = |namespace: &&mut Value| namespace["type"] == "user" && namespace.get("path").is_none();
    if !wanted || !nix::unistd::geteuid().is_root() {
        return Ok(None);
    }
    let maps = ["uidMappings", "gidMappings"].map(|name| map(&config["linux"][name]));
    let namespaces = config.pointer_mut("/linux/namespaces").and_then(Value::as_array_mut);
    let Some(namespace) = namespaces.into_iter().flatten().find(new) else { return Ok(None) };
    let [uids, gids] = maps;
    let made = hold(&uids?, &gids?)?;
    // The number is the same in all processes that libcontainer forks.
    namespace["path"] = json!(format!("/proc/self/fd/{}", made.as_raw_fd()));
    if let Some(linux) = config["linux"].as_object_mut() {
        linux.remove("uidMappings");
        linux.remove("gidMappings");
    }
    Ok(Some(made))
}

fn map(list: &Value) -> Result<String> {
    let ranges = Vec::<Range>::deserialize(list)
        .map_err(|error| Error::config("linux.uidMappings, linux.gidMappings", error.to_string()))?;
    Ok(ranges.iter().map(|range| format!("{} {} {}\n", range.inside, range.outside, range.size)).collect())
}

/// Has a child make it, and opens it.
fn hold(uids: &str, gids: &str) -> Result<OwnedFd> {
    let failed = || Error::errno("make the user namespace");
    let (ready, tell) = pipe2(OFlag::O_CLOEXEC).map_err(failed())?;
    let child = match sys::fork()? {
        ForkResult::Child => {
            let _ = nix::sys::prctl::set_pdeathsig(Signal::SIGKILL);
            if unshare(CloneFlags::CLONE_NEWUSER).is_ok() && write(&tell, b"1").is_ok() {
                loop {
                    nix::unistd::pause();
                }
            }
            sys::exit_now(1)
        }
        ForkResult::Parent { child } => child,
    };
    drop(tell);
    let made = opened(child, &ready, uids, gids);
    let _ = kill(child, Signal::SIGKILL);
    let _ = waitpid(child, None);
    made
}

fn opened(child: Pid, ready: &OwnedFd, uids: &str, gids: &str) -> Result<OwnedFd> {
    let mut byte = [0];
    if read(ready, &mut byte).map_err(Error::errno("make the user namespace"))? == 0 {
        return Err(Error::Usage("make the user namespace: it is not allowed".to_owned()));
    }
    for (name, map) in [("uid_map", uids), ("gid_map", gids)] {
        let path = format!("/proc/{child}/{name}");
        fs::write(&path, map).map_err(Error::io(format!("write {path}")))?;
    }
    let path = format!("/proc/{child}/ns/user");
    File::open(&path).map(OwnedFd::from).map_err(Error::io(format!("open {path}")))
}
