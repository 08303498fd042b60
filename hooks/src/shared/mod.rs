//! Protection `shared`: the sandbox writes the host's common dir. What git executes or follows is pinned
//! read-only where it exists ([`guard`]), remembered before the turn ([`baseline`]), judged and put back after it
//! ([`check`]).

mod area;
pub mod baseline;
mod case;
pub mod check;
mod entries;
mod fault;
mod guard;
mod keys;
mod modules;
mod objects;
mod planted;
mod pointers;
pub(crate) mod refs;
pub mod restore;
mod survey;
mod todo;
mod trees;
mod worktrees;

pub(crate) use guard::around;
pub use guard::{CONFIG, Error, guard, limits, merge_config};
