//! Configuration that may come from a session: an allow-list of keys. git's configuration names programs in more places
//! with every release, so nothing else of it ever comes.

use std::collections::HashMap;

use gix::bstr::{BStr, BString, ByteSlice as _};

use super::Error;
use super::git::Git;
use super::refs::{self, Refs};
use crate::config::{self, File, Name, Variable};
use crate::read::{self, Dir, POINTER_LIMIT};

/// A variable that the session set or took away.
#[derive(Debug)]
pub(crate) struct Setting {
    name: Name,
    /// What it was on both sides.
    old: Option<Vec<u8>>,
    /// What it is with the session; `None` where it took it away.
    new: Option<Vec<u8>>,
}

/// What the session changed, a setting for each variable.
pub(crate) fn wanted(now: &[u8], base: &[u8]) -> Vec<Setting> {
    if now == base {
        return Vec::new();
    }
    let (Ok(now), Ok(base)) = (File::parse(now), File::parse(base)) else { return Vec::new() };
    // The last of a name counts.
    let values = |file: &File| -> HashMap<Name, Vec<u8>> {
        let of = |variable: &Variable| (variable.name.clone(), variable.value.clone().unwrap_or_default());
        file.variables().iter().map(of).collect()
    };
    let (new_values, old_values) = (values(&now), values(&base));
    let mut seen = std::collections::HashSet::new();
    now.variables()
        .iter()
        .chain(base.variables())
        .map(|variable| &variable.name)
        .filter(|name| seen.insert((*name).clone()))
        .filter_map(|name| {
            let (old, new) = (old_values.get(name).cloned(), new_values.get(name).cloned());
            (old != new).then(|| Setting { name: name.clone(), old, new })
        })
        .collect()
}

impl Setting {
    /// Its name, for a person.
    pub(crate) fn name(&self) -> String {
        self.name.to_string()
    }

    /// Whether it is one that may come: the upstream of a branch, which has to be one of a remote that the host has.
    /// `config` is the session's.
    pub(crate) fn is_importable(&self, remotes: &Remotes, ours: &Refs, config: &File) -> bool {
        let Some(branch) = self.branch() else { return false };
        let full = BString::from([b"refs/heads/", branch.as_bytes()].concat());
        if !refs::is_importable(full.as_bstr()) || !ours.map.contains_key(&full) {
            return false;
        }
        match (self.name.key.as_str(), &self.new) {
            (_, None) => true,
            // A URL here would be asked by the host's next `git pull`.
            ("remote", Some(value)) => value == b"." || remotes.knows(value),
            // It means nothing without the other.
            (_, Some(value)) => {
                let remote = Name { key: "remote".to_owned(), ..self.name.clone() };
                let remote = config.variables().iter().rev().find(|variable| variable.name == remote);
                let remote = remote.and_then(|variable| variable.value.as_deref());
                value.starts_with(b"refs/heads/")
                    && refs::is_valid(value.as_bstr())
                    && remote.is_some_and(|remote| remote == b"." || remotes.knows(remote))
            }
        }
    }

    fn branch(&self) -> Option<&str> {
        let known = self.name.section == "branch" && matches!(self.name.key.as_str(), "remote" | "merge");
        let branch = self.name.subsection.as_deref().and_then(|name| std::str::from_utf8(name).ok());
        branch.filter(|_| known)
    }

    /// Sets it on the host, unless the host has something else there than both sides had.
    pub(crate) fn write(&self, git: &Git, host: &Dir) -> Result<bool, Error> {
        let file = configuration(host)?;
        let there = file.variables().iter().rev().find(|variable| variable.name == self.name);
        let there = there.map(|variable| variable.value.clone().unwrap_or_default());
        if there == self.new {
            return Ok(true);
        }
        let Some(branch) = self.branch() else { return Ok(false) };
        if there != self.old {
            return Ok(false);
        }
        let name = format!("branch.{branch}.{}", self.name.key);
        let done = match &self.new {
            Some(value) => git.run(["config", "--local", &name, &value.to_str_lossy()], b""),
            None => git.run(["config", "--local", "--unset-all", &name], b""),
        };
        Ok(done.is_ok())
    }
}

/// Takes the section of a branch away that is gone. That there is none is no error.
pub(crate) fn forget_branch(git: &Git, branch: &str) {
    let _ = git.run(["config", "--local", "--remove-section", &format!("branch.{branch}")], b"");
}

