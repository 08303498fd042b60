//! As whom a turn's caller runs: root, or an ordinary user. Root becomes the user `codeoid-test` through
//! setpriv(1); an ordinary user is themselves.

use std::ffi::OsStr;
use std::process::Command;

use nix::unistd::{Gid, Uid, User, getegid, geteuid};

/// The user that root becomes for the second run of every test.
const TEST_USER: &str = "codeoid-test";

/// As whom.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Identity {
    /// uid 0.
    Root,
    /// Anybody else.
    Ordinary,
}

impl Identity {
    /// Whether commands can run as this identity here, or why not.
    ///
    /// # Errors
    /// The reason, as a clause.
    pub fn available(self) -> Result<(), String> {
        match (self, geteuid().is_root()) {
            (Self::Root, true) | (Self::Ordinary, false) => Ok(()),
            (Self::Root, false) => Err("it needs root".to_owned()),
            (Self::Ordinary, true) if test_user().is_none() => {
                Err(format!("there is no user {TEST_USER} (make setup)"))
            }
            (Self::Ordinary, true) if crate::requires::find("setpriv").is_none() => {
                Err("setpriv is not installed".to_owned())
            }
            (Self::Ordinary, true) => Ok(()),
        }
    }

    /// The user id that commands run with.
    #[must_use]
    pub fn uid(self) -> Uid {
        match (self, geteuid().is_root()) {
            (Self::Ordinary, true) => test_user().map_or_else(geteuid, |user| user.uid),
            _ => geteuid(),
        }
    }

    /// The group id that commands run with.
    #[must_use]
    pub fn gid(self) -> Gid {
        match (self, geteuid().is_root()) {
            (Self::Ordinary, true) => test_user().map_or_else(getegid, |user| user.gid),
            _ => getegid(),
        }
    }

    /// The login name.
    #[must_use]
    pub fn name(self) -> String {
        User::from_uid(self.uid()).ok().flatten().map_or_else(|| self.uid().to_string(), |user| user.name)
    }

    /// A command as this identity, with an empty environment. The process that is started *is* the program in
    /// the end (setpriv executes it), so its pid is the program's.
    #[must_use]
    pub fn command(self, program: impl AsRef<OsStr>) -> Command {
        let mut command;
        if self == Self::Ordinary && geteuid().is_root() {
            command = Command::new("/usr/bin/setpriv");
            command
                .arg(format!("--reuid={}", self.uid()))
                .arg(format!("--regid={}", self.gid()))
                .args(["--init-groups", "--"])
                .arg(program);
        } else {
            command = Command::new(program);
        }
        command.env_clear();
        command
    }
}

fn test_user() -> Option<User> {
    User::from_name(TEST_USER).ok().flatten()
}
