//! The harness of the end-to-end tests: who runs a turn ([`Identity`]), where ([`Place`]), on what repository
//! ([`Repo`]), how ([`Turn`]), and what is compared afterwards ([`Snapshot`]).
//!
//! Every test runs for both identities, root and an ordinary user. What this machine lacks is skipped with the
//! reason printed, and is a failure where `CI` is set ([`Requires`]): nothing is skipped in silence.

#![forbid(unsafe_code)]

mod bundle;
mod engine;
mod identity;
mod place;
mod probe;
mod program;
mod repo;
mod requires;
mod snapshot;
mod terminal;
mod turn;
mod web;

pub use bundle::{Bundle, Oci};
pub use engine::{Engine, IMAGE, Kind as EngineKind, documented};
pub use identity::Identity;
pub use place::{Finished, Place};
pub use probe::{ABSTRACT_CONNECT, CONNECT, Listener, descendants, is_alive, processes_with};
pub use program::{docs, shim};
pub use repo::{Git, Layout, Repo};
pub use requires::Requires;
pub use snapshot::Snapshot;
pub use terminal::Terminal;
pub use turn::{Outcome, Running, Turn, wait_until};
pub use web::{LISTED, UNLISTED, Web, proxy_client, rebinding_name_server, returning};

/// Declares functions as tests that run once as root and once as an ordinary user, each time with a fresh
/// [`Place`]. A function that is not declared is never called, which the compiler reports.
#[macro_export]
macro_rules! each_identity {
    ($($name:ident),* $(,)?) => {$(
        mod $name {
            #[test]
            fn as_root() {
                if let Some(place) = $crate::Place::for_test($crate::Identity::Root, stringify!($name)) {
                    super::$name(&place);
                }
            }

            #[test]
            fn as_user() {
                if let Some(place) = $crate::Place::for_test($crate::Identity::Ordinary, stringify!($name)) {
                    super::$name(&place);
                }
            }
        }
    )*};
}