fn configuration(dir: &Dir) -> Result<File, Error> {
    let bytes = match dir.read("config".as_ref(), POINTER_LIMIT) {
        Ok(content) => content.map(|content| content.bytes).unwrap_or_default(),
        Err(read::Error::NotRegular { .. } | read::Error::TooBig { .. }) => Vec::new(),
        Err(error) => return Err(error.into()),
    };
    Ok(config::File::parse(&bytes).unwrap_or_default())
}

/// A remote of the host.
#[derive(Debug)]
pub(crate) struct Remote {
    name: Vec<u8>,
    /// The session's configuration says the same of it: where it is, and what is fetched.
    pub agrees: bool,
}

/// The host's remotes, compared with the session's: a remote-tracking ref means something only beside its remote.
#[derive(Debug)]
pub(crate) struct Remotes(Vec<Remote>);

impl Remotes {
    pub(crate) fn compare(host: &Dir, shadow: &Dir) -> Result<Self, Error> {
        let (host, shadow) = (configuration(host)?, configuration(shadow)?);
        let of = |file: &File, name: &[u8]| -> Vec<(String, Option<Vec<u8>>)> {
            let matches = |variable: &&Variable| {
                variable.name.section == "remote"
                    && variable.name.subsection.as_deref() == Some(name)
                    && matches!(variable.name.key.as_str(), "url" | "fetch")
            };
            let found = file.variables().iter().filter(matches);
            found.map(|variable| (variable.name.key.clone(), variable.value.clone())).collect()
        };
        let mut names: Vec<Vec<u8>> = host
            .variables()
            .iter()
            .filter(|variable| variable.name.section == "remote")
            .filter_map(|variable| variable.name.subsection.clone())
            .collect();
        names.sort();
        names.dedup();
        let remotes = names.into_iter().map(|name| {
            let agrees = of(&host, &name) == of(&shadow, &name);
            Remote { name, agrees }
        });
        Ok(Self(remotes.collect()))
    }

    fn knows(&self, name: &[u8]) -> bool {
        self.0.iter().any(|remote| remote.name == name)
    }

    /// The remote of a remote-tracking ref. `None` where the name is none of that kind.
    pub(crate) fn of(&self, name: &BStr) -> Option<&Remote> {
        const NOBODY: &Remote = &Remote { name: Vec::new(), agrees: false };
        let rest = name.strip_prefix(b"refs/remotes/")?;
        let longest = self
            .0
            .iter()
            .filter(|remote| {
                rest.strip_prefix(remote.name.as_slice()).is_some_and(|rest| rest.starts_with(b"/"))
            })
            .max_by_key(|remote| remote.name.len());
        Some(longest.unwrap_or(NOBODY))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_upstreams_of_remotes_that_the_host_has_may_come() {
        let base = b"[core]\n\tbare = false\n[remote \"origin\"]\n\turl = /o\n";
        let ours = Refs::from_text(b"1111111111111111111111111111111111111111 refs/heads/x\n");
        let remotes = Remotes(vec![Remote { name: b"origin".to_vec(), agrees: true }]);
        let may = |text: &str| {
            let now = [base.as_slice(), text.as_bytes()].concat();
            let config = File::parse(&now).unwrap();
            wanted(&now, base)
                .iter()
                .map(|setting| setting.is_importable(&remotes, &ours, &config))
                .collect::<Vec<_>>()
        };
        assert_eq!(may("[branch \"x\"]\n\tremote = origin\n\tmerge = refs/heads/x\n"), [true, true]);
        assert_eq!(may("[branch \"x\"]\n\tremote = .\n"), [true]);
        assert_eq!(may("[branch \"x\"]\n\tremote = ext::sh -c x\n"), [false]);
        assert_eq!(may("[branch \"x\"]\n\tremote = /tmp/evil\n"), [false]);
        assert_eq!(may("[branch \"x\"]\n\tremote = /tmp/evil\n\tmerge = refs/heads/x\n"), [false, false]);
        assert_eq!(may("[branch \"x\"]\n\tmerge = --upload-pack=x\n"), [false]);
        assert_eq!(may("[branch \"y\"]\n\tremote = origin\n"), [false], "no branch of that name");
        for hostile in [
            "[core]\n\tfsmonitor = x\n",
            "[branch \"x\"]\n\tpushRemote = origin\n",
            "[alias]\n\tx = !x\n",
            "[include]\n\tpath = /x\n",
            "[remote \"origin\"]\n\tuploadpack = x\n",
        ] {
            assert_eq!(may(hostile), [false], "{hostile}");
        }
    }
}
