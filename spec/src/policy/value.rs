//! The values of options: the words and numbers that a person writes, and what they mean.

use std::fmt;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// An enumeration whose variants are words that a person writes.
macro_rules! words {
    ($(#[$doc:meta])* $name:ident { $($(#[$variant_doc:meta])* $variant:ident = $word:literal,)+ }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, schemars::JsonSchema)]
        #[serde(rename_all = "lowercase")]
        pub enum $name {
            $($(#[$variant_doc])* $variant,)+
        }

        impl $name {
            /// Every word that stands for a value, in the order of the documentation.
            pub const WORDS: &'static [&'static str] = &[$($word),+];

            /// The word that policy, report and bundle use.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$variant => $word,)+
                }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(self.as_str())
            }
        }
    };
}

words! {
    /// What runs the bundle.
    Executor {
        /// The first of the others that can enforce the policy on this host.
        Auto = "auto",
        /// The built-in runtime (Linux).
        Libcontainer = "libcontainer",
        /// bubblewrap (Linux).
        Bwrap = "bwrap",
        /// `sandbox-exec` (macOS).
        Seatbelt = "seatbelt",
        /// A container of the Docker daemon.
        Docker = "docker",
        /// The sandbox that an agent brings along.
        Srt = "srt",
    }
}

words! {
    /// Which network a turn has.
    Network {
        /// The host's.
        Host = "host",
        /// None but its own loopback.
        Off = "off",
        /// Only the listed destinations, through a proxy.
        Allowlist = "allowlist",
    }
}

words! {
    /// Docker access.
    DockerSocket {
        /// None.
        Off = "off",
        /// All of the daemon's API, and with it the whole machine.
        Raw = "raw",
        /// The part of the API that a test suite needs.
        Brokered = "brokered",
    }
}

words! {
    /// What a turn sees of the home directory.
    Home {
        /// The host's home, copy-on-write, kept for the session.
        Overlay = "overlay",
        /// The host's home, not writable.
        Readonly = "readonly",
        /// An empty home.
        Hidden = "hidden",
    }
}

words! {
    /// What happens to a rule that the executor cannot enforce on this host. Without one the turn is refused.
    Fallback {
        /// The turn runs, and the report says what is weaker.
        Weaker = "weaker",
    }
}

/// Where the turn report goes.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum ReportTarget {
    /// A file, replaced.
    File(PathBuf),
    /// An open file descriptor of the caller.
    Fd(i32),
}
