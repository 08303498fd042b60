//! `state`: what a container does now.

use super::Runtime;
use super::error::{Error, Result};
use super::print;
use super::record::{Container, Status};

/// Prints the state, as runc does.
pub fn state(runtime: &Runtime, id: &str) -> Result<()> {
    let container = Container::load(&runtime.root, id)?;
    let described = describe(&container, true);
    let text = serde_json::to_string_pretty(&described)
        .map_err(|source| Error::State { path: container.dir.clone(), source })?;
    print(&format!("{text}\n"))
}

/// A container in the words of `state` and `list`.
pub fn describe(container: &Container, annotations: bool) -> serde_json::Value {
    let record = &container.record;
    let status = container.status();
    let pid = if status == Status::Stopped { None } else { Some(record.pid) };
    let mut state = container.state(status, pid);
    if let Some(members) = state.as_object_mut() {
        members.insert("rootfs".to_owned(), serde_json::json!(record.rootfs));
        members.insert("created".to_owned(), record.created.as_str().into());
        members.insert("owner".to_owned(), owner(record.owner).into());
        if !annotations {
            members.remove("annotations");
        }
    }
    state
}

/// The owner's name, by the host's own list.
pub fn owner(uid: u32) -> String {
    let list = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
    list.lines()
        .find_map(|line| {
            let mut fields = line.split(':');
            let name = fields.next()?;
            (fields.nth(1)?.parse() == Ok(uid)).then(|| name.to_owned())
        })
        .unwrap_or_default()
}
